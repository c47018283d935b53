"""The result of a recipe: its tables, figures, verdicts and notes, and the files they are written to."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.explain.gradcam import find_target_layer
from domainwise.explain.perturbations import measure_ranks
from domainwise.explain.plots.accuracy import (
    add_legend,
    plot_accuracy,
    plot_accuracy_by_epsilon,
    plot_differences,
)
from domainwise.explain.plots.gradcam import plot_gradcam, sample_examples
from domainwise.explain.plots.perturbations import plot_ranks
from domainwise.explain.robustness import read_accuracy_by_epsilon
from domainwise.figures import render_figure, write_figure
from domainwise.reports.formats import format_markdown_table
from domainwise.reports.html import Picture, TextTable, write_page
from domainwise.reports.html.pictures import draw_model_pictures
from domainwise.reports.published import load_published_tables
from domainwise.reproduction.comparison import (
    ClaimVerdict,
    Comparison,
    compare_with_paper,
    judge_plan,
    list_datasets,
    list_failures,
    select_models,
    tabulate_comparisons,
    tabulate_verdicts,
)
from domainwise.reproduction.memory import judge_step_costs, measure_step_costs
from domainwise.reproduction.plan import RecipePlan
from domainwise.reproduction.recipe import Recipe, Row
from domainwise.reproduction.shift import plot_shifts, summarize_shifts, tabulate_selected, tabulate_shifts
from domainwise.reproduction.threats import REFERENCE, measure_threats, plot_threats, read_threats, tabulate_threats
from domainwise.selection.statistics import pluralize
from domainwise.selection.verdicts import Verdict
from domainwise.storage.files import write_atomic, write_csv
from domainwise.theory import check_claims, plot_theory
from domainwise.training.loading import OpenRun, open_run
from domainwise.training.registry import dataset_name

# A logarithmic axis is used if the largest value is more than this times the smallest.
_MAX_LINEAR_RATIO = 20

# The figure of the claims.
_CLAIMS = "claims"
_CLAIMS_CAPTION = (
    "The difference that each claim is about, with its interval. Within the band, a difference does not matter."
)


@dataclass(frozen=True)
class RecipeResult:
    """What the finished runs of a recipe say.

    Args:
        figures: figures by file name, without suffix.
        frames: measurements by file name, without suffix; written as CSV.
        pictures: further pictures for the page.
        notes: the scale, what is missing, and caveats.
        files: the files that `write_result` wrote.
    """

    recipe: Recipe
    tables: tuple[TextTable, ...] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    frames: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()
    verdicts: tuple[ClaimVerdict, ...] = ()
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()


def build_result(plan: RecipePlan, on_progress: OnProgress = ignore_progress) -> RecipeResult:
    """Build the result from the recipe's finished runs, or from its calculation."""
    if plan.recipe.kind == "threats":
        measure_threats(plan, on_progress)
    result = _BUILDERS[plan.recipe.kind](plan)
    if plan.recipe.gallery and result.tables:
        result = replace(result, pictures=tuple(_build_gallery(plan, on_progress)))
    return replace(result, notes=(*_list_notes(plan), *result.notes))


def write_result(plan: RecipePlan, on_progress: OnProgress = ignore_progress) -> RecipeResult:
    """Build the result and write it into the plan's folder: Markdown, pictures, and a page if there are runs."""
    result = build_result(plan, on_progress)
    plan.folder.mkdir(parents=True, exist_ok=True)
    files = [plan.folder / f"{plan.file_name}.md"]
    write_atomic(files[0], _format_markdown(result).encode())
    for name, figure in result.figures.items():
        files.append(plan.folder / f"{name}.png")
        write_figure(files[-1], figure)
    for name, frame in result.frames.items():
        files.append(plan.folder / f"{name}.csv")
        write_csv(files[-1], frame)
    finished = [folder for row_plan in plan.row_plans for folder in row_plan.list_finished()]
    if finished and result.tables:
        files.append(plan.folder / f"{plan.file_name}.html")
        figures = [
            Picture(name.replace("_", " "), caption, f"{name}: {caption}", png=render_figure(figure))
            for name, figure in result.figures.items()
            for caption in [_CLAIMS_CAPTION if name == _CLAIMS else plan.recipe.about]
        ]
        *tables, last = result.tables
        tables.append(replace(last, notes=(*last.notes, *result.notes)))
        write_page(
            files[-1],
            list(dict.fromkeys(finished)),
            split_variants=True,
            title=plan.recipe.title,
            # For a shift, the page has a table of its own.
            tables=() if plan.recipe.kind == "shift" else tables,
            pictures=[*figures, *result.pictures],
        )
    return replace(result, files=tuple(files))


