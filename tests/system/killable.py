"""Runs the command line and dies by SIGKILL at a chosen moment: after some seconds, or around the nth rename.

python killable.py seconds 0.8 train --algorithm mat ...
python killable.py before-rename 5 train --algorithm mat ...
"""

import os
import signal
import sys
import threading
import time
from typing import Any

from domainwise.cli import main


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def die_around_rename(number: int, before: bool) -> None:
    rename, calls = os.replace, 0

    def counted(*args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == number and before:
            die()
        rename(*args, **kwargs)
        if calls == number:
            die()

    os.replace = counted


if __name__ == "__main__":
    when, amount = sys.argv[1], float(sys.argv[2])
    sys.argv = ["domainwise", *sys.argv[3:]]
    if when == "seconds":
        threading.Timer(amount, die).start()
    elif when != "never":
        die_around_rename(int(amount), before=when == "before-rename")
    started = time.perf_counter()
    main()
    print(f"seconds {time.perf_counter() - started}")
    os._exit(0)
