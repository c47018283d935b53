"""`study`: which method to use for one's own images, how much better than ERM it is, and how sure that is."""

import json
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from domainwise.data import Dataset
from domainwise.data.dataset import split_domains
from domainwise.errors import DomainwiseError
from domainwise.explain.plots.accuracy import plot_differences
from domainwise.figures import render_figure, write_figure
from domainwise.reports.formats import format_markdown_table
from domainwise.reports.html import Answer, Picture, TextTable, write_page
from domainwise.reports.significance import describe_problems
from domainwise.reproduction.comparison import select_models
from domainwise.reproduction.plan import RecipePlan, plan_recipe
from domainwise.reproduction.recipe import Block, Claim, Recipe, Row, Scale
from domainwise.reproduction.runner import ReproductionCallbacks, decide_claims
from domainwise.selection.statistics import estimate_mean, format_percent, pluralize
from domainwise.selection.verdicts import MARGIN, Judgement, check_margin
from domainwise.storage.files import read_regular, write_atomic
from domainwise.storage.sweep_folder import SweepFolder
from domainwise.sweeps.decision import MAX_TRIALS, Decision, parse_budget, rank_open_claims
from domainwise.sweeps.engine import Engine
from domainwise.sweeps.time_estimate import RunCosts, estimate_seconds
from domainwise.training.command import train_command
from domainwise.training.config import RunConfig
from domainwise.training.domain_shift import ShiftReport, measure_domain_shift
from domainwise.training.registry import DatasetCache

BASELINE = "erm"
# Radii that are hardly visible, and the same whatever the size of the images.
RADII = ("0.25/255 rms", "1/255 rms")
METHODS = ("mixup", "coral")
PERTURBED = ("uat", "mat", "ldat")
# All methods get two trials, the better half four, the best quarter as many as fit.
_TRIALS_OF_ALL, _TRIALS_OF_HALF = 2, 4
# What a study should be able to afford per held-out domain, in runs of ERM: about six trials of the best methods.
_RUNS_PER_DOMAIN = 60
_MIN_STEPS = 30
# Share of the budget that is kept for the page.
_RESERVE = 0.04
_SETTINGS_FILE, _SHIFT_FILE = "study.json", "shift.json"


@dataclass(frozen=True)
class Study:
    """What a study found.

    Args:
        recommended: name of the method to use, with its radius.
        advice: one or two sentences: what to use, how much better it is and how sure.
        judgements: what is known about "method is above ERM", by method.
        shift: how far apart the domains are.
        commands: how to train the final model on all domains, and predict with it.
        files: the files that were written: Markdown, a picture and the page if there are runs.
    """

    dataset: str
    recommended: str
    advice: str
    judgements: Mapping[str, Judgement]
    shift: ShiftReport | None
    notes: tuple[str, ...]
    commands: tuple[str, ...]
    tables: tuple[TextTable, ...]
    files: tuple[Path, ...]


