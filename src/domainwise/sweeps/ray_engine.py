"""Runs carried out as tasks of Ray, on this machine or on a cluster.

Where the worker's machine sees the run's folder, it trains there. Where it does not, it trains in a folder of its own
that begins with what the other holds, and every record brings all files back. So a worker or machine that dies costs no
more than the steps since the last checkpoint: the run is begun again, there or elsewhere, and goes on.
"""

import logging
import os
import socket
import sys
import tempfile
import time
import uuid
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from domainwise.errors import DomainwiseError, RunInterrupted
from domainwise.sweeps.engine import MAX_ATTEMPTS, EngineCallbacks, available_cpus, format_failure, train_when_free
from domainwise.training import RunConfig, RunFolder, RunResult
from domainwise.training.device import keep_freed_memory

Results = Literal["auto", "shared", "pulled"]
_SECONDS_BETWEEN_WORDS = 0.5
_SECONDS_TO_SAVE = 120.0


def run_all(
    configs: Sequence[RunConfig],
    callbacks: EngineCallbacks | None = None,
    *,
    workers: int,
    address: str | None = None,
    gpus_per_run: float = 0.0,
    results: Results = "auto",
) -> list[RunResult | None]:
    """Carry out every config, at most `workers` at a time; their results in order, None for a run that failed.

    Args:
        address: of a running cluster, or `auto` for this machine's; without one Ray is started here and ended again.
        gpus_per_run: what each run reserves, which may be a part of one.
        results: `shared`, workers see the folder of the sweep; `pulled`, they do not; `auto`: each finds out.
    """
    if not configs:
        return []
    ray = _connected(address, workers)
    try:
        return _Driver(ray, configs, workers, callbacks or EngineCallbacks(), gpus_per_run, results).run()
    except ray.exceptions.RaySystemError as error:
        raise DomainwiseError(f"the Ray cluster is gone: {' '.join(str(error).split())[:200]}") from error
    finally:
        ray.shutdown()


def _connected(address: str | None, workers: int) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise DomainwiseError("--engine ray needs Ray: pip install 'domainwise[ray]'") from error
    settings: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        settings |= {"num_cpus": max(workers, available_cpus()), "include_dashboard": False}
    try:
        _check_reachable(address)
        ray.init(**settings)
    except (OSError, ValueError, RuntimeError) as error:
        where = "here" if address is None else f"at {address}"
        raise DomainwiseError(f"no Ray cluster can be reached {where}: {' '.join(str(error).split())[:200]}") from error
    return ray


