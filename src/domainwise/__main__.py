"""`domainwise` and `python -m domainwise`. Imports no library before `main`, so that Ctrl-C is quiet from the start."""

import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 130


def main() -> None:
    """Run the command line, and end the process."""
    code = _INTERRUPTED
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)
        from domainwise.cli import main as run

        run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except KeyboardInterrupt:
        pass
    if code == _INTERRUPTED or "RANK" in os.environ:
        # Without shutting down the interpreter, during which threads of libraries can abort the process.
        os._exit(code)
    sys.exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or end at once during an import: some libraries take it for a missing module."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), b"\x1b[?25h")  # the cursor, which a progress bar hides
            os._exit(_INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