def write_claims(results: Sequence[RecipeResult], folder: Path) -> list[Path]:
    """Write an overview of the claims of several results, claims.md and claims.png; nothing if there are none."""
    verdicts = [(", ".join(each.recipe.numbers), verdict) for each in results for verdict in each.verdicts]
    if not verdicts:
        return []
    header = ("in the paper", "claim", "verdict", "evidence")
    rows = [(numbers, each.claim, each.verdict, each.evidence) for numbers, each in verdicts]
    counts = Counter(each.verdict for _, each in verdicts)
    summary = f"{', '.join(f'{counts[name]} {name}' for name in get_args(Verdict) if counts[name])}."
    parts = ["# Claims of the paper", summary, format_markdown_table(header, rows)]
    files = [folder / f"{_CLAIMS}.md"]
    for name, figure in _plot_claims({f"{numbers}: {each.claim}": each for numbers, each in verdicts}).items():
        files.append(folder / f"{name}.png")
        write_figure(files[-1], figure)
        parts.append(f"![{_CLAIMS_CAPTION}]({name}.png)")
    write_atomic(files[0], ("\n\n".join(parts) + "\n").encode())
    return files


def _format_markdown(result: RecipeResult) -> str:
    parts = [f"# {result.recipe.title}"]
    for table in result.tables:
        parts.append(f"## {table.title}\n\n{format_markdown_table(table.header, table.rows, table.numeric)}")
        parts += table.notes
    parts += [f"![{name}]({name}.png)" for name in result.figures]
    parts += ["\n".join(f"- {note}" for note in result.notes)] if result.notes else []
    return "\n\n".join(parts) + "\n"


def _list_notes(plan: RecipePlan) -> list[str]:
    notes = []
    if plan.row_plans:
        draws = {run.draw for run in plan.runs}
        size = f"{pluralize(plan.scale.trials, 'trial')}, {pluralize(len(draws), 'hyperparameter draw')}"
        notes.append(f"{plan.scale.name} scale ({plan.scale.about}): {size}")
    finished = {folder for row_plan in plan.row_plans for folder in row_plan.list_finished()}
    if missing := len(plan.runs) - len(finished):
        runs = pluralize(len(plan.runs), "run")
        notes.append(f"{missing} of {runs} not finished; a trial counts once all its domains are done")
    notes += [f"{name} skipped: {reason}" for name, reason in plan.skipped.items()]
    if plan.recipe.published is not None and (note := load_published_tables()[plan.recipe.published].note):
        notes.append(f"the paper's table: {note}")
    return [*notes, plan.recipe.note] if plan.recipe.note else notes


def _build_table(plan: RecipePlan) -> RecipeResult:
    models = select_models(plan)
    if models.is_empty():
        return RecipeResult(plan.recipe, notes=("no finished runs",))
    table = tabulate_comparisons(compare_with_paper(plan.recipe, models), _format_title(plan))
    if not plan.recipe.claims:
        return RecipeResult(plan.recipe, (table,))
    verdicts = tuple(judge_plan(plan, models))
    figures = _plot_claims({each.claim: each for each in verdicts})
    return RecipeResult(plan.recipe, (table, tabulate_verdicts(verdicts)), figures, verdicts=verdicts)


def _plot_claims(verdicts: Mapping[str, ClaimVerdict]) -> dict[str, Figure]:
    """Return the figure of the claims that trials have judged, by its file name; empty if there are none."""
    judged = {
        name: each.judgement
        for name, each in verdicts.items()
        if each.judgement is not None and each.judgement.estimate is not None
    }
    return {_CLAIMS: plot_differences(judged, "difference in accuracy")} if judged else {}


def _build_settings(plan: RecipePlan) -> RecipeResult:
    comparisons = compare_with_paper(plan.recipe, select_models(plan))
    figures = {"accuracy_by_setting": plot_accuracy_by_setting(plan.recipe, comparisons)} if comparisons else {}
    return _add_figures(_build_table(plan), figures)


