"""The command line: one file per command. Each parses, makes one call into the API, and prints."""

import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from itertools import takewhile
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import domainwise
from domainwise.cli.options import keep_lines, write_out_augment
from domainwise.cli.streams import (
    close_streams,
    configure_streams,
    flush_output,
    print_error,
    print_lines,
    report_crash,
)
from domainwise.errors import DomainwiseError, ProcessLost, RunInterrupted, format_error
from domainwise.training.ranks import read_rank

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


# Of click, or of typer's own copy of it in newer versions.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main() -> NoReturn:
    """Run a command and exit: 2 for an error that the user can fix, 130 for Ctrl-C, 70 for any other error."""
    args = sys.argv[1:]
    configure_streams()
    warnings.showwarning = _print_warning
    is_debug = "--debug" in takewhile(_is_option, args)
    try:
        with _silence_other_ranks():
            code = _run(args, is_debug)
    except DomainwiseError as error:  # of the variables that say which rank this is
        print_error(format_error(error))
        code = 2
    except Exception as error:
        code = report_crash(error, is_debug)
    sys.exit(close_streams(code))


def _run(args: Sequence[str], is_debug: bool) -> int:
    """Run a command and return its exit code. An error that the user can fix is one line, never a traceback."""
    try:
        code: int = build_app(args)(write_out_augment(args), standalone_mode=False) or 0
        flush_output()
        return code
    except BrokenPipeError:
        return 1
    except _UsageError as error:
        message, context = error.format_message(), error.ctx  # type: ignore[attr-defined]
        if type(error).__name__ == "NoArgsIsHelpError":
            print_lines(message)
        else:
            print_error(f"{message} (see `{context.command_path} --help`)" if context else message)
        return 2
    except (DomainwiseError, OSError) as error:
        if is_debug:
            report_crash(error, is_debug)
        # Of several processes only the first prints, unless it may be the one that is gone.
        print_error(format_error(error), file=sys.__stderr__ if isinstance(error, ProcessLost) else None)
        return 2
    except RunInterrupted as interruption:
        print_error(f"{interruption}; rerun the same command to resume", label="")
        return 130
    except KeyboardInterrupt:
        return 130


@contextmanager
def _silence_other_ranks() -> Iterator[None]:
    """Discard what ranks other than the first print, which is the same. An unexpected error leaves the block."""
    if read_rank() == 0:
        yield
        return
    with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
        yield


def _is_option(word: str) -> bool:
    return word.startswith("-")


def build_app(args: Sequence[str]) -> typer.Typer:
    """Build the application. If `args` name a command, only that module is imported, to start fast."""
    app = typer.Typer(
        cls=_Commands,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(help=HELP)(_take_options)
    words = [word for word in args if not _is_option(word)][:1]
    for name in words if words and words[0] in COMMANDS else COMMANDS:
        attribute = name.replace("-", "_")
        module = importlib.import_module(f"domainwise.cli.{attribute}")
        command: Any = getattr(module, attribute, None)
        summary = _summarize(command.__doc__ if command else module.app.info.help)
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, short_help=summary)
        else:
            app.command(epilog=keep_lines(module.EXAMPLES), short_help=summary)(command)
    return app


class _Commands(TyperGroup):
    def list_commands(self, ctx: object) -> list[str]:
        """Return the commands in our order; typer would put those with commands of their own last."""
        return [name for name in COMMANDS if name in self.commands]


def _summarize(text: str) -> str:
    """Return the first sentence of a help text, which click would cut to one line."""
    return text.partition("\n")[0].partition(". ")[0].rstrip(".") + "."


def _print_version(is_requested: bool) -> None:
    from domainwise.cli.console import print_text

    if is_requested:
        print_text(f"domainwise {domainwise.__version__}")
        raise typer.Exit()


def _take_options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """The options of `domainwise` itself."""


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    print_error(str(message), label="note: ")
