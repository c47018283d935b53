"""`domainwise sweep`: compare methods, from the plan to the finished runs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from domainwise.cli.console import (
    DataProgress,
    PlainConsole,
    SweepProgress,
    format_duration,
    interruptible,
    make_console,
    print_json,
    print_line,
    print_table,
    print_text,
    show_status,
    status_table,
)
from domainwise.cli.options import AsJson, Budget, Quiet, Workers, add_run_options, keep_lines, parse_pairs
from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.selection.verdicts import MARGIN, Judgement
from domainwise.storage.run_folder import RunFolder, RunStatus
from domainwise.storage.sweep_folder import PlannedRun, SweepFolder

if TYPE_CHECKING:
    from domainwise.sweeps.plan import Plan
    from domainwise.sweeps.race import Race
    from domainwise.sweeps.runner import SweepOutcome
    from domainwise.sweeps.spec import Search, SweepSpec

EXAMPLES = """
Examples:

domainwise sweep --dataset silhouettes --algorithm erm --algorithm mat --draws 3 --trials 3 --steps 300 -o runs/first

domainwise sweep --dataset silhouettes --algorithm erm --algorithm mat --draws 8 --search race --record-every 30

domainwise sweep --dataset silhouettes --algorithm uat --algorithm ldat --grid epsilon=.1,.5,2,8 --trials 3

domainwise sweep --dataset pacs --algorithm erm --algorithm mat --algorithm coral --until-decided --budget 3h

domainwise sweep --dataset pacs --dataset vlcs --algorithm erm --algorithm mat --space paper --draws 8 --dry-run

domainwise sweep --dataset pacs --algorithm erm --selection training_domain --selection leave_one_out

domainwise sweep --dataset pacs --algorithm erm --algorithm mat --engine ray --address auto --gpus-per-run 0.5

domainwise sweep --dataset pacs --algorithm erm --algorithm mat --engine slurm --write-script pacs.sh

