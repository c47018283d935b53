"""Runs configs as Ray tasks, on this machine or on a cluster.

A worker that sees the run's folder trains there. Otherwise it trains in a temporary folder that starts with the files
of the run's folder, and copies its files back at every record. So a worker or node that dies costs no more than the
steps since the last checkpoint: another worker resumes the run.
"""

import logging
import os
import socket
import tempfile
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from domainwise.errors import DomainwiseError, RunInterrupted, suggest_install
from domainwise.sweeps.engine import (
    MAX_ATTEMPTS,
    EngineCallbacks,
    available_cpus,
    format_failure,
    share_cpus,
    train_when_free,
)
from domainwise.training import RunConfig, RunFolder, RunResult
from domainwise.training.device import keep_freed_memory
from domainwise.training.registry import DatasetCache

Results = Literal["auto", "shared", "pulled"]
TASK_NAME = "domainwise_run"
_SECONDS_BETWEEN_REPORTS = 0.5
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
    """Train every config, at most `workers` at a time, and return the results in order, None for a run that failed.

    Args:
        address: a running cluster, or `auto` for this machine's (default: start Ray here, and end it afterwards).
        gpus_per_run: GPUs reserved per run; may be a fraction.
        results: `shared` if workers see the run folders, `pulled` if not; with `auto` each worker checks.
    """
    if not configs:
        return []
    ray = _connect(address, workers)
    try:
        return _Driver(ray, configs, workers, callbacks or EngineCallbacks(), gpus_per_run, results).run()
    except (ray.exceptions.RaySystemError, ray.exceptions.ActorDiedError) as error:
        raise DomainwiseError(f"lost the Ray cluster: {_summarize(error)}") from error
    finally:
        ray.shutdown()


def _connect(address: str | None, workers: int) -> Any:
    """Connect to a cluster or start one, and return the module `ray`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise DomainwiseError(f"--engine ray needs ray; {suggest_install('ray')}") from error
    settings: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        # None would connect to a cluster that happens to run here.
        settings |= {"address": "local", "num_cpus": max(workers, available_cpus()), "include_dashboard": False}
    try:
        _check_reachable(address)
        ray.init(**settings)
    except (OSError, ValueError, RuntimeError) as error:
        target = "could not start Ray" if address is None else f"could not connect to the Ray cluster at {address}"
        raise DomainwiseError(f"{target}: {_summarize(error)}") from error
    return ray


def _check_reachable(address: str | None) -> None:
    """Open a connection first: Ray itself would retry for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