def _build_radius(plan: RecipePlan) -> RecipeResult:
    figures = {}
    for dataset in dict.fromkeys(row_plan.dataset for row_plan in plan.row_plans):
        own = [row_plan for row_plan in plan.row_plans if row_plan.dataset == dataset]
        if folders := [folder for row_plan in own for folder in row_plan.list_finished()]:
            name = f"accuracy_by_radius_{dataset_name(dataset)}"
            figures[name] = plot_accuracy_by_epsilon(read_accuracy_by_epsilon(folders))
    return _add_figures(_build_table(plan), figures)


def _add_figures(result: RecipeResult, figures: Mapping[str, Figure]) -> RecipeResult:
    return replace(result, figures={**figures, **result.figures})


def _build_shift(plan: RecipePlan) -> RecipeResult:
    summaries = summarize_shifts(plan)
    if not summaries:
        return RecipeResult(plan.recipe, notes=("no finished runs",))
    tables = [tabulate_shifts(summaries, plan.recipe.about, plan.row_plans[0].selection)]
    if plan.scale.trials > 1:
        tables.append(tabulate_selected(plan, summaries))
    return RecipeResult(
        plan.recipe,
        tuple(tables),
        {plan.recipe.key: plot_shifts(summaries, plan.recipe.about)},
    )


def _build_threats(plan: RecipePlan) -> RecipeResult:
    frame = read_threats(plan)
    if frame.is_empty():
        return RecipeResult(plan.recipe, notes=("no finished runs",))
    tables: list[TextTable] = []
    figures = {}
    notes = []
    failures = list_failures(plan)
    for (dataset,), own in frame.group_by("dataset", maintain_order=True):
        own_failures = {
            row: [(run, error) for run, error in failed.items() if run.dataset == dataset]
            for row, failed in failures.items()
        }
        tables += tabulate_threats(own, str(dataset), own_failures)
        if (figure := plot_threats(own, str(dataset))) is None:
            notes.append(f"no figure of {dataset}: it shows differences to the row {REFERENCE!r}, which is missing")
        else:
            figures[f"threats_{dataset}"] = figure
    wide = frame.pivot("threat", index=["dataset", "row", "trial"], values="accuracy")
    return RecipeResult(plan.recipe, tuple(tables), figures, {"threats": wide}, notes=tuple(notes))


def _build_gallery(plan: RecipePlan, on_progress: OnProgress) -> list[Picture]:
    folders = {each.row.name: each.folder for each in summarize_shifts(plan) if each.is_selected}
    return draw_model_pictures(folders, plan.recipe.gallery, data_dir=plan.data_dir, on_progress=on_progress)


def _build_ranks(plan: RecipePlan) -> RecipeResult:
    ranks = [
        replace(each, run=row)
        for runs in _open_selected_runs(plan).values()
        for row, run in runs.items()
        for each in measure_ranks(run)
    ]
    header = ("method", "domain", "images", "rank over images", "effective", "rank of one", "effective")
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
        for each in ranks
    ]
    table = TextTable(_format_title(plan), header, tuple(rows), 5)
    return RecipeResult(plan.recipe, (table,), {"ranks": plot_ranks(ranks)} if ranks else {})


def _build_gradcam(plan: RecipePlan) -> RecipeResult:
    figures, notes = {}, []
    for dataset, runs in _open_selected_runs(plan).items():
        first = next(iter(runs.values()))
        layer = find_target_layer(first.model(), first.dataset.image_shape)
        coarse = ", too few to locate what a network looks at" if layer.is_coarse else ""
        notes.append(f"Grad-CAM maps on {dataset} have {layer.height} x {layer.width} cells at this scale{coarse}")
        domain = first.roles.test[0]
        count = min(6, len(first.splits[domain].main))
        figures[f"gradcam_{dataset}"] = plot_gradcam(runs, sample_examples(first, domain, count))
    table = _build_table(plan)
    return _add_figures(replace(table, notes=(*table.notes, *notes)), figures)


def _build_theory(plan: RecipePlan) -> RecipeResult:
    rows = [(each.claim, each.verdict, each.evidence) for each in check_claims()]
    table = TextTable("Claims of the paper", ("claim", "verdict", "evidence"), tuple(rows))
    return RecipeResult(plan.recipe, (table,), plot_theory(0.3, 1.0))