domainwise sweep status runs/pacs
"""

app = typer.Typer(invoke_without_command=True, no_args_is_help=True, epilog=keep_lines(EXAMPLES), rich_markup_mode=None)


def _run_settings() -> list[str]:
    from domainwise.sweeps.spec import PLACEMENT_SETTINGS, SHARED_SETTINGS

    return [*SHARED_SETTINGS, *PLACEMENT_SETTINGS]


@app.callback()
@add_run_options(_run_settings(), is_default_none=True)
def sweep(
    settings: dict[str, Any],
    context: typer.Context,
    dataset: Annotated[list[str] | None, typer.Option(help="Dataset, as for `domainwise train`. Repeatable.")] = None,
    algorithm: Annotated[list[str] | None, typer.Option(help="Method, as for `domainwise train`. Repeatable.")] = None,
    selection: Annotated[
        list[str] | None,
        typer.Option(
            help="Model selection: training_domain (default), one_standard_error, attacked_holdout, leave_one_out "
            "(many more runs), test_domain or ood_validation. Repeatable."
        ),
    ] = None,
    draws: Annotated[
        int | None, typer.Option(help="Hyperparameter draws per trial; the first is the defaults (default: 1).")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="Try these values of a hyperparameter, name=value,value,..., instead of random draws. Repeatable: all "
            "combinations. Ends with a recommendation."
        ),
    ] = None,
    search: Annotated[
        str,
        typer.Option(
            help="random (train all draws to the end) or race (stop draws that fall behind early by their holdout "
            "accuracy: at most 45 % of the steps with 8 or more draws)."
        ),
    ] = "random",
    trials: Annotated[
        int | None,
        typer.Option(help="Repetitions with different seeds (default: 1; at most 100 with --until-decided)."),
    ] = None,
    until_decided: Annotated[
        bool,
        typer.Option(
            "--until-decided",
            help="Add trials until it is decided for every method whether it is above --compare-to, or the budget is "
            "spent. Rerun to continue.",
        ),
    ] = False,
    budget: Budget = None,
    compare_to: Annotated[str, typer.Option(help="The method that --until-decided compares the others with.")] = "erm",
    margin: Annotated[
        float, typer.Option(help="Largest difference without practical importance, in points, for --until-decided.")
    ] = MARGIN,
    space: Annotated[
        str,
        typer.Option(help="Search space: domainbed, diwa, paper, paper:DATASET (as for it), or a TOML file."),
    ] = "domainbed",
    test_domain: Annotated[
        list[str] | None, typer.Option(help="Hold out only this domain (default: each in turn). Repeatable.")
    ] = None,
    hparam: Annotated[
        list[str] | None,
        typer.Option(
            "--hparam", "-H", help="Fix a hyperparameter, name=value, for the methods that have it. Repeatable."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="local (worker processes), ray or slurm.")] = "local",
    workers: Workers = 2,
    address: Annotated[str | None, typer.Option(help="Ray cluster address (default: start a local one).")] = None,
    gpus_per_run: Annotated[float, typer.Option(help="GPUs that Ray reserves per run; may be a fraction.")] = 0.0,
    results: Annotated[
        str,
        typer.Option(help="How Ray workers return results: shared (same file system), pulled (copied back) or auto."),
    ] = "auto",
    write_script: Annotated[Path | None, typer.Option(help="SLURM script to write.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Sweep folder (default: a new name in runs/).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the number of runs, the estimated time and one command.")
    ] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed runs again.")] = False,
    best_on_more_seeds: Annotated[
        int,
        typer.Option(help="Then repeat the selected runs with this many new seeds, in a folder of their own."),
    ] = 0,
    quiet: Quiet = False,
) -> None:
    """Run every run that a fair comparison of methods needs. Rerun the same command to resume.

    The same folder also takes a larger sweep: more draws (unless they race), trials, methods or datasets. `domainwise
    report` prints the tables.
    """
    if context.invoked_subcommand is not None:
        return
    from domainwise.sweeps.fork_server import start_fork_server
    from domainwise.sweeps.spec import SHARED_SETTINGS, SweepSpec

    if grid and draws is not None:
        raise DomainwiseError("--draws and --grid cannot be used together: every point of the grid is one draw")
    if not until_decided and budget is not None:
        raise DomainwiseError("--budget is for --until-decided; give both, or --trials")
    if until_decided and (engine == "slurm" or best_on_more_seeds or dry_run):
        raise DomainwiseError("--until-decided excludes --engine slurm, --best-on-more-seeds and --dry-run")
    if (engine == "slurm") != (write_script is not None):
        raise DomainwiseError("--engine slurm and --write-script FILE must be given together")
    if engine == "slurm" and search == "race":
        raise DomainwiseError(
            "--search race needs --engine local or ray: the jobs of an array do not wait for each other"
        )
    placement = {name: value for name, value in settings.items() if name not in SHARED_SETTINGS}
    spec = SweepSpec(
        datasets=tuple(dataset or ()),
        algorithms=tuple(algorithm or ()),
        selection=tuple(selection or ("training_domain",)),
        draws=1 if draws is None else draws,
        trials=1 if trials is None else trials,
        space=space,
        test_domains=tuple(test_domain or ()),
        settings={name: value for name, value in settings.items() if name in SHARED_SETTINGS},
        search=cast("Search", search if grid is None else "random"),
    )
    if engine == "local" and not dry_run:
        start_fork_server()  # it imports torch while this process does
    from domainwise.sweeps.runner import SweepCallbacks, make_engine, repeat_best, run_sweep

    spec = replace(
        spec,
        hparams=_parse_hparams(spec, parse_pairs(hparam or [], "--hparam")),
        grid=_parse_grid(spec, grid or []),
        search=cast("Search", search),
    )
    folder = output or _default_folder(spec)
    console = make_console(quiet)
    if dry_run:
        _print_estimate(spec, folder, placement, workers, console)
        return
    if write_script is not None:
        _write_slurm(spec, folder, placement, write_script, workers, console)
        return
    runner = make_engine(engine, workers=workers, address=address, gpus_per_run=gpus_per_run, results=results)
    steps = spec.settings.get("steps")
    progress_console = make_console(quiet, stderr=True)
    with (
        DataProgress(progress_console) as data,
        SweepProgress((), steps, progress_console) as progress,
        interruptible() as is_interrupted,
    ):

        def on_plan(plan: "Plan") -> None:
            data.stop()
            progress.restart(plan)

        def on_note(note: str) -> None:
            progress_console.print_line(note)

        def on_race(races: "Sequence[Race]") -> None:
            for note in filter(None, dict.fromkeys(race.describe() for race in races)):
                on_note(note)
            shares = [steps / race.steps for race in races for steps in race.expected_steps]
            progress.expect(races[0].steps, shares)

        callbacks = SweepCallbacks(data.report, on_plan, progress.update, is_interrupted, on_race, on_note)
        if until_decided:
            from domainwise.sweeps.decision import MAX_TRIALS, run_sweep_until_decided

            decision = run_sweep_until_decided(
                spec,
                folder,
                baseline=compare_to,
                budget=budget,
                margin=margin,
                engine=runner,
                workers=workers,
                placement=placement,
                max_trials=trials or MAX_TRIALS,
                retry_failed=retry_failed,
                callbacks=callbacks,
            )
            progress.live.stop()
            print_judgements(decision.judgements, f"above {compare_to}")
            console.print_line((decision.reason, "bold"), f"; runs in {folder}")
            return
        outcomes = {
            folder: run_sweep(
                spec, folder, engine=runner, placement=placement, retry_failed=retry_failed, callbacks=callbacks
            )
        }
        if best_on_more_seeds:
            seeds = range(spec.trials, spec.trials + best_on_more_seeds)
            outcomes |= repeat_best(spec, folder, seeds, engine=runner, placement=placement, callbacks=callbacks)
    if spec.grid and not quiet and outcomes[folder].done:
        _print_recommendations(folder)
    _print_outcomes(outcomes, console)


@app.command(epilog=keep_lines("Example:\ndomainwise sweep recommend runs/radii"))
def recommend(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep with --grid.")], as_json: AsJson = False
) -> None:
    """Show which point of a sweep's grid each selection rule picks, and which one to use. Looks at no test domain."""
    if not as_json:
        _print_recommendations(folder)
        return
    from dataclasses import asdict

    from domainwise.selection import recommend

    print_json([asdict(each) for each in recommend(folder)])