def _summarize(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


class _Driver:
    """The queue of runs and the tasks in progress, in the process that runs the sweep."""

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
        threads = share_cpus(workers)
        self.configs = [replace(config, threads=config.threads or threads) for config in configs]
        self.folders = [Path(config.folder()).resolve() for config in configs]
        self.queue = deque(range(len(configs)))
        self.attempts: Counter[int] = Counter()
        self.results: list[RunResult | None] = [None] * len(configs)
        self.tasks: dict[Any, int] = {}
        # On this node, because it reads and writes the run folders for workers that do not see them.
        this_node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        coordinator = ray.remote(_Coordinator).options(num_cpus=0, scheduling_strategy=this_node)
        self.coordinator = coordinator.remote(list(self.folders))
        self.token = None if results == "shared" else self._make_token(is_written=results == "auto")
        self.train = ray.remote(_make_task()).options(
            name=TASK_NAME, num_cpus=threads, num_gpus=gpus_per_run, max_retries=0
        )

    def run(self) -> list[RunResult | None]:
        try:
            while self.queue or self.tasks:
                while self.queue and len(self.tasks) < self.workers:
                    self._submit(self.queue.popleft())
                self._collect(timeout=0.2)
                if self.callbacks.should_stop():
                    self._stop_tasks()
                    done = sum(result is not None for result in self.results)
                    raise RunInterrupted(f"{done} of {len(self.configs)} runs are done")
        finally:
            if self.token is not None:
                self.token.unlink(missing_ok=True)
        return self.results

    def _make_token(self, is_written: bool) -> Path:
        """Return a file that shows a worker that it sees the same folders; unless it is written, none does."""
        folder = self.folders[0].parent
        folder.mkdir(parents=True, exist_ok=True)
        token = folder / f".shared-{uuid.uuid4().hex}"
        if is_written:
            token.touch()
        return token

    def _submit(self, run: int) -> None:
        self.attempts[run] += 1
        config = replace(self.configs[run], output=self.folders[run])
        self.tasks[self.train.remote(self.coordinator, run, config, self.token, Path.cwd())] = run

    def _collect(self, timeout: float) -> None:
        """Report progress, and the outcome of a task that has ended."""
        ended, _ = self.ray.wait(list(self.tasks), num_returns=1, timeout=timeout)
        for run, step in self.ray.get(self.coordinator.pop_steps.remote()).items():
            self.callbacks.on_progress(run, step)
        for reference in ended:
            run = self.tasks.pop(reference)
            try:
                kind, error = self.ray.get(reference)
            except self.ray.exceptions.RayError as cause:
                self._requeue(run, cause)
                continue
            if kind == "done":
                records = RunFolder(self.folders[run]).read_records()
                result = RunResult(Path(self.configs[run].folder()), self.configs[run], records)
                self.results[run] = result
                self.callbacks.on_done(run, result)
            elif kind == "failed":
                self.callbacks.on_failed(run, error)

    def _requeue(self, run: int, cause: Exception) -> None:
        """Put a run whose worker died back first in the queue, or report it as failed after too many attempts."""
        if self.attempts[run] < MAX_ATTEMPTS:
            self.queue.appendleft(run)
        else:
            reason = str(cause).strip().splitlines()[0]
            self.callbacks.on_failed(
                run, f"its worker died {MAX_ATTEMPTS} times, last: {type(cause).__name__}: {reason}"
            )

    def _stop_tasks(self) -> None:
        """Let the current runs save."""
        self.ray.get(self.coordinator.stop.remote())
        self.queue.clear()
        deadline = time.monotonic() + _SECONDS_TO_SAVE
        while self.tasks and time.monotonic() < deadline:
            self._collect(timeout=0.2)


class _Coordinator:
    """An actor on the node of the sweep: collects progress, tells workers to stop, and transfers run folders."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders
        self.steps: dict[int, int] = {}
        self.is_stopped = False

    def report_step(self, run: int, step: int) -> bool:
        """Record the progress of a run, and return whether it should stop."""
        self.steps[run] = step
        return self.is_stopped

    def pop_steps(self) -> dict[int, int]:
        """Return the progress since the last call."""
        steps, self.steps = self.steps, {}
        return steps

    def stop(self) -> None:
        self.is_stopped = True

    def fetch_files(self, run: int) -> dict[str, bytes]:
        return RunFolder(self.folders[run]).export_files()

    def store_files(self, run: int, files: Mapping[str, bytes]) -> None:
        RunFolder(self.folders[run]).import_files(files)


def _make_task() -> Callable[..., tuple[str, str]]:
    """Return the function that trains one run on a worker.

    A worker process unpickles it once, so all runs of the process share its datasets.
    """
    datasets = DatasetCache()

    def train_run(
        coordinator: Any, run: int, config: RunConfig, token: Path | None, directory: Path
    ) -> tuple[str, str]:
        """Return how the run ended, and its error."""
        import ray

        if directory.is_dir():
            # So that relative paths and the user's modules are found as where the command was given.
            os.chdir(directory)
        is_stopped, last_report = False, 0.0

        def on_step(step: int, loss: float) -> None:
            nonlocal is_stopped, last_report
            if time.monotonic() - last_report >= _SECONDS_BETWEEN_REPORTS:
                last_report = time.monotonic()
                is_stopped = ray.get(coordinator.report_step.remote(run, step))

        keep_freed_memory()
        try:
            if token is None or token.exists():
                train_when_free(config, on_step, lambda: is_stopped, datasets=datasets)
                return "done", ""
            with tempfile.TemporaryDirectory(prefix="domainwise-") as temporary:
                folder = RunFolder(Path(temporary) / "run")
                folder.import_files(ray.get(coordinator.fetch_files.remote(run)))

                def copy_back(record: Any = None) -> None:
                    ray.get(coordinator.store_files.remote(run, folder.export_files()))

                try:
                    train_when_free(
                        replace(config, output=folder.path),
                        on_step,
                        lambda: is_stopped,
                        on_record=copy_back,
                        datasets=datasets,
                    )
                finally:
                    copy_back()
            return "done", ""
        except RunInterrupted:
            return "stopped", ""
        except ray.exceptions.RayError:
            raise
        except Exception as error:
            return "failed", format_failure(error)

    return train_run
