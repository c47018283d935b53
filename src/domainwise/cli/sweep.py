"""`domainwise sweep`: a comparison of methods, from its plan to its finished runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from domainwise.cli.console import DataProgress, SweepProgress, counts_table, duration, interruptible
from domainwise.cli.options import ManyValues, literals, pairs
from domainwise.errors import DomainwiseError, unknown
from domainwise.seeds import seed_hash
from domainwise.storage.sweep_folder import Standing, SweepFolder
from domainwise.sweeps import local_engine, ray_engine
from domainwise.sweeps.engine import Watch
from domainwise.sweeps.plan import PlannedRun, plan
from domainwise.sweeps.runner import Engine, best_runs, carry_out
from domainwise.sweeps.slurm import command_of, write_slurm_script
from domainwise.sweeps.spec import SweepSpec
from domainwise.sweeps.time_estimate import estimated_seconds
from domainwise.training import RunConfig

EXAMPLES = """
Examples:

domainwise sweep --datasets silhouettes --algorithms erm uat mat ldat --draws 3 --trials 3 --steps 300 --workers 2

domainwise sweep --datasets pacs vlcs --algorithms erm mat --space paper --draws 8 --trials 3 --dry-run

domainwise sweep --datasets pacs --algorithms erm coral --selection training_domain leave_one_out -o runs/pacs

domainwise sweep --datasets pacs --algorithms erm mat --engine ray --address auto --gpus-per-run 0.5

domainwise sweep --datasets pacs --algorithms erm mat --engine slurm --write-script pacs.sh

