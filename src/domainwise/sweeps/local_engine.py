"""Runs configs in worker processes on this machine; each worker trains one run after another."""

import ctypes
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from domainwise.sweeps.engine import MAX_ATTEMPTS, EngineCallbacks, format_failure, share_cpus, train_when_free
from domainwise.sweeps.fork_server import start_fork_server, worker_context
from domainwise.training import RunConfig, RunInterrupted, RunResult
from domainwise.training.device import keep_freed_memory
from domainwise.training.registry import DatasetCache

_GPUS = "CUDA_VISIBLE_DEVICES"
_SECONDS_TO_START = 30.0


def run_all(
    configs: Sequence[RunConfig], callbacks: EngineCallbacks | None = None, *, workers: int
) -> list[RunResult | None]:
    """Train every config, `workers` at a time, and return the results in order, with None for a run that failed.

    The workers share the CPUs equally (see `share_cpus`), and each gets one of the GPUs.
    """
    callbacks = callbacks or EngineCallbacks()
    threads = share_cpus(min(workers, max(len(configs), callbacks.total)))
    return _Pool(configs, max(1, min(workers, len(configs))), threads, callbacks).run()


@dataclass
class _Worker:
    """A worker process, its end of the pipe, and the index of the run it trains."""

    process: BaseProcess
    pipe: "Connection[Any, Any]"
    run: int | None = None


class _Pool:
    """The workers and the queue of runs, in the parent process."""

    def __init__(self, configs: Sequence[RunConfig], workers: int, threads: int, callbacks: EngineCallbacks) -> None:
        self.configs = [replace(config, threads=config.threads or threads) for config in configs]
        self.callbacks = callbacks
        self.queue = deque(range(len(configs)))
        self.attempts: Counter[int] = Counter()
        self.results: list[RunResult | None] = [None] * len(configs)
        self.context = worker_context()
        # Without a lock, unlike an Event: a worker killed while it holds one would block all the others.
        self.stop = self.context.RawValue(ctypes.c_bool, False)
        self.gpus = _visible_gpus()
        self.workers = [self._start_worker(number) for number in range(workers)]

    def run(self) -> list[RunResult | None]:
        try:
            while self._assign_runs():
                ends: list[Any] = [end for each in self.workers for end in (each.pipe, each.process.sentinel)]
                wait(ends, timeout=0.2)
                for number, worker in enumerate(self.workers):
                    self._receive(worker)
                    if not worker.process.is_alive():
                        self._receive(worker)  # what it sent before it died
                        self._requeue(worker)
                        self.workers[number] = self._start_worker(number)
                if self.callbacks.should_stop():
                    done = sum(result is not None for result in self.results)
                    raise RunInterrupted(f"{done} of {len(self.configs)} runs are done")
        finally:
            self._shut_down()
        return self.results

    def _start_worker(self, number: int) -> _Worker:
        environment = dict(os.environ)
        if self.gpus:
            environment[_GPUS] = self.gpus[number % len(self.gpus)]
        pipe, worker_pipe = self.context.Pipe()
        deadline = time.monotonic() + _SECONDS_TO_START
        while True:
            start_fork_server()
            process = self.context.Process(  # type: ignore[attr-defined]
                target=_work, args=(worker_pipe, self.stop, environment), daemon=True
            )
            try:
                process.start()
                break
            except (ConnectionError, EOFError):
                # The fork server was killed, and is replaced once the operating system has ended it.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        worker_pipe.close()
        return _Worker(process, pipe)

    def _assign_runs(self) -> bool:
        """Give idle workers the next runs; return whether any worker has a run."""
        for worker in self.workers:
            if worker.run is None and self.queue:
                run = self.queue.popleft()
                with suppress(BrokenPipeError):
                    # A worker that has just died is treated as one that died during this run.
                    worker.pipe.send((run, self.configs[run]))
                worker.run = run
                self.attempts[run] += 1
        return any(worker.run is not None for worker in self.workers)

    def _receive(self, worker: _Worker) -> None:
        """Pass on what a worker has sent."""
        with suppress(EOFError, ConnectionResetError):
            while worker.pipe.poll():
                run, kind, content = worker.pipe.recv()
                if kind == "step":
                    self.callbacks.on_progress(run, content)
                    continue
                worker.run = None
                if kind == "done":
                    self.results[run] = content
                    self.callbacks.on_done(run, content)
                elif kind == "failed":
                    self.callbacks.on_failed(run, content)

    def _requeue(self, worker: _Worker) -> None:
        """Put the run of a dead worker back first in the queue, or report it as failed after too many attempts."""
        worker.process.join()
        worker.pipe.close()
        if worker.run is None:
            return
        if self.attempts[worker.run] < MAX_ATTEMPTS:
            self.queue.appendleft(worker.run)
        else:
            code = worker.process.exitcode or 0
            cause = f"signal {-code}, {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            self.callbacks.on_failed(worker.run, f"its process died {MAX_ATTEMPTS} times, last by {cause}")

    def _shut_down(self) -> None:
        """Let the current runs save, and end the workers."""
        self.stop.value = True
        for worker in self.workers:
            with suppress(OSError):
                worker.pipe.send(None)
        for worker in self.workers:
            while worker.process.is_alive():
                # A full pipe that is not read would block the worker.
                with suppress(EOFError, ConnectionResetError):
                    while worker.pipe.poll():
                        worker.pipe.recv()
                worker.process.join(timeout=0.05)
            worker.pipe.close()


def _work(pipe: "Connection[Any, Any]", stop: "ctypes.c_bool", environment: Mapping[str, str]) -> None:
    """Train the runs that arrive through the pipe until None does, in the worker process.

    Args:
        environment: the parent's, with the GPU of this worker. The fork server has the one it was started with.
    """
    # Ctrl-C and a closed terminal reach the whole process group; only the parent acts, so that runs can save first.
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):  # Windows has no SIGHUP
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    keep_freed_memory()
    datasets = DatasetCache()
    # The pipe breaks if the fork server is killed: then the parent takes this worker for dead, and starts another.
    with suppress(BrokenPipeError, ConnectionResetError, EOFError):
        while (task := pipe.recv()) is not None:
            run, config = task

            def on_step(step: int, loss: float, run: int = run) -> None:
                if step % 10 == 0:
                    pipe.send((run, "step", step))

            try:
                pipe.send((run, "done", train_when_free(config, on_step, lambda: stop.value, datasets=datasets)))
            except RunInterrupted:
                pipe.send((run, "stopped", None))
            except Exception as error:
                pipe.send((run, "failed", format_failure(error)))


def _exit_with_parent() -> None:
    # Without its parent, a worker would wait for work forever. A run can be cut off at any point, so this is safe.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _visible_gpus() -> list[str]:
    names = os.environ.get(_GPUS)
    return names.split(",") if names else [str(number) for number in range(torch.cuda.device_count())]
