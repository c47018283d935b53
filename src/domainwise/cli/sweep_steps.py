"""What `domainwise sweep` does with its plan: tell of it, carry it out, repeat what was chosen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import typer
from rich.console import Console

from domainwise.cli.interrupt import interruptible
from domainwise.cli.sweep_progress import SweepProgress, duration
from domainwise.runs import RunConfig
from domainwise.sweeps import local, ray_engine
from domainwise.sweeps.best import best_runs
from domainwise.sweeps.calibration import estimated_seconds
from domainwise.sweeps.carry_out import Engine, carry_out
from domainwise.sweeps.commands import command_of
from domainwise.sweeps.engine import Watch
from domainwise.sweeps.folder import Standing, SweepFolder
from domainwise.sweeps.plan import PlannedRun
from domainwise.sweeps.spec import SweepSpec


def tell(runs: Sequence[PlannedRun], folder: SweepFolder, workers: int, console: Console) -> None:
    """How many runs are to do, how long they will take, and the command of one."""
    finished = {now.run for now in folder.standings() if now.state == "done"} if folder.plan_file.exists() else set()
    to_do = [run for run in runs if run.name not in finished]
    console.print(f"{len(runs)} runs, {len(runs) - len(to_do)} of them done, into {folder.path}", highlight=False)
    if not to_do:
        return
    with console.status("measuring a few steps") as line:
        seconds = estimated_seconds(to_do, workers, lambda what: line.update(f"measuring a few steps of {what}"))
    console.print(f"about {duration(seconds)} on this machine with {workers} at a time", highlight=False)
    console.print(f"one of them: {command_of(to_do[0].config)}", highlight=False, soft_wrap=True)


def engine_named(name: str, workers: int, address: str | None, gpus_per_run: float, results: Any) -> Engine:
    def run_locally(configs: Sequence[RunConfig], watch: Watch) -> object:
        return local.run_all(configs, workers=workers, watch=watch)

    def run_by_ray(configs: Sequence[RunConfig], watch: Watch) -> object:
        return ray_engine.run_all(
            configs, workers=workers, watch=watch, address=address, gpus_per_run=gpus_per_run, results=results
        )

    return run_locally if name == "local" else run_by_ray


@dataclass(frozen=True)
class Conductor:
    """Carries plans out and says how it went."""

    engine: Engine
    steps: int | None
    retry_failed: bool
    console: Console

    def carry_out(
        self,
        runs: Sequence[PlannedRun],
        folder: SweepFolder,
        on_stand: Callable[[PlannedRun, Standing], None] = lambda run, now: None,
    ) -> None:
        """Carry the runs out; `on_stand` is told of each as `carry_out` tells."""
        with interruptible() as is_interrupted, SweepProgress(runs, self.steps, self.console) as progress:

            def begun(configs: Sequence[RunConfig], watch: Watch) -> object:
                progress.begin()
                return self.engine(configs, watch)

            def stands(run: PlannedRun, now: Standing) -> None:
                progress.tell(run, now)
                on_stand(run, now)

            outcome = carry_out(
                runs, begun, retry_failed=self.retry_failed, on_stand=stands, should_stop=is_interrupted
            )
        self.console.print(f"[bold]done[/bold]: {outcome.done} of {len(runs)} runs in {folder.path}", highlight=False)
        if outcome.failed:
            self.console.print(
                f"[red]failed[/red]: {outcome.failed}; `domainwise sweep status {folder.path}` says why, "
                "--retry-failed tries them again",
                highlight=False,
                soft_wrap=True,
            )
            raise typer.Exit(1)

    def repeat_best(self, spec: SweepSpec, runs: Sequence[PlannedRun], folder: SweepFolder, seeds: range) -> None:
        """What each selection method chose, with new seeds, in a folder beside the sweep's."""
        for selection in spec.selection:
            again = SweepFolder(folder.path.with_name(f"{folder.path.name}-best-{selection}"))
            with again.locked():
                chosen = best_runs(folder.path, runs, selection, seeds, again.path)
                again.claim(replace(spec, selection=(selection,), draws=1, trials=len(seeds)))
                again.write_plan(chosen)
                self.carry_out(chosen, again)