def _build_memory(plan: RecipePlan) -> RecipeResult:
    settings = plan.scale.get_settings("pacs")
    network, size, batch = settings["network"], settings["image_size"], settings.get("batch_size", 64)
    costs = measure_step_costs(network, size, batch)
    rows = [
        (each.method, f"{each.perturbations / 1e6:.1f}", f"{each.peak / 1e6:.1f}", f"{1e3 * each.seconds:.0f}")
        for each in costs
    ]
    title = f"One step of {network} at {size} pixels, 3 domains with batch size {batch}, k = 20, l = 10"
    table = TextTable(title, ("method", "perturbations, MB", "peak of a step, MB", "ms per step"), tuple(rows), 3)
    verdicts = tuple(judge_step_costs(costs))
    return RecipeResult(plan.recipe, (table, tabulate_verdicts(verdicts)), verdicts=verdicts)


_BUILDERS: Mapping[str, Callable[[RecipePlan], RecipeResult]] = {
    "table": _build_table,
    "settings": _build_settings,
    "radius": _build_radius,
    "shift": _build_shift,
    "threats": _build_threats,
    "ranks": _build_ranks,
    "gradcam": _build_gradcam,
    "theory": _build_theory,
    "memory": _build_memory,
}


def _format_title(plan: RecipePlan) -> str:
    return f"{plan.recipe.title} ({plan.scale.name} scale)"


def _open_selected_runs(plan: RecipePlan) -> dict[str, dict[str, OpenRun]]:
    """Open the run selected for each row, by dataset, for its first test domain and trial."""
    runs: dict[str, dict[str, OpenRun]] = {}
    for (dataset,), models in select_models(plan).group_by("dataset", maintain_order=True):
        first = models.row(0, named=True)
        own = models.filter(test_domain=first["test_domain"], trial=first["trial"]).select("row", "run")
        runs[str(dataset)] = {row: open_run(run, data_dir=plan.data_dir) for row, run in own.iter_rows()}
    return runs


def plot_accuracy_by_setting(recipe: Recipe, comparisons: Sequence[Comparison]) -> Figure:
    """Plot accuracy against the varied hyperparameter, ours next to the paper's: Figure 5 and others like it.

    One row of panels per dataset; methods that are not varied become level lines.
    """
    settings = {row.name: row.setting for row in recipe.rows if row.setting is not None}
    labels = _label_rows(recipe.rows)
    methods = list(dict.fromkeys(row.algorithm for row in recipe.rows))
    colors = {labels[row.name]: f"C{methods.index(row.algorithm)}" for row in recipe.rows}
    values = sorted({value for _, value in settings.values()})
    datasets = list_datasets(comparisons)
    figure = Figure((8.4, 3.2 * len(datasets)), layout="constrained", dpi=120)
    for panels, dataset in zip(figure.subplots(len(datasets), 2, squeeze=False), datasets, strict=True):
        cells = [each for each in comparisons if each.dataset == dataset]
        ours = [(each.row, each.ours, each.error) for each in cells]
        paper = [(each.row, each.paper, each.paper_error) for each in cells if each.paper is not None]
        for panel, title, means in ((panels[0], "ours", ours), (panels[1], "the paper's", paper)):
            points = pl.DataFrame(
                [(labels[row], settings.get(row, ("", None))[1], mean, error) for row, mean, error in means],
                schema={"label": pl.String, "value": pl.Float64, "mean": pl.Float64, "error": pl.Float64},
                orient="row",
            )
            is_log = values[-1] > _MAX_LINEAR_RATIO * values[0]
            plot_accuracy(panel, points, "value", colors, is_log=is_log, ticks=values)
            panel.set_xlabel(" or ".join(dict.fromkeys(name.replace("_", " ") for name, _ in settings.values())))
            panel.set_title(f"{dataset}, {title}", fontsize=10)
        _equalize_spans(panels)
        panels[0].set_ylabel("accuracy, percent")
    add_legend(figure, figure.axes[0])
    return figure


def _label_rows(rows: Sequence[Row]) -> dict[str, str]:
    """Return the series of each row: its method, with a suffix for a single row outside a varied method."""
    varied = {row.algorithm for row in rows if row.varied}
    return {
        row.name: row.algorithm.upper() + (", not varied" if row.algorithm in varied and not row.varied else "")
        for row in rows
    }


def _equalize_spans(panels: Sequence[Axes]) -> None:
    """Give both panels the same span, so that differences compare by eye, and none below zero."""
    span = max(high - low for low, high in (panel.get_ylim() for panel in panels))
    for panel in panels:
        low = max(0.0, (sum(panel.get_ylim()) - span) / 2)
        panel.set_ylim(low, low + span)
