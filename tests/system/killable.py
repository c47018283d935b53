"""Runs the command line and dies by SIGKILL at a chosen moment.

python killable.py after-step 12.5 train --algorithm mat ...      half a hundredth of a second after step 12
python killable.py before-rename 5 train --algorithm mat ...      when the fifth file is written but not yet renamed
python killable.py after-rename 5 train --algorithm mat ...
"""

import os
import signal
import sys
import threading
import time
from typing import Any

import torch

from domainwise.cli import main


def die(seconds: float = 0.0) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_step(moment: float) -> None:
    step, calls = torch.optim.Adam.step, 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == int(moment):
            threading.Thread(target=die, args=(moment % 1 / 100,), daemon=True).start()
        return step(*args, **kwargs)

    torch.optim.Adam.step = counted


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
    when, moment = sys.argv[1], float(sys.argv[2])
    sys.argv = ["domainwise", *sys.argv[3:]]
    if when == "after-step":
        die_after_step(moment)
    else:
        die_around_rename(int(moment), before=when == "before-rename")
    main()