domainwise sweep status runs/pacs
"""
ENGINES = ("local", "ray", "slurm")

app = typer.Typer(
    cls=ManyValues, invoke_without_command=True, no_args_is_help=True, epilog=EXAMPLES, rich_markup_mode="rich"
)


@app.callback()
def sweep(
    context: typer.Context,
    datasets: Annotated[list[str] | None, typer.Option(help="As for `domainwise train --dataset`. Several.")] = None,
    algorithms: Annotated[list[str] | None, typer.Option(help="From `domainwise algorithms`. Several.")] = None,
    selection: Annotated[
        list[str] | None,
        typer.Option(
            help="How models will be selected: training_domain (default), leave_one_out (many more runs), test_domain, "
            "ood_validation. Several."
        ),
    ] = None,
    draws: Annotated[int, typer.Option(help="Of the hyperparameters for each trial; the first is the defaults.")] = 1,
    trials: Annotated[int, typer.Option(help="Repetitions with other seeds.")] = 1,
    space: Annotated[str, typer.Option(help="To draw from: domainbed, paper, or a file.toml of one's own.")] = (
        "domainbed"
    ),
    test_domains: Annotated[list[str] | None, typer.Option(help="Leave out only these in turn. Several.")] = None,
    train_domains: Annotated[list[str] | None, typer.Option(help="Train on these only. Several.")] = None,
    hparam: Annotated[
        list[str] | None,
        typer.Option("--hparam", "-H", help="name=value for the methods that have it; not drawn then. Several."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of each run; by default what suits the data.")] = None,
    record_every: Annotated[int | None, typer.Option(help="Steps between records.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a domain and step; not drawn then.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Before the classifier; not drawn then.")] = None,
    network: Annotated[str | None, typer.Option("--network", "--backbone", help="As for `domainwise train`.")] = None,
    weights: Annotated[str | None, typer.Option(help="What a backbone starts from.")] = None,
    batch_norm: Annotated[str | None, typer.Option(help="frozen or live.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    augment: Annotated[bool | None, typer.Option("--augment/--no-augment", help="Train on random views.")] = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out images that cannot be read.")] = False,
    dataset_option: Annotated[list[str] | None, typer.Option(help="name=value. Several.")] = None,
    evaluate: Annotated[str | None, typer.Option(help="`selection` (default) or `all`.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the datasets lie.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    logger: Annotated[str | None, typer.Option(help="tensorboard, wandb or mlflow.")] = None,
    engine: Annotated[str, typer.Option(help="local: processes of this machine; ray; slurm.")] = "local",
    workers: Annotated[int, typer.Option(help="Runs at a time.")] = 2,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; without, one is started here.")] = None,
    gpus_per_run: Annotated[float, typer.Option(help="That Ray reserves for a run; may be a part of one.")] = 0.0,
    results: Annotated[
        str,
        typer.Option(help="Whether Ray's workers see the sweep's folder: auto, shared, or pulled (files come back)."),
    ] = "auto",
    write_script: Annotated[Path | None, typer.Option(help="Where the script for SLURM goes.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The sweep's folder; by default one under runs.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell how many runs, how long, and show one.")
    ] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try runs again that failed before.")] = False,
    best_on_more_seeds: Annotated[
        int, typer.Option(help="Afterwards repeat what was chosen with so many new seeds, in a folder of its own.")
    ] = 0,
) -> None:
    """Compare methods: every run that a fair choice of models needs. The same command again goes on where it stopped.

    Options marked "Several" take words with spaces between, or are repeated. The same folder also takes a wider sweep:
    more draws, trials, methods or datasets. `domainwise report` makes the tables.
    """
    if context.invoked_subcommand is not None:
        return
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if workers < 1:
        raise DomainwiseError(f"--workers must be at least 1, not {workers}")
    if results not in get_args(ray_engine.Results):
        raise unknown("way of results", results, get_args(ray_engine.Results))
    if (engine == "slurm") != (write_script is not None):
        raise DomainwiseError("--engine slurm writes a script and --write-script says where: give both or neither")
    settings = {
        "network": network,
        "weights": weights,
        "batch_norm": batch_norm,
        "augment": augment,
        "dataset_options": {
            **({} if image_size is None else {"image_size": image_size}),
            **({"skip_broken": True} if skip_broken else {}),
            **literals(dataset_option or [], "--dataset-option"),
        },
        "train_domains": tuple(train_domains or ()),
        "steps": steps,
        "record_every": record_every,
        "batch_size": batch_size,
        "dropout": dropout,
        "evaluate": evaluate,
        "precision": precision,
    }
    spec = SweepSpec(
        datasets=_names(datasets),
        algorithms=_names(algorithms),
        selection=_names(selection) or ("training_domain",),
        draws=draws,
        trials=trials,
        space=space,
        test_domains=tuple(test_domains or ()),
        settings={name: value for name, value in settings.items() if value not in (None, {}, ())},
    )
    spec = replace(spec, hparams=_hparams(spec, pairs(hparam or [], "--hparam")))
    folder = SweepFolder(output or _default_folder(spec))
    where: dict[str, Any] = {"device": device, "logger": logger}
    console = Console()
    with DataProgress(console) as data:
        runs = [
            replace(run, config=replace(run.config, **where))
            for run in plan(spec, folder.path, data_dir, on_data=data.report)
        ]
    if dry_run:
        tell(runs, folder, workers, console)
        return
    with folder.locked():
        folder.claim(spec)
        folder.write_plan(runs)
        if write_script is not None:
            to_do = [run for run, now in zip(runs, folder.standings(), strict=True) if now.state != "done"]
            commands = write_slurm_script(write_script, to_do, at_once=workers)
            console.print(f"{len(to_do)} jobs in {write_script}, their commands in {commands}", highlight=False)
            return
        conductor = Conductor(
            engine_named(engine, workers, address, gpus_per_run, results), steps, retry_failed, console
        )
        conductor.carry_out(runs, folder)
    if best_on_more_seeds:
        conductor.repeat_best(spec, runs, folder, range(trials, trials + best_on_more_seeds))


@app.command(epilog="Example:\n\ndomainwise sweep status runs/pacs")
def status(folder: Annotated[Path, typer.Argument(help="The folder of a sweep.")]) -> None:
    """Show how many runs of a sweep are done, running, failed (and why) and still to do."""
    sweep_folder = SweepFolder(folder)
    planned = sweep_folder.read_plan()
    if not planned:
        raise DomainwiseError(f"the sweep in {folder} has no plan yet")
    names = {Path(run.run).name: f"{run.algorithm} on {run.dataset}" for run in planned}
    standings = {now.run: now for now in sweep_folder.standings()}
    console = Console()
    console.print(counts_table(names, standings))
    for now in standings.values():
        if now.state == "running":
            console.print(f"running, {now.step} steps recorded: {now.run}", highlight=False, soft_wrap=True)
    for now in standings.values():
        if now.state == "failed":
            console.print(f"[red]failed[/red]: {now.run}: {now.error}", highlight=False, soft_wrap=True)


def _names(words: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(name.strip() for word in words or () for name in word.split(",") if name.strip())


def _hparams(spec: SweepSpec, words: dict[str, str]) -> dict[str, Any]:
    """Values for the methods that have them; one that no method has is a mistake."""
    values: dict[str, Any] = {}
    known: dict[str, None] = {}
    for algorithm in spec.algorithms:
        hparams_class = spec.config(spec.datasets[0], algorithm).algorithm_class().Hparams
        known |= dict.fromkeys(hparams_class.names())
        values |= hparams_class.parse({name: word for name, word in words.items() if name in hparams_class.names()})
    for name in words:
        if name not in values:
            raise unknown("hyperparameter", name, known)
    return values


def _default_folder(spec: SweepSpec) -> Path:
    names = "-".join(RunConfig(dataset=given).dataset_name for given in spec.datasets[:3])
    return Path("runs") / f"sweep-{names.replace(':', '.')}-{seed_hash(spec.as_toml()):08x}"


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
        return local_engine.run_all(configs, workers=workers, watch=watch)

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
