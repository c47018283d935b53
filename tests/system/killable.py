"""Runs the command line again and again, and dies by SIGKILL at a chosen moment each time.

python killable.py "after-step 12.5, before-rename 5" train --algorithm mat ...

after-step 12.5: half a hundredth of a second after step 12; before-rename 5: when the fifth file is written but not yet
renamed; after-rename 5. A process is forked for each, so that torch is imported once. Prints how each ended.
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


def killed(when: str, moment: float) -> int:
    """How a process ended that was to die at this moment: minus the signal, or its exit code."""
    child = os.fork()
    if child == 0:
        if when == "after-step":
            die_after_step(moment)
        else:
            die_around_rename(int(moment), before=when == "before-rename")
        main()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    moments = [word.split() for word in sys.argv[1].split(", ")]
    sys.argv[1:] = sys.argv[2:]
    for when, moment in moments:
        print("ended", when, moment, killed(when, float(moment)), flush=True)
        if os.path.exists(os.path.join(sys.argv[-1], "done")):
            print("done too early", flush=True)
