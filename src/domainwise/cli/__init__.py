"""The command line: one file per command. Each parses, makes one call into the API, and prints."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer

import domainwise
from domainwise.errors import DomainwiseError, RunInterrupted, format_error

# Each is a module here, with a function or an `app` of its name; there with underscores.
COMMANDS = (
    "train",
    "sweep",
    "report",
    "explain",
    "perturbations",
    "robustness",
    "predict",
    "evaluate",
    "export",
    "push",
    "average",
    "refit",
    "study",
    "reproduce",
    "demo",
    "algorithms",
    "new-method",
    "data",
    "theory",
)
HELP = "Train image classifiers that hold up in domains they never saw."


def main() -> None:
    """Run a command. An error that the user can fix is one line on stderr and exit code 2, never a traceback."""
    warnings.showwarning = _print_warning
    try:
        build_app(sys.argv[1:])()
    except (DomainwiseError, OSError) as error:
        print(f"error: {format_error(error)}", file=sys.stderr)
        sys.exit(2)
    except RunInterrupted as interruption:
        print(f"{interruption}; rerun the same command to resume", file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)


def build_app(args: Sequence[str]) -> typer.Typer:
    """Build the application. If `args` name a command, only that module is imported, to start fast."""
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=HELP)(_take_options)
    for name in args[:1] if args[:1] and args[0] in COMMANDS else COMMANDS:
        attribute = name.replace("-", "_")
        module = importlib.import_module(f"domainwise.cli.{attribute}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(epilog=module.EXAMPLES)(getattr(module, attribute))
    return app


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(f"domainwise {domainwise.__version__}")
        raise typer.Exit()


def _take_options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """The options of `domainwise` itself."""


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"note: {message}", file=sys.stderr)