def study(
    dataset: str | Path,
    output: str | Path = "runs/study",
    *,
    budget: str | float = "1h",
    network: str | None = None,
    weights: str | Path | None = None,
    image_size: int | None = None,
    batch_size: int | None = None,
    steps: int | None = None,
    max_trials: int = MAX_TRIALS,
    margin: float = MARGIN,
    data_dir: str | Path | None = None,
    device: str = "auto",
    workers: int = 2,
    engine: Engine | None = None,
    callbacks: ReproductionCallbacks | None = None,
) -> Study:
    """Find out which method to use for images of one's own, within a time budget; call it again to continue.

    Each domain is held out in turn. Methods are compared on the domains that they have not seen; which of a run's
    models counts is decided by the training domains' holdouts alone. Methods that fall behind get no more trials.

    Args:
        dataset: a folder root/domain/class/image, a CSV file with columns path, label, domain, or a dataset's name.
        output: folder for runs and results.
        budget: a duration such as `60min`, or seconds.
        network, weights, image_size, batch_size: as for `domainwise train` (default: the dataset's).
        steps: updates per run (default: what lets the budget pay for about six trials of the best methods).
        max_trials: per method.
        margin: largest difference without practical importance, in points.
        workers: number of runs at a time.
    """
    start, seconds = time.monotonic(), parse_budget(budget)
    check_margin(margin)
    callbacks = callbacks or ReproductionCallbacks()
    folder = SweepFolder(output)
    options = {"image_size": image_size} if image_size is not None else {}
    given = {"network": network, "weights": weights, "batch_size": batch_size, "dataset_options": options}
    settings = {name: value for name, value in given.items() if value not in (None, {})}
    cache = DatasetCache()
    config = RunConfig.of(dataset=dataset, algorithm=BASELINE, data_dir=data_dir, device=device, **settings)
    built = cache.build(config, callbacks.on_data)
    notes = check_data(built)
    stated: dict[str, Any] = {"dataset": built.name, **{name: str(settings.get(name, "default")) for name in given}}
    if steps is not None:
        stated["steps"] = steps
    with folder.lock():
        stored = _read_settings(folder, stated)
        if len(built.domains) == 1:
            return _describe_single_domain(config, built, folder.path, notes)
        shift = _measure_shift(built, folder.path, config, callbacks, is_stored=bool(stored))
        if steps is None:
            steps = int(stored["steps"]) if "steps" in stored else _choose_steps(config, built, seconds, workers, cache)
        write_atomic(folder.path / _SETTINGS_FILE, json.dumps({**stated, "steps": steps}, indent=2).encode())
        plan = _plan_study(built, config, settings, steps, folder.path, margin, callbacks, cache)
        decision = decide_claims(
            [plan],
            engine=engine,
            budget=max(1.0, (1 - _RESERVE) * seconds - (time.monotonic() - start)),
            workers=workers,
            max_trials=max_trials,
            rank=rank_by_promise,
            callbacks=callbacks,
        )
        return _write_study(plan.limit_trials(), decision, config, steps, built, shift, notes, folder.path)


def rank_by_promise(judgements: Mapping[str, Judgement], max_trials: int = MAX_TRIALS) -> list[str]:
    """Return the open claims that get another trial: the fewer trials so far and the larger the estimate, the sooner.

    All get two trials. Then only the half with the largest estimates gets more, and after four only the best quarter.
    """
    by_estimate = sorted(judgements, key=lambda claim: -(judgements[claim].estimate or 0.0))
    half, quarter = math.ceil(len(by_estimate) / 2), math.ceil(len(by_estimate) / 4)
    limits = {
        claim: max_trials if place < quarter else _TRIALS_OF_HALF if place < half else _TRIALS_OF_ALL
        for place, claim in enumerate(by_estimate)
    }
    still_open = [name for name in rank_open_claims(judgements, max_trials) if judgements[name].trials < limits[name]]
    return sorted(still_open, key=lambda claim: (judgements[claim].trials, by_estimate.index(claim)))


def list_rows(dataset: Dataset) -> list[Row]:
    """Return the methods that a study compares, the baseline first."""
    flipped = "erm, not augmented" if dataset.is_augmented else "erm, augmented"
    rows = [Row(BASELINE, "erm"), Row(flipped, "erm", settings={"augment": not dataset.is_augmented})]
    if len(dataset.domains) > 2:  # these compare domains, so at least two must be left to train on
        rows += [Row(name, name) for name in METHODS]
    rows += [Row(f"{name}, {radius}", name, hparams={"epsilon": radius}) for radius in RADII for name in PERTURBED]
    return [replace(row, space="domainbed") for row in rows]


def check_data(dataset: Dataset) -> list[str]:
    """Return what a reader should know about the data; raise an error if there is nothing to select models by."""
    notes = []
    for name, split in split_domains(dataset, 0).items():
        if len(split.holdout) == 0:
            count = len(split.main)
            raise DomainwiseError(
                f"domain {name!r} has only {count} images, too few for a holdout to select models by; add images or "
                "leave the domain out"
            )
    for domain in dataset.domains:
        counts = domain.labels.bincount(minlength=len(dataset.classes)).tolist()
        missing = [name for name, count in zip(dataset.classes, counts, strict=True) if count == 0]
        if missing:
            notes.append(f"domain {domain.name!r} has no images of {', '.join(missing)}")
    return notes


