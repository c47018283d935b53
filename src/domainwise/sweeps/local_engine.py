"""Runs carried out by worker processes of this machine, which are used again from run to run."""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from typing import Any

import torch

from domainwise.sweeps.engine import MAX_ATTEMPTS, EngineCallbacks, available_cpus, format_failure, train_when_free
from domainwise.training import RunConfig, RunInterrupted, RunResult
from domainwise.training.device import keep_freed_memory

_CONTEXT = multiprocessing.get_context("spawn")
_GPUS = "CUDA_VISIBLE_DEVICES"


def run_all(
    configs: Sequence[RunConfig], callbacks: EngineCallbacks | None = None, *, workers: int
) -> list[RunResult | None]:
    """Carry out every config, `workers` at a time; their results in order, None for a run that failed.

    The machine's processors are divided among the workers, and its GPUs are dealt out to them.
    """
    workers = max(1, min(workers, len(configs)))
    return _Pool(configs, workers, callbacks or EngineCallbacks()).run()


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: "Connection[Any, Any]"
    run: int | None = None


class _Pool:
    """The parent's side: who works on what, and what comes back."""

    def __init__(self, configs: Sequence[RunConfig], workers: int, callbacks: EngineCallbacks) -> None:
        threads = max(1, available_cpus() // workers)
        self.configs = [replace(config, threads=config.threads or threads) for config in configs]
        self.callbacks = callbacks
        self.waiting = deque(range(len(configs)))
        self.attempts: Counter[int] = Counter()
        self.results: list[RunResult | None] = [None] * len(configs)
        self.stop = _CONTEXT.Event()
        self.gpus = _visible_gpus()
        self.workers = [self._started(number) for number in range(workers)]

    def run(self) -> list[RunResult | None]:
        try:
            while self._hand_out():
                ends: list[Any] = [end for each in self.workers for end in (each.pipe, each.process.sentinel)]
                wait(ends, timeout=0.2)
                for number, worker in enumerate(self.workers):
                    self._listen(worker)
                    if not worker.process.is_alive():
                        self._listen(worker)  # what it said last
                        self._bury(worker)
                        self.workers[number] = self._started(number)
                if self.callbacks.should_stop():
                    raise RunInterrupted(f"{self._finished()} of {len(self.configs)} runs are done")
        finally:
            self._end()
        return self.results

    def _finished(self) -> int:
        return sum(result is not None for result in self.results)

    def _started(self, number: int) -> _Worker:
        here, there = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_work, args=(there, self.stop), daemon=True)
        with _environment(_GPUS, self.gpus[number % len(self.gpus)] if self.gpus else None):
            process.start()
        there.close()
        return _Worker(process, here)

    def _hand_out(self) -> bool:
        """Give idle workers something to do; False when nothing is left and nobody works."""
        for worker in self.workers:
            if worker.run is None and self.waiting:
                run = self.waiting.popleft()
                with suppress(BrokenPipeError):
                    # A worker that has died meanwhile is found out as one that died at this run.
                    worker.pipe.send((run, self.configs[run]))
                worker.run = run
                self.attempts[run] += 1
        return any(worker.run is not None for worker in self.workers)

    def _listen(self, worker: _Worker) -> None:
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

    def _bury(self, worker: _Worker) -> None:
        worker.process.join()
        worker.pipe.close()
        if worker.run is None:
            return
        if self.attempts[worker.run] < MAX_ATTEMPTS:
            self.waiting.appendleft(worker.run)
        else:
            code = worker.process.exitcode or 0
            how = f"signal {-code}, {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            self.callbacks.on_failed(worker.run, f"its process died {MAX_ATTEMPTS} times, last by {how}")

    def _end(self) -> None:
        """Let runs that are under way save, and end the workers."""
        self.stop.set()
        for worker in self.workers:
            with suppress(OSError):
                worker.pipe.send(None)
        for worker in self.workers:
            # A pipe that nobody reads from would block a worker that has much to say.
            while worker.process.is_alive():
                self._drain(worker)
                worker.process.join(timeout=0.05)
            worker.pipe.close()

    def _drain(self, worker: _Worker) -> None:
        with suppress(EOFError, ConnectionResetError):
            while worker.pipe.poll():
                worker.pipe.recv()


def _work(pipe: "Connection[Any, Any]", stop: Event) -> None:
    """The worker's side: one run after the other, until there is None."""
    # Ctrl-C reaches the whole process group; only the parent acts on it, so that runs can save first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()
    while (task := pipe.recv()) is not None:
        run, config = task

        def on_step(step: int, loss: float, run: int = run) -> None:
            if step % 10 == 0:
                pipe.send((run, "step", step))

        try:
            pipe.send((run, "done", train_when_free(config, on_step, stop.is_set)))
        except RunInterrupted:
            pipe.send((run, "stopped", None))
        except Exception as error:
            pipe.send((run, "failed", format_failure(error)))


def _end_with_parent() -> None:
    # A worker whose parent was killed would wait for work forever. A run may be cut off anywhere, so this is safe.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _visible_gpus() -> list[str]:
    given = os.environ.get(_GPUS)
    return given.split(",") if given else [str(number) for number in range(torch.cuda.device_count())]


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """A variable of the environment for processes that are started inside; None leaves it as it is."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if value is not None:
            del os.environ[name]
            if before is not None:
                os.environ[name] = before
