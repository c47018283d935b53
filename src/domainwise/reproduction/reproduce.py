"""A recipe from its runs to what there is to say about it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from domainwise.explain.gradcam import find_target_layer
from domainwise.explain.perturbations import measure_ranks
from domainwise.explain.plots.accuracy import plot_accuracy_by_epsilon
from domainwise.explain.plots.gradcam import plot_gradcam, sample_examples
from domainwise.explain.plots.perturbations import plot_ranks
from domainwise.explain.robustness import read_accuracy_by_epsilon
from domainwise.reports.footnotes import pluralize
from domainwise.reports.html.page import TextTable
from domainwise.reports.published import load_published_tables
from domainwise.reproduction.comparison import Compared, beside_the_paper, chosen_of, ordered
from domainwise.reproduction.memory import judged_costs, measured_costs
from domainwise.reproduction.plan import Part, RecipePlan
from domainwise.reproduction.settings_figure import plot_accuracy_by_setting
from domainwise.reproduction.verdict import Judged, judged
from domainwise.storage.run_folder import RunFolder
from domainwise.theory import ClaimCheck, check_claims, plot_theory
from domainwise.training.loading import OpenRun, open_run

# A side of Grad-CAM's map below this is hardly finer than the image as a whole.
_CELLS = 4


@dataclass(frozen=True)
class Reproduced:
    """What came out: tables in words, figures by name, and notes on what is missing."""

    tables: tuple[TextTable, ...]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def reproduced(plan: RecipePlan, data_dir: Path | None = None) -> Reproduced:
    """What the recipe's finished runs, or its calculation, say."""
    notes = [_size(plan)] if plan.parts else []
    if missing := len(plan.runs) - len({folder for part in plan.parts for folder in _done(part)}):
        notes.append(
            f"{missing} of {pluralize(len(plan.runs), 'run')} are not done; a trial counts with all its domains"
        )
    notes += [f"{name} is left out: {why}" for name, why in plan.left_out.items()]
    slips = "" if plan.recipe.published is None else load_published_tables()[plan.recipe.published].note
    notes += [f"the paper's table: {slips}"] if slips else []
    notes += [plan.recipe.note] if plan.recipe.note else []
    made = _MAKERS.get(plan.recipe.kind, _table)(plan, data_dir)
    return Reproduced(made.tables, made.figures, (*notes, *made.notes))


def _table(plan: RecipePlan, data_dir: Path | None) -> Reproduced:
    chosen = chosen_of(plan)
    if chosen.is_empty():
        return Reproduced((), notes=("no run is finished",))
    return Reproduced(
        (
            accuracies(beside_the_paper(plan.recipe, chosen), _title(plan)),
            *([verdicts(judged(plan.recipe, chosen))] if plan.recipe.claims else []),
        )
    )


def _settings(plan: RecipePlan, data_dir: Path | None) -> Reproduced:
    """The table, and accuracy against what its rows vary."""
    table = _table(plan, data_dir)
    compared = beside_the_paper(plan.recipe, chosen_of(plan))
    figures = {"against_setting": plot_accuracy_by_setting(plan.recipe, compared)} if compared else {}
    return Reproduced(table.tables, figures, table.notes)


def _scale(plan: RecipePlan, data_dir: Path | None) -> Reproduced:
    """The table, and a curve for every dataset."""
    table = _table(plan, data_dir)
    figures = {}
    for dataset in dict.fromkeys(part.dataset for part in plan.parts):
        folders = [folder for part in plan.parts if part.dataset == dataset for folder in _done(part)]
        if folders:
            figures[f"against_radius_{dataset}"] = plot_accuracy_by_epsilon(read_accuracy_by_epsilon(folders))
    return Reproduced(table.tables, figures, table.notes)


def _ranks(plan: RecipePlan, data_dir: Path | None) -> Reproduced:
    runs = _chosen_runs(plan, data_dir)
    found = [replace(each, run=row) for own in runs.values() for row, run in own.items() for each in measure_ranks(run)]
    head = ("method", "domain", "images", "rank over images", "effective", "rank of one", "effective")
    rows = [
        (
            each.method,
            each.domain,
            str(each.images),
            str(max(each.stacked)),
            f"{max(each.stacked_effective):.1f}",
            str(each.single_max),
            f"{max(each.single_effective):.1f}",
        )
        for each in found
    ]
    figures = {"ranks": plot_ranks(found)} if found else {}
    return Reproduced((TextTable(_title(plan), head, tuple(rows), 5),), figures)


def _grad_cam(plan: RecipePlan, data_dir: Path | None) -> Reproduced:
    table = _table(plan, data_dir)
    figures, cells = {}, []
    for dataset, runs in _chosen_runs(plan, data_dir).items():
        first = next(iter(runs.values()))
        layer = find_target_layer(first.model(), first.dataset.image_shape)
        few = ", too few to say where a network looks" if min(layer.height, layer.width) < _CELLS else ""
        cells.append(f"a map of Grad-CAM on {dataset} has {layer.height} x {layer.width} cells at this scale{few}")
        domain = first.roles.test[0]
        count = min(6, len(first.splits[domain].main))
        figures[f"grad_cam_{dataset}"] = plot_gradcam(runs, sample_examples(first, domain, count))
    return Reproduced(table.tables, figures, (*table.notes, *cells))


