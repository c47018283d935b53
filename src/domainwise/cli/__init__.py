"""The command line: one file a command, each parses, makes one call and prints."""

import importlib
import sys
import warnings
from collections.abc import Sequence

import typer

from domainwise.errors import DomainwiseError, RunInterrupted, in_one_line

# Each is a module here, with a function or a group of commands of its name.
COMMANDS = (
    "train",
    "sweep",
    "report",
    "explain",
    "perturbations",
    "robustness",
    "predict",
    "reproduce",
    "demo",
    "algorithms",
    "data",
    "theory",
)


def main() -> None:
    """Run a command; what a user can put right is one line and exit code 2, never a traceback."""
    warnings.showwarning = _note
    try:
        application(sys.argv[1:])()
    except (DomainwiseError, OSError) as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        sys.exit(2)
    except RunInterrupted as stopped:
        print(f"{stopped}; the same command goes on from there", file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)


def application(words: Sequence[str]) -> typer.Typer:
    """The commands. Where the words name one, only that is imported: a table should not wait for torch."""
    app = typer.Typer(
        help="Train image classifiers that hold up in domains they never saw.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # A group of one command would be that command.
    app.callback()(lambda: None)
    for name in words[:1] if words[:1] and words[0] in COMMANDS else COMMANDS:
        module = importlib.import_module(f"domainwise.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(epilog=module.EXAMPLES)(getattr(module, name))
    return app


def _note(message: Warning | str, *_: object, **__: object) -> None:
    print(f"note: {message}", file=sys.stderr)
