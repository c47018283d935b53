"""A recipe from its runs to what there is to say about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from domainwise.explain.against_epsilon import draw_against_epsilon, measured
from domainwise.explain.layers import map_layer
from domainwise.explain.rank_picture import draw_ranks
from domainwise.explain.ranks import ranks
from domainwise.explain.same_images import draw_grad_cam, examples_of
from domainwise.recipes.beside import beside_the_paper
from domainwise.recipes.chosen import chosen_of
from domainwise.recipes.memory import judged_costs, measured_costs
from domainwise.recipes.plan import Part, RecipePlan
from domainwise.recipes.settings_figure import draw_against_setting
from domainwise.recipes.verdict import judged
from domainwise.recipes.words import accuracies, findings_in_words, verdicts
from domainwise.reports.footnotes import counted
from domainwise.reports.page.extra import WordTable
from domainwise.reports.published import published
from domainwise.runs.reopen import OpenRun, open_run
from domainwise.theory.figures import draw_all
from domainwise.theory.findings import findings

# A side of Grad-CAM's map below this is hardly finer than the image as a whole.
_CELLS = 4


@dataclass(frozen=True)
class Reproduced:
    """What came out: tables in words, figures by name, and notes on what is missing."""

    tables: tuple[WordTable, ...]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def reproduced(plan: RecipePlan, data_dir: Path | None = None) -> Reproduced:
    """What the recipe's finished runs, or its calculation, say."""
    notes = [_size(plan)] if plan.parts else []
    if missing := len(plan.runs) - len({folder for part in plan.parts for folder in _done(part)}):
        notes.append(f"{missing} of {counted(len(plan.runs), 'run')} are not done; a trial counts with all its domains")
    notes += [f"{name} is left out: {why}" for name, why in plan.left_out.items()]
    slips = "" if plan.recipe.published is None else published()[plan.recipe.published].note
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
    figures = {"against_setting": draw_against_setting(plan.recipe, compared)} if compared else {}
    return Reproduced(table.tables, figures, table.notes)


def _scale(plan: RecipePlan, data_dir: Path | None) -> Reproduced:
    """The table, and a curve for every dataset."""
    table = _table(plan, data_dir)
    figures = {}
    for dataset in dict.fromkeys(part.dataset for part in plan.parts):
        folders = [folder for part in plan.parts if part.dataset == dataset for folder in _done(part)]
        if folders:
            figures[f"against_radius_{dataset}"] = draw_against_epsilon(measured(folders))
    return Reproduced(table.tables, figures, table.notes)


def _ranks(plan: RecipePlan, data_dir: Path | None) -> Reproduced:
    runs = _chosen_runs(plan, data_dir)
    found = [replace(each, run=row) for own in runs.values() for row, run in own.items() for each in ranks(run)]
    head = ("method", "domain", "images", "rank over images", "effective", "rank of one", "effective")
    rows = [
        (
            each.method,
            each.domain,
            str(each.images),
            str(max(each.stacked)),
            f"{max(each.stacked_effective):.1f}",
            str(each.single_most),
            f"{max(each.single_effective):.1f}",
        )
        for each in found
    ]
    figures = {"ranks": draw_ranks(found)} if found else {}
    return Reproduced((WordTable(_title(plan), head, tuple(rows), 5),), figures)


def _grad_cam(plan: RecipePlan, data_dir: Path | None) -> Reproduced:
    table = _table(plan, data_dir)
    figures, cells = {}, []
    for dataset, runs in _chosen_runs(plan, data_dir).items():
        first = next(iter(runs.values()))
        layer = map_layer(first.model(), first.dataset.image_shape)
        few = ", too few to say where a network looks" if min(layer.height, layer.width) < _CELLS else ""
        cells.append(f"a map of Grad-CAM on {dataset} has {layer.height} x {layer.width} cells at this scale{few}")
        domain = first.roles.test[0]
        count = min(6, len(first.splits[domain].main))
        figures[f"grad_cam_{dataset}"] = draw_grad_cam(runs, examples_of(first, domain, count))
    return Reproduced(table.tables, figures, (*table.notes, *cells))


def _theory(plan: RecipePlan, data_dir: Path | None) -> Reproduced:
    return Reproduced((findings_in_words(findings()),), draw_all(0.3, 1.0))


def _memory(plan: RecipePlan, data_dir: Path | None) -> Reproduced:
    settings = plan.scale.of("pacs")
    batch = settings.get("batch_size", 64)
    costs = measured_costs(settings["network"], settings["image_size"], batch)
    rows = [
        (each.method, f"{each.kept / 1e6:.1f}", f"{each.peak / 1e6:.1f}", f"{1e3 * each.seconds:.0f}") for each in costs
    ]
    size = settings["image_size"]
    title = f"A step of {settings['network']} at {size} pixels, 3 domains of {batch} images, k = 20, l = 10"
    words = WordTable(title, ("method", "perturbations, MB", "held in a step, MB", "ms a step"), tuple(rows), 3)
    return Reproduced((words, verdicts(judged_costs(costs))))


def _size(plan: RecipePlan) -> str:
    draws = {run.config.hparams_seed for part in plan.parts for run in part.runs}
    numbers = f"{counted(plan.scale.trials, 'trial')}, {counted(len(draws), 'draw')} of the hyperparameters"
    return f"{plan.scale.name} scale ({plan.scale.about}), {numbers}"


def _title(plan: RecipePlan) -> str:
    return f"{', '.join(plan.recipe.numbers)}: {plan.recipe.about} ({plan.scale.name} scale)"


def _done(part: Part) -> list[Path]:
    folders = [Path(run.config.folder()) for run in part.runs]
    return [folder for folder in folders if (folder / "done").exists()]


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