def _read_settings(folder: SweepFolder, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the study is about, which must be as stated; empty if none of its runs has begun."""
    if folder.plan_file.exists():
        raise DomainwiseError(f"{folder.path} contains a sweep; choose another --output")
    file = folder.path / _SETTINGS_FILE
    stored = _read_json(file) if file.exists() and folder.has_begun else {}
    for name in stored.keys() & stated.keys():
        if stored[name] != stated[name]:
            raise DomainwiseError(
                f"the study in {folder.path} has {name} {stored[name]}, not {stated[name]}; choose another --output"
            )
    return stored


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(read_regular(file)))
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> DomainwiseError:
    return DomainwiseError(f"{file} is damaged: {error}; restore it, or delete it")


def _measure_shift(
    dataset: Dataset, folder: Path, config: RunConfig, callbacks: ReproductionCallbacks, *, is_stored: bool
) -> ShiftReport | None:
    """Return the shift between the domains, measured once; None if there are too few images."""
    file = folder / _SHIFT_FILE
    if is_stored and file.exists():
        try:
            return msgspec.convert(_read_json(file), ShiftReport)
        except msgspec.ValidationError as error:
            raise _damaged(file, error) from error
    try:
        shift = measure_domain_shift(
            dataset, weights=config.weights, device=config.device, on_progress=callbacks.on_data
        )
    except DomainwiseError as error:
        callbacks.on_note(f"the shift between domains could not be measured: {error}")
        return None
    write_atomic(file, json.dumps(asdict(shift), indent=2).encode())
    return shift


def _choose_steps(config: RunConfig, dataset: Dataset, budget: float, workers: int, cache: DatasetCache) -> int:
    """Return the number of updates per run that suits the budget."""
    probe = replace(config, test_domains=_first_test_domains(dataset), steps=1, record_every=1)
    costs: RunCosts = {}
    estimate_seconds([probe], workers, costs=costs, datasets=cache)
    (cost,) = costs.values()
    batch_size = config.batch_size or int(dataset.defaults.get("batch_size", 32))
    folds = sum(domain.role in (None, "test") for domain in dataset.domains) if _is_free(dataset) else 1
    seconds_per_run = budget * workers / (_RUNS_PER_DOMAIN * folds)
    affordable = (seconds_per_run - cost.start - cost.record) / (cost.image * batch_size)
    return int(min(max(affordable, _MIN_STEPS), dataset.steps))


def _is_free(dataset: Dataset) -> bool:
    """Return whether every domain can be held out in turn."""
    return all(domain.role is None for domain in dataset.domains)


def _first_test_domains(dataset: Dataset) -> tuple[str, ...]:
    return (dataset.domain_names[0],) if _is_free(dataset) else ()


def _plan_study(
    dataset: Dataset,
    config: RunConfig,
    settings: Mapping[str, Any],
    steps: int,
    folder: Path,
    margin: float,
    callbacks: ReproductionCallbacks,
    cache: DatasetCache,
) -> RecipePlan:
    rows = list_rows(dataset)
    name = str(config.dataset)
    recipe = Recipe(
        key="study",
        name="study",
        about=f"which method to use for {dataset.name}",
        rows=tuple(rows),
        blocks=(Block((name,), "training_domain"),),
        claims=tuple(Claim(row.name, row.name, BASELINE, (dataset.name,)) for row in rows[1:]),
        margin=margin,
    )
    # Half of the records that a long run would have: a short run learns throughout.
    own = {**settings, "steps": steps, "record_every": max(1, steps // 2)}
    scale = Scale("study", f"{steps} steps per run", MAX_TRIALS, 1, False, {}, {name: own})
    plan = plan_recipe(
        recipe,
        scale,
        folder,
        folder / "runs",
        data_dir=None if config.data_dir is None else Path(config.data_dir),
        device=config.device,
        on_data=callbacks.on_data,
        cache=cache,
        is_sequential=True,
    )
    for reason in plan.skipped.values():
        raise DomainwiseError(reason)
    return plan


def _write_study(
    plan: RecipePlan,
    decision: Decision,
    config: RunConfig,
    steps: int,
    dataset: Dataset,
    shift: ShiftReport | None,
    notes: Sequence[str],
    folder: Path,
) -> Study:
    judgements = decision.judgements
    recommended, advice = recommend_method(judgements)
    row = next(each for each in plan.recipe.rows if each.name == recommended)
    final = replace(
        config,
        algorithm=row.algorithm,
        hparams=row.hparams,
        augment=row.settings.get("augment"),
        train_domains=dataset.domain_names if _is_free(dataset) else (),
        output=folder / "final",
        data_dir=config.data_dir,
    )
    commands = _list_commands(final)
    tables = [_tabulate_methods(plan, judgements), _tabulate_domains(dataset, notes)]
    tables += [_tabulate_shift(shift)] if shift is not None else []
    held_out = "each domain held out in turn" if _is_free(dataset) else "tested on the dataset's test domains"
    how = [f"{decision.reason.capitalize()}. {steps} steps per run, {held_out}."]
    if steps < dataset.steps:
        how.append(
            f"The final model is trained for {dataset.steps} steps. Methods were compared after {steps}, as the budget "
            "allowed; with more steps they may differ."
        )
    tables[0] = replace(tables[0], notes=(*tables[0].notes, *how))
    figure = plot_differences(judgements, "accuracy on unseen domains minus ERM")
    files = [folder / "study.md", folder / "study.png"]
    write_atomic(files[0], _format_markdown(dataset, advice, commands, tables).encode())
    write_figure(files[1], figure)
    finished = [each for row_plan in plan.row_plans for each in row_plan.list_finished()]
    if finished:
        files.append(folder / "study.html")
        caption = "Accuracy minus that of ERM in points, with intervals. Within the band, a difference does not matter."
        picture = Picture("Methods compared with ERM", caption, caption, png=render_figure(figure))
        write_page(
            files[-1],
            finished,
            selections=("training_domain",),
            split_variants=True,
            title=f"Which method to use for {dataset.name}?",
            answer=Answer(advice, commands, picture),
            tables=tables,
        )
    return Study(
        dataset.name, recommended, advice, judgements, shift, tuple(notes), commands, tuple(tables), tuple(files)
    )


def _list_commands(final: RunConfig) -> tuple[str, str]:
    """Return how to train the final model and how to use it."""
    return train_command(final), f"domainwise predict {shlex.quote(str(final.output))} IMAGES"


def recommend_method(judgements: Mapping[str, Judgement]) -> tuple[str, str]:
    """Return the method to use and one or two sentences about it: the best of those that are shown to be above ERM."""
    better = {name: each for name, each in judgements.items() if each.verdict == "holds"}
    if better:
        name = max(better, key=lambda each: better[each].estimate or 0.0)
        return name, f"Use {name}: {_format_gain(better[name])} above ERM on unseen domains."
    measured = {name: each for name, each in judgements.items() if each.trials}
    if not measured:
        return BASELINE, "Use plain ERM for now: the budget did not pay for a single trial of another method."
    name = max(measured, key=lambda each: measured[each].estimate or 0.0)
    best = measured[name]
    if all(each.verdict != "inconclusive" for each in judgements.values()):
        return BASELINE, "Use plain ERM: no method is better by more than the margin."
    needed = f"; {best.trials_needed} trials would decide" if best.trials_needed else ""
    if not best.paired.is_sound:
        needed = f"; {describe_problems(best)}"
    return BASELINE, (
        f"Use plain ERM for now: nothing is shown to be better. The best candidate is {name}, "
        f"{_format_gain(best)}{needed}. Rerun with a larger budget to continue."
    )


def _format_gain(judgement: Judgement) -> str:
    trials = pluralize(judgement.trials, "trial")
    return f"{judgement.estimate:+z.1f} points ({judgement.format_interval()}) over {trials}"


def _tabulate_methods(plan: RecipePlan, judgements: Mapping[str, Judgement]) -> TextTable:
    models = select_models(plan)
    header = ("method", "accuracy", "minus ERM", "interval", "trials", "verdict")
    rows = []
    for row in plan.recipe.rows:
        own = models.filter(pl.col("row") == row.name)
        by_trial = own.group_by("trial").agg(pl.col("accuracy").mean())["accuracy"].to_list()
        accuracy = ""
        if by_trial:
            estimate = estimate_mean(by_trial)
            accuracy = format_percent(estimate.mean, estimate.error)
        each = judgements.get(row.name)
        if each is None:
            rows.append((row.name, accuracy, "", "", str(len(by_trial)), "baseline"))
            continue
        points = "" if each.estimate is None else f"{each.estimate:+z.1f}"
        collapsed = "" if each.paired.is_sound else f", {each.paired.collapse_rate} trials collapsed"
        rows.append((row.name, accuracy, points, each.format_interval(), str(each.trials), each.verdict + collapsed))
    notes = (
        "Accuracy on the domains that were not trained on, in percent, ± standard error over trials. Differences are "
        "over the trials that both have; all verdicts together are right with 95 % confidence, however often you look.",
        *(f"{name}: {describe_problems(each)}." for name, each in judgements.items() if not each.paired.is_sound),
    )
    return TextTable("Methods", header, tuple(rows), notes=notes)


def _tabulate_domains(dataset: Dataset, notes: Sequence[str]) -> TextTable:
    rows = [(domain.name, str(len(domain)), str(len(domain.labels.unique()))) for domain in dataset.domains]
    return TextTable("Data", ("domain", "images", "classes"), tuple(rows), 2, tuple(notes))


def _tabulate_shift(shift: ShiftReport) -> TextTable:
    rows = [
        (
            each.domain,
            _format_shift(each.diversity, each.diversity_std),
            _format_shift(each.correlation, each.correlation_std),
            each.meaning,
        )
        for each in shift.left_out
    ]
    notes = (f"Diversity and correlation shift of OoD-Bench, from 0 to 1, by {shift.features}.", *shift.caveats)
    header = ("domain against the others", "diversity", "correlation", "meaning")
    return TextTable("How far apart the domains are", header, tuple(rows), notes=notes)


def _format_shift(value: float, spread: float | None) -> str:
    return f"{value:.2f}" if spread is None else f"{value:.2f} ± {spread:.2f}"


def _format_markdown(dataset: Dataset, advice: str, commands: Sequence[str], tables: Sequence[TextTable]) -> str:
    code = "\n".join(commands)
    parts = [f"# Which method to use for {dataset.name}?", advice, f"```sh\n{code}\n```"]
    for table in tables:
        parts.append(f"## {table.title}\n\n{format_markdown_table(table.header, table.rows, table.numeric)}")
        parts += table.notes
    return "\n\n".join(parts) + "\n"


def _describe_single_domain(config: RunConfig, dataset: Dataset, folder: Path, notes: Sequence[str]) -> Study:
    """Return what can be said about images from one domain: none can be held out to compare methods on."""
    advice = (
        "Use plain ERM with augmentation: with a single domain, none can be held out, so no method can be compared on "
        "unseen domains. Images from a second domain would make a study possible."
    )
    final = replace(config, train_domains=dataset.domain_names, augment=True, output=folder / "final")
    commands = _list_commands(final)
    table = _tabulate_domains(dataset, notes)
    file = folder / "study.md"
    write_atomic(file, _format_markdown(dataset, advice, commands, [table]).encode())
    return Study(dataset.name, BASELINE, advice, {}, None, tuple(notes), commands, (table,), (file,))
