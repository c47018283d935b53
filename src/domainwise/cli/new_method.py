"""`domainwise new-method`: write the skeleton of a method of one's own."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli.console import print_text
from domainwise.cli.options import Quiet

EXAMPLES = """
Examples:

domainwise new-method spread

domainwise new-method spread --output my_methods --group alignment

domainwise new-method spread --output spread --package
"""


def new_method(
    name: Annotated[str, typer.Argument(help="Module name of the method, such as my_method.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")] = Path("."),
    group: Annotated[str, typer.Option(help="Group of the method, see `domainwise algorithms`.")] = "invariance",
    package: Annotated[
        bool,
        typer.Option("--package", help="Also write a pyproject.toml; once installed, the method is used by its name."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write a method that trains as it is: NAME.py with two hyperparameters, its test, and its card."""
    from domainwise.scaffold import class_name, method_name, write_method

    files = write_method(name, output, group=group, package=package, force=force)
    if quiet:
        return
    print_text(f"wrote {', '.join(map(str, files))}\n\nnext:")
    algorithm = f"{name}:{class_name(name)}"
    commands = [f"cd {shlex.quote(str(output))}"] if output != Path(".") else []
    if package:
        commands.append("pip install --editable .")
        algorithm = method_name(name)
    commands += [
        f"python -m pytest test_{name}.py",
        f"domainwise train --algorithm {algorithm} --steps 300",
        f"domainwise sweep --dataset silhouettes --algorithm erm --algorithm {algorithm} --draws 3 --trials 3 "
        f"--steps 300 --output sweeps/{name}",
        f"domainwise report sweeps/{name}",
    ]
    print_text("\n".join(f"  {command}" for command in commands))