@app.command(epilog=keep_lines("Example:\ndomainwise sweep status runs/pacs"))
def status(folder: Annotated[Path, typer.Argument(help="Sweep folder.")], as_json: AsJson = False) -> None:
    """Show how many runs of a sweep are done, stopped by a race or failed (and why), running, unfinished, pending."""
    statuses = SweepFolder(folder).read_statuses()
    if not statuses:
        raise DomainwiseError(f"the sweep in {folder} has no plan yet")
    if as_json:
        print_json([_as_plain(run, each) for run, each in statuses.items()])
        return
    console = make_console()
    console.print(status_table(statuses))
    for run, each in statuses.items():
        if each.state == "running":
            console.print_line(f"running, {each.step} steps recorded: {run.name}")
    for run, each in statuses.items():
        if each.state == "stopped":
            console.print_line(f"stopped {each.reason}: {run.name}")
    for run, each in statuses.items():
        if each.state == "failed":
            console.print_line(("failed", "red"), f": {run.name}: {each.error}")


def _as_plain(run: PlannedRun, status: RunStatus) -> dict[str, Any]:
    values = {name: value for name, value in vars(run).items() if name not in ("folder", "name")}
    return {"run": run.name, **values, **vars(status)}


def _print_estimate(
    spec: "SweepSpec", folder: Path, placement: Mapping[str, Any], workers: int, console: PlainConsole
) -> None:
    from domainwise.sweeps.plan import plan_sweep
    from domainwise.sweeps.race import plan_races
    from domainwise.sweeps.time_estimate import RunCosts, describe_unmeasured, estimate_seconds
    from domainwise.training.command import train_command
    from domainwise.training.registry import DatasetCache

    datasets = DatasetCache()
    with DataProgress(console) as data:
        plan = plan_sweep(spec, folder, placement=placement, on_data=data.report, datasets=datasets)
    ended = {run for run in plan if RunFolder(run.folder).read_stored_status().state in ("done", "stopped")}
    configs = [config for run, config in plan.items() if run not in ended]
    console.print_line(f"{len(plan)} runs, {len(ended)} done, in {folder}")
    if spec.search == "race":
        races = plan_races(plan, spec.selection, datasets)
        configs = [config for race in races for config in race.expect_configs(ended)]
        for note in filter(None, dict.fromkeys(race.describe() for race in races)):
            console.print_line(note)
    if not configs:
        return
    costs: RunCosts = {}
    with show_status(console, "measuring a few steps") as update:
        seconds = estimate_seconds(
            configs, workers, lambda task: update(f"measuring a few steps of {task}"), costs, datasets
        )
    console.print_line(f"estimated: {format_duration(seconds)} on this machine, {workers} runs at a time")
    if note := describe_unmeasured(configs, costs):
        console.print_line(note)
    command = train_command(next(config for run, config in plan.items() if run not in ended))
    console.print_line(f"for example: {command}")


def _write_slurm(
    spec: "SweepSpec", folder: Path, placement: Mapping[str, Any], script: Path, workers: int, console: PlainConsole
) -> None:
    from domainwise.sweeps.plan import plan_sweep
    from domainwise.sweeps.slurm import write_slurm_script

    with DataProgress(console) as data:
        plan = plan_sweep(spec, folder, placement=placement, on_data=data.report)
    sweep_folder = SweepFolder(folder)
    with sweep_folder.lock():
        spec.claim(sweep_folder)
        sweep_folder.write_plan(plan)
    configs = [config for run, config in plan.items() if not RunFolder(run.folder).is_done]
    commands = write_slurm_script(script, configs, max_jobs=workers)
    console.print_line(f"wrote {script} with {len(configs)} jobs, their commands in {commands}")


