"""The interface of every engine.

An engine takes configs and callbacks, and calls back from the thread that called it. If a run raises an error, that is
reported and the other runs continue. If its process or machine dies, the run resumes from its last checkpoint, a few
times. Asked to stop, an engine lets every run save and raises `RunInterrupted`.
"""

import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from domainwise.errors import DomainwiseError, format_error
from domainwise.storage.run_folder import RunIsBusy
from domainwise.training import RunConfig, RunResult, train
from domainwise.training.registry import DatasetCache
from domainwise.training.trainer import OnRecord, OnStep

# How often a run whose process dies is started: a shortage of memory may pass, a broken library will not.
MAX_ATTEMPTS = 3
_SECONDS_TO_WAIT = 30.0


class RunFailed(Exception):
    """A run raised an unexpected error; the message is its traceback."""


def _raise_failure(run: int, error: str) -> None:
    raise RunFailed(error) if "\n" in error.strip() else DomainwiseError(error)


@dataclass(frozen=True)
class EngineCallbacks:
    """Callbacks by the index of the run.

    Args:
        on_progress: called with the number of steps done.
        on_done: called with the result.
        on_failed: called with the error, see `format_failure`; by default the engine stops and raises it.
        should_stop: asked several times per second.
        total: number of runs in the whole sweep, if the engine is given only some of them. CPUs are shared by this
            number, so that a run has as many threads however often the sweep is resumed.
    """

    on_progress: Callable[[int, int], None] = lambda run, steps: None
    on_done: Callable[[int, RunResult], None] = lambda run, result: None
    on_failed: Callable[[int, str], None] = _raise_failure
    should_stop: Callable[[], bool] = lambda: False
    total: int = 0


Engine = Callable[[Sequence[RunConfig], EngineCallbacks], object]


def train_when_free(
    config: RunConfig,
    on_step: OnStep,
    should_stop: Callable[[], bool],
    *,
    on_record: OnRecord = lambda record: None,
    datasets: DatasetCache | None = None,
) -> RunResult:
    """Train, and wait while another process is still in the folder: one that was killed may take a moment to end."""
    deadline = time.monotonic() + _SECONDS_TO_WAIT
    while True:
        try:
            return train(config, on_step=on_step, on_record=on_record, should_stop=should_stop, datasets=datasets)
        except RunIsBusy:
            if time.monotonic() > deadline or should_stop():
                raise
            time.sleep(0.5)


def format_failure(error: BaseException) -> str:
    """Return one line for an error that the user can fix, and the traceback for any other."""
    if isinstance(error, DomainwiseError | OSError):
        return format_error(error)
    return "".join(traceback.format_exception(error)).strip()


def available_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_cpus(runs: int) -> int:
    """Return the threads that each of `runs` at a time gets: an equal share of the CPUs, at most $OMP_NUM_THREADS."""
    share = max(1, available_cpus() // max(1, runs))
    # OpenMP also allows one number per level of nesting; the first is what torch uses.
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(share, int(limit)) if limit.isdecimal() and int(limit) else share
