"""The command line: one file a command, each parses, makes one call and prints."""

import sys
import warnings

import typer

from domainwise.cli import algorithms, data, demo, theory, train
from domainwise.errors import DomainwiseError
from domainwise.runs import RunInterrupted

app = typer.Typer(
    help="Train image classifiers that hold up in domains they never saw.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=train.EXAMPLES)(train.train)
app.command(epilog=demo.EXAMPLES)(demo.demo)
app.command(epilog=algorithms.EXAMPLES)(algorithms.algorithms)
app.add_typer(data.app, name="data")
app.command(epilog=theory.EXAMPLES)(theory.theory)


def main() -> None:
    """Run a command; what a user can put right is one line and exit code 2, never a traceback."""
    warnings.showwarning = _note
    try:
        app()
    except DomainwiseError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except RunInterrupted as stopped:
        print(f"{stopped}; the same command goes on from there", file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)


def _note(message: Warning | str, *_: object, **__: object) -> None:
    print(f"note: {message}", file=sys.stderr)
