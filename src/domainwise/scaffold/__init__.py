"""`write_method`: the skeleton of a method of one's own, with its test and card, from the templates in this folder."""

import importlib.util
import keyword
import sys
from pathlib import Path
from string import Template

from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.storage.files import write_atomic

_TEMPLATES = Path(__file__).parent


def write_method(
    name: str,
    folder: str | Path = ".",
    *,
    group: str = "invariance",
    package: bool = False,
    force: bool = False,
) -> list[Path]:
    """Write NAME.py, test_NAME.py and NAME.md: a small method that trains as it is, and return the files.

    Args:
        name: module name of the method, in lower case; `class_name` gives that of its class.
        folder: where to write.
        group: of `domainwise algorithms`.
        package: also write a pyproject.toml that registers the method, to be used by name once installed.
        force: replace files that exist.
    """
    from domainwise.algorithms.base import GROUPS

    folder = Path(folder)
    _check_name(name, folder)
    if group not in GROUPS:
        raise unknown_choice("group", group, GROUPS)
    templates = {f"{name}.py": "method.py.txt", f"test_{name}.py": "test_method.py.txt", f"{name}.md": "card.md.txt"}
    if package:
        templates["pyproject.toml"] = "pyproject.toml.txt"
    for file in templates:
        if (folder / file).exists() and not force:
            raise DomainwiseError(f"{folder / file} exists; choose another name or folder, or replace it with --force")
    words = {"name": name, "cls": class_name(name), "method": method_name(name), "group": group}
    folder.mkdir(parents=True, exist_ok=True)
    for file, template in templates.items():
        write_atomic(folder / file, Template((_TEMPLATES / template).read_text()).substitute(words).encode())
    return [folder / file for file in templates]


def class_name(name: str) -> str:
    """Return the name of the class in a method's module: `my_method` has `MyMethod`."""
    return "".join(part.capitalize() for part in name.split("_"))


def method_name(name: str) -> str:
    """Return what records and the entry point call the method: the class in lower case."""
    return class_name(name).lower()


def _check_name(name: str, folder: Path) -> None:
    from domainwise.algorithms import ALGORITHMS

    if not (name.isascii() and name.isidentifier() and name == name.lower() and name[0].isalpha()):
        raise DomainwiseError(
            f"the name must be lower-case letters, digits and underscores, such as my_method, got {name!r}"
        )
    if keyword.iskeyword(name):
        raise DomainwiseError(f"{name!r} is a Python keyword; choose another name")
    if method_name(name) in ALGORITHMS:
        raise DomainwiseError(f"{method_name(name)!r} is a built-in method; choose another name")
    if name in sys.stdlib_module_names or name == "domainwise" or _is_installed(name, folder):
        raise DomainwiseError(f"{name!r} is the name of another Python module; choose another name")


def _is_installed(name: str, folder: Path) -> bool:
    spec = importlib.util.find_spec(name)
    # A folder of that name without code is no module.
    return spec is not None and spec.origin is not None and Path(spec.origin).parent.resolve() != folder.resolve()