def _check_reachable(address: str | None) -> None:
    """Knock first: Ray itself would go on trying for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


class _Driver:
    """Hands out runs, asks how they are, and begins those again that were lost."""

    def __init__(
        self,
        ray: Any,
        configs: Sequence[RunConfig],
        workers: int,
        callbacks: EngineCallbacks,
        gpus_per_run: float,
        results: Results,
    ) -> None:
        self.ray, self.workers, self.callbacks = ray, workers, callbacks
        threads = max(1, available_cpus() // workers)
        self.configs = [replace(config, threads=config.threads or threads) for config in configs]
        self.folders = [Path(config.folder()).resolve() for config in configs]
        self.waiting = deque(range(len(configs)))
        self.attempts: Counter[int] = Counter()
        self.results: list[RunResult | None] = [None] * len(configs)
        self.in_flight: dict[Any, int] = {}
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        # Beside the sweep's files, because it reads and writes them for workers that cannot.
        self.board = ray.remote(_Board).options(num_cpus=0, scheduling_strategy=here).remote(list(self.folders))
        self.token = None if results == "shared" else self._token(is_made=results == "auto")
        self.task = ray.remote(_train).options(num_cpus=threads, num_gpus=gpus_per_run, max_retries=0)

    def run(self) -> list[RunResult | None]:
        try:
            while self.waiting or self.in_flight:
                while self.waiting and len(self.in_flight) < self.workers:
                    self._hand_out(self.waiting.popleft())
                self._collect(timeout=0.2)
                if self.callbacks.should_stop():
                    self._let_save()
                    done = sum(result is not None for result in self.results)
                    raise RunInterrupted(f"{done} of {len(self.configs)} runs are done")
        finally:
            if self.token is not None:
                self.token.unlink(missing_ok=True)
        return self.results

    def _token(self, is_made: bool) -> Path:
        """A file by which a worker knows whether it sees the same folders; where it is not made, none does."""
        folder = self.folders[0].parent
        folder.mkdir(parents=True, exist_ok=True)
        token = folder / f".shared-{uuid.uuid4().hex}"
        if is_made:
            token.touch()
        return token

    def _hand_out(self, run: int) -> None:
        self.attempts[run] += 1
        config = replace(self.configs[run], output=self.folders[run])
        self.in_flight[self.task.remote(self.board, run, config, self.token, str(Path.cwd()))] = run

    def _collect(self, timeout: float) -> None:
        finished, _ = self.ray.wait(list(self.in_flight), num_returns=1, timeout=timeout)
        for run, step in self.ray.get(self.board.news.remote()).items():
            self.callbacks.on_progress(run, step)
        for reference in finished:
            run = self.in_flight.pop(reference)
            try:
                kind, error = self.ray.get(reference)
            except self.ray.exceptions.RayError as lost:
                self._lost(run, lost)
                continue
            if kind == "done":
                result = RunResult(Path(self.configs[run].folder()), self.configs[run], self._records(run))
                self.results[run] = result
                self.callbacks.on_done(run, result)
            elif kind == "failed":
                self.callbacks.on_failed(run, error)

    def _records(self, run: int) -> list[dict[str, Any]]:
        return RunFolder(self.folders[run]).read_records()

    def _lost(self, run: int, why: Exception) -> None:
        if self.attempts[run] < MAX_ATTEMPTS:
            self.waiting.appendleft(run)
        else:
            first = str(why).strip().splitlines()[0]
            self.callbacks.on_failed(run, f"its worker died {MAX_ATTEMPTS} times, last: {type(why).__name__}: {first}")

    def _let_save(self) -> None:
        self.ray.get(self.board.stop.remote())
        self.waiting.clear()
        until = time.monotonic() + _SECONDS_TO_SAVE
        while self.in_flight and time.monotonic() < until:
            self._collect(timeout=0.2)


class _Board:
    """An actor on the sweep's machine: what workers tell, what they are told, and the files of those far away."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders
        self.steps: dict[int, int] = {}
        self.is_stopped = False

    def tell(self, run: int, step: int) -> bool:
        """A worker's word of how far it is; the answer is whether to stop."""
        self.steps[run] = step
        return self.is_stopped

    def news(self) -> dict[int, int]:
        news, self.steps = self.steps, {}
        return news

    def stop(self) -> None:
        self.is_stopped = True

    def fetch(self, run: int) -> dict[str, bytes]:
        return RunFolder(self.folders[run]).export_files()

    def store(self, run: int, files: Mapping[str, bytes]) -> None:
        RunFolder(self.folders[run]).import_files(files)


def _train(board: Any, run: int, config: RunConfig, token: Path | None, where: str) -> tuple[str, str]:
    """One run on a worker: how it ended, and its error."""
    import ray

    if Path(where).is_dir():
        # So that paths and modules of one's own are found where the command was given.
        os.chdir(where)
        sys.path[:0] = [where] if where not in sys.path else []
    is_stopped, told = False, 0.0

    def on_step(step: int, loss: float) -> None:
        nonlocal is_stopped, told
        if time.monotonic() - told >= _SECONDS_BETWEEN_WORDS:
            told = time.monotonic()
            is_stopped = ray.get(board.tell.remote(run, step))

    keep_freed_memory()
    try:
        if token is None or token.exists():
            train_when_free(config, on_step, lambda: is_stopped)
            return "done", ""
        with tempfile.TemporaryDirectory(prefix="domainwise-") as temporary:
            folder = Path(temporary) / "run"
            RunFolder(folder).import_files(ray.get(board.fetch.remote(run)))

            def bring_back(record: Any = None) -> None:
                ray.get(board.store.remote(run, RunFolder(folder).export_files()))

            try:
                train_when_free(replace(config, output=folder), on_step, lambda: is_stopped, on_record=bring_back)
            finally:
                bring_back()
        return "done", ""
    except RunInterrupted:
        return "stopped", ""
    except ray.exceptions.RayError:
        raise
    except Exception as error:
        return "failed", format_failure(error)
