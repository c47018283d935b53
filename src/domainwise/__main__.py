"""`domainwise` and `python -m domainwise`. Imports nothing before `main`, so that Ctrl-C is quiet from the start."""

import os
import sys


def main() -> None:
    """Run the command line, and end the process."""
    code = 130
    try:
        from domainwise.cli import main as run

        run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except KeyboardInterrupt:
        pass
    if "RANK" in os.environ:
        # Without shutting down the interpreter, during which torch's threads can abort a process of torchrun.
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