def _print_recommendations(folder: Path) -> None:
    from domainwise.selection import recommend
    from domainwise.selection.recommendation import RULES, SCORES
    from domainwise.selection.statistics import format_percent

    stopped = sum(status.state == "stopped" for status in SweepFolder(folder).read_statuses().values())
    for each in recommend(folder):
        scores = [name for name in SCORES if any(name in point.scores for point in each.points)]
        rows = [
            [
                point.name,
                *(
                    format_percent(score.mean, score.error) if (score := point.scores.get(name)) else ""
                    for name in scores
                ),
                ", ".join(f"{rule} ({point.picks[rule]:.0%})" for rule in RULES if rule in point.picks),
            ]
            for point in each.points
        ]
        print_line(f"{each.algorithm} on {each.dataset}, mean ± standard error over runs, in percent")
        print_table(["", *(SCORES[name] for name in scores), "selected by (share of runs)"], rows)
        print_line(f"recommended: {each.recommended.name} ({each.reason})")
        print_text()
    if stopped:
        print_text(f"{stopped} runs were stopped early by racing and are not in these numbers\n")


def print_judgements(judgements: Mapping[str, Judgement], claim: str) -> None:
    """Print the verdict on each claim, with its interval and what is missing."""
    from domainwise.reports.significance import describe_problems

    rows = [
        (
            name,
            "" if each.estimate is None else f"{each.estimate:+z.1f}",
            each.format_interval(),
            str(each.trials),
            each.verdict,
            "" if each.trials_needed is None else f"{each.trials_needed} trials",
        )
        for name, each in judgements.items()
    ]
    print_table((claim, "points", "interval", "trials", "verdict", "needed for 80 % power"), rows)
    for name, each in judgements.items():
        if not each.paired.is_sound:
            print_line(f"{name}: {describe_problems(each)}")


def _print_outcomes(outcomes: "Mapping[Path, SweepOutcome]", console: PlainConsole) -> None:
    for folder, outcome in outcomes.items():
        total = outcome.done + outcome.failed + outcome.stopped
        stopped = f" ({outcome.stopped} stopped early)" if outcome.stopped else ""
        console.print_line(("done", "bold"), f": {outcome.done} of {total} runs{stopped} in {folder}")
        if outcome.failed:
            hint = f"see `domainwise sweep status {folder}`, and use --retry-failed to run them again"
            console.print_line(("failed", "red"), f": {outcome.failed}; {hint}")
    if any(outcome.failed for outcome in outcomes.values()):
        raise typer.Exit(1)


def _parse_hparams(spec: "SweepSpec", pairs: dict[str, str]) -> dict[str, Any]:
    """Parse values for the methods that have them; a name that no method has is an error."""
    values: dict[str, Any] = {}
    names: dict[str, None] = {}
    for algorithm in spec.algorithms:
        hparams_class = spec.hparams_class(algorithm)
        names |= dict.fromkeys(hparams_class.fields())
        values |= hparams_class.parse({name: word for name, word in pairs.items() if name in hparams_class.fields()})
    for name in pairs:
        if name not in values:
            raise unknown_choice("hyperparameter", name, names)
    return values


def _parse_grid(spec: "SweepSpec", options: list[str]) -> dict[str, tuple[Any, ...]]:
    """Parse `["epsilon=.1,.5"]` to `{"epsilon": (0.1, 0.5)}`."""
    grid: dict[str, tuple[Any, ...]] = {}
    for option in options:
        name, equals, text = map(str.strip, option.partition("="))
        words = [word.strip() for word in text.split(",")]
        if not equals or not all((name, *words)):
            raise DomainwiseError(f"--grid expects name=value,value,..., got {option!r}")
        if name in grid:
            raise DomainwiseError(f"--grid {name} is given twice; list all its values in one")
        grid[name] = tuple(_parse_hparams(spec, {name: word})[name] for word in words)
    return grid


def _default_folder(spec: "SweepSpec") -> Path:
    from domainwise.seeds import seed_hash
    from domainwise.training.registry import dataset_name

    names = "-".join(dataset_name(name) for name in spec.datasets[:3])
    return Path("runs") / f"sweep-{names.replace(':', '.').replace('/', '.')}-{seed_hash(repr(spec.as_plain())):08x}"