def _theory(plan: RecipePlan, data_dir: Path | None) -> Reproduced:
    return Reproduced((findings_in_words(check_claims()),), plot_theory(0.3, 1.0))


def _memory(plan: RecipePlan, data_dir: Path | None) -> Reproduced:
    settings = plan.scale.of("pacs")
    batch = settings.get("batch_size", 64)
    costs = measured_costs(settings["network"], settings["image_size"], batch)
    rows = [
        (each.method, f"{each.kept / 1e6:.1f}", f"{each.peak / 1e6:.1f}", f"{1e3 * each.seconds:.0f}") for each in costs
    ]
    size = settings["image_size"]
    title = f"A step of {settings['network']} at {size} pixels, 3 domains of {batch} images, k = 20, l = 10"
    words = TextTable(title, ("method", "perturbations, MB", "held in a step, MB", "ms a step"), tuple(rows), 3)
    return Reproduced((words, verdicts(judged_costs(costs))))


def _size(plan: RecipePlan) -> str:
    draws = {run.draw for part in plan.parts for run in part.runs}
    numbers = f"{pluralize(plan.scale.trials, 'trial')}, {pluralize(len(draws), 'draw')} of the hyperparameters"
    return f"{plan.scale.name} scale ({plan.scale.about}), {numbers}"


def _title(plan: RecipePlan) -> str:
    return f"{', '.join(plan.recipe.numbers)}: {plan.recipe.about} ({plan.scale.name} scale)"


def _done(part: Part) -> list[Path]:
    return [run.folder for run in part.runs if RunFolder(run.folder).is_done]


def _chosen_runs(plan: RecipePlan, data_dir: Path | None) -> dict[str, dict[str, OpenRun]]:
    """By dataset, for its first test domain and trial, the run that was chosen for each row, opened with its data."""
    found: dict[str, dict[str, OpenRun]] = {}
    for (dataset,), own in chosen_of(plan).group_by("dataset", maintain_order=True):
        first = own.row(0, named=True)
        same = own.filter(pl.col("test_domain") == first["test_domain"], pl.col("trial") == first["trial"])
        runs = same.select("row", "run").iter_rows()
        found[str(dataset)] = {row: open_run(run, data_dir=data_dir) for row, run in runs}
    return found


_MAKERS: Mapping[str, Callable[[RecipePlan, Path | None], Reproduced]] = {
    "settings": _settings,
    "scale": _scale,
    "ranks": _ranks,
    "grad_cam": _grad_cam,
    "theory": _theory,
    "memory": _memory,
}


def accuracies(compared: Sequence[Compared], title: str) -> TextTable:
    """Ours, the paper's, and the difference in standard errors, for every dataset; where the test domain chose, also
    what the chosen models reach in training."""
    groups = {name: [each for each in compared if each.dataset == name] for name in ordered(compared)}
    head, rows = [""], {row: [row] for row in dict.fromkeys(each.row for each in compared)}
    for name, group in groups.items():
        columns: dict[str, Callable[[Compared], str]] = {name: lambda here: _accuracy(here.ours, here.error)}
        if any(each.training is not None for each in group):
            columns["in training"] = lambda here: "" if here.training is None else f"{here.training:.1f}"
        if any(each.paper is not None for each in group):
            columns |= {"paper": _paper, "difference": _difference}
        here = {each.row: each for each in group}
        head += columns
        for row, cells in rows.items():
            cells += [cell(here[row]) if row in here else "" for cell in columns.values()]
    return TextTable(title, tuple(head), tuple(tuple(cells) for cells in rows.values()), len(head) - 1)


def verdicts(judged: Sequence[Judged]) -> TextTable:
    rows = [(each.claim.says, each.verdict, each.why) for each in judged]
    return TextTable("What the paper says", ("claim", "verdict", "because"), tuple(rows))


def findings_in_words(found: Sequence[ClaimCheck]) -> TextTable:
    rows = [(each.claim, each.verdict, each.evidence) for each in found]
    return TextTable("What the paper says", ("claim", "verdict", "because"), tuple(rows))


def _paper(here: Compared) -> str:
    return "" if here.paper is None else _accuracy(here.paper, here.paper_error)


def _difference(here: Compared) -> str:
    if here.difference is None:
        return ""
    if here.in_errors is None:
        return f"{here.difference:+.1f}"
    # One trial has no error of its own: what is counted then is less than the whole doubt.
    whose = "errors" if here.error is not None else "of the paper's errors"
    return f"{here.difference:+.1f} ({here.in_errors:+.1f} {whose})"


def _accuracy(mean: float, error: float | None) -> str:
    return f"{mean:.1f}" if error is None else f"{mean:.1f} ± {error:.1f}"
