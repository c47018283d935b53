"""Runs carried out by worker processes of this machine, one thread each."""

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any

from domainwise.runs import RunConfig, RunInterrupted, RunResult, train
from domainwise.runs.device import keep_freed_memory

OnProgress = Callable[[int, int], None]


def run_all(
    configs: Sequence[RunConfig],
    *,
    workers: int,
    on_progress: OnProgress = lambda run, steps: None,
    on_done: Callable[[int, RunResult], None] = lambda run, result: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[RunResult]:
    """Train every config, `workers` at a time, and return their results in order.

    Args:
        on_progress: called with the number of the run and how many of its steps are done.
        on_done: called with the number of a run and its result, as soon as it has one.
        should_stop: asked several times a second; True lets every worker save and raises `RunInterrupted`.
    """
    context = multiprocessing.get_context("spawn")
    steps: Queue[tuple[int, int]] = context.Queue()
    stop = context.Event()
    results: dict[int, RunResult] = {}
    with ProcessPoolExecutor(workers, context, _start_worker, (steps, stop)) as pool:
        waiting = {pool.submit(_run, number, config): number for number, config in enumerate(configs)}
        try:
            while waiting:
                done, _ = wait(waiting, timeout=0.2)
                _report(steps, on_progress)
                for future in done:
                    number = waiting.pop(future)
                    results[number] = future.result()
                    on_done(number, results[number])
                if should_stop():
                    raise RunInterrupted(f"{len(results)} of {len(configs)} runs are done")
        except BaseException:
            stop.set()
            _cancel(waiting)
            raise
    return [results[number] for number in range(len(configs))]


def _cancel(waiting: dict["Future[RunResult]", int]) -> None:
    for future in waiting:
        future.cancel()


def _report(steps: "Queue[tuple[int, int]]", on_progress: OnProgress) -> None:
    while True:
        try:
            on_progress(*steps.get_nowait())
        except queue.Empty:
            return


_worker: dict[str, Any] = {}


def _start_worker(steps: "Queue[tuple[int, int]]", stop: Event) -> None:
    # Ctrl-C reaches the whole process group; only the parent acts on it, so that workers can save first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()
    _worker.update(steps=steps, stop=stop)


def _end_with_parent() -> None:
    # A worker whose parent was killed would wait for work forever. A run may be cut off anywhere, so this is safe.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(number: int, config: RunConfig) -> RunResult:
    def on_step(step: int, loss: float) -> None:
        if step % 10 == 0:
            _worker["steps"].put((number, step))

    return train(replace(config, threads=1), on_step=on_step, should_stop=_worker["stop"].is_set)
