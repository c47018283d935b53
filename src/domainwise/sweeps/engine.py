"""What every engine promises, wherever it carries out runs.

An engine is given configs and a `Watch`, and calls back as runs go on, from the thread that called it. If a run raises,
that is reported and the others go on. If its process or machine dies, it is begun again from its last checkpoint, a few
times. Asked to stop, an engine lets every run save and raises `RunInterrupted`.
"""

import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from domainwise.errors import DomainwiseError, in_one_line
from domainwise.storage.run_folder import RunIsBusy
from domainwise.training import RunConfig, RunResult, train
from domainwise.training.trainer import OnRecord, OnStep

# How often a run is begun whose process dies under it: a lack of memory may pass, a broken library will not.
ATTEMPTS = 3
_PATIENCE = 30.0


class RunFailed(Exception):
    """A run raised something that is not the user's to put right; the message is its traceback."""


def _raise(run: int, error: str) -> None:
    raise RunFailed(error) if "\n" in error.strip() else DomainwiseError(error)


@dataclass(frozen=True)
class Watch:
    """Who wants to know, by the number of the run.

    Args:
        on_progress: how many of its steps are done.
        on_done: its result.
        on_failed: its error, as `explained` has it; by default the engine stops and raises.
        should_stop: asked several times a second.
    """

    on_progress: Callable[[int, int], None] = lambda run, steps: None
    on_done: Callable[[int, RunResult], None] = lambda run, result: None
    on_failed: Callable[[int, str], None] = _raise
    should_stop: Callable[[], bool] = lambda: False


def trained(
    config: RunConfig,
    on_step: OnStep,
    should_stop: Callable[[], bool],
    on_record: OnRecord = lambda record: None,
) -> RunResult:
    """Train, and where another process is still in the folder, wait: one that was killed may take a moment to go."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return train(config, on_step=on_step, on_record=on_record, should_stop=should_stop)
        except RunIsBusy:
            if time.monotonic() > until or should_stop():
                raise
            time.sleep(0.5)


def explained(error: BaseException) -> str:
    """An error as text: one line for what a user can put right, and otherwise a traceback, whose last line is one."""
    if isinstance(error, DomainwiseError | OSError):
        return in_one_line(error)
    return "".join(traceback.format_exception(error)).strip()


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
