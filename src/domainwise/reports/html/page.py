"""The page: one HTML file with tables, plots, caveats and every run, which works without a network or other files."""

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from markupsafe import Markup

from domainwise.errors import DomainwiseError
from domainwise.escaping import escape_unprintable
from domainwise.reports.build import build_report, check_choices, read_selections
from domainwise.reports.cells import Cell, Column, Grid, Table, build_grids, format_cell, format_parts
from domainwise.reports.footnotes import describe_selection
from domainwise.reports.formats import write_text
from domainwise.reports.html import plots
from domainwise.reports.html.caveats import find_caveats, summarize_runs
from domainwise.reports.html.metrics import (
    MAX_CLASSES,
    Confusion,
    Records,
    build_metrics_table,
    collect_confusions,
    plot_confusion,
    read_selected_records,
)
from domainwise.reports.html.page_data import PageData, build_run_rows, format_script_json, read_page_data
from domainwise.reports.html.plots import Curves, RadiusCurves
from domainwise.reports.html.svg import Marker, assign_markers
from domainwise.selection import SELECTIONS, select_models
from domainwise.selection.verdicts import MARGIN

if TYPE_CHECKING:
    import jinja2

    from domainwise.training.registry import AnyAlgorithm, AnyDataset, AnyNetwork

_FOLDER = Path(__file__).parent
_PNG_SIGNATURE = b"\x89PNG"
TITLE = "Accuracy in unseen domains"


@dataclass(frozen=True)
class Picture:
    """A picture on the page, as an `<svg>` element or the bytes of a PNG file, or why there is none.

    Args:
        alt: what the picture shows, for readers who cannot see it.
        svg: inserted as it is, so it must come from a trusted source; its ids must be unique on the page.
        error: shown in place of a picture that could not be drawn.
    """

    title: str
    caption: str
    alt: str
    svg: str = ""
    png: bytes = b""
    error: str = ""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.svg, self.png, self.error))) != 1:
            raise DomainwiseError(f"picture {self.title!r} must have either svg or png")
        if self.svg and not self.svg.lstrip().startswith("<svg"):
            raise DomainwiseError(f"the svg of picture {self.title!r} must start with <svg")
        if self.png and not self.png.startswith(_PNG_SIGNATURE):
            raise DomainwiseError(f"the png of picture {self.title!r} is not a PNG file")
        if not self.alt:
            raise DomainwiseError(f"picture {self.title!r} has no alt text; describe what it shows")

    def render(self) -> Markup:
        """Return the picture as HTML, without its title and caption."""
        if self.error:
            return Markup('<p role="note">This picture could not be drawn: {}</p>').format(self.error)
        if self.svg:
            return Markup('<div role="img" aria-label="{}">{}</div>').format(self.alt, Markup(self.svg))
        data = base64.b64encode(self.png).decode()
        return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(self.alt, data)


@dataclass(frozen=True)
class TextTable:
    """A table of strings, with notes below it; its last `numeric` columns are right-aligned."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a page is about in a sentence or two, a picture of the reason, and the commands to run; shown first."""

    text: str
    commands: tuple[str, ...] = ()
    picture: Picture | None = None


@dataclass(frozen=True)
class _View:
    """What the page shows for one selection rule; every plot comes with the numbers it shows."""

    selection: str
    tables: list[Table]
    domains: list[tuple[str, Markup]]
    curves: list[tuple[Curves, list[Markup]]]
    radii: list[tuple[RadiusCurves, Markup, dict[str, Marker]]]
    metrics: list[Table]
    confusions: list[tuple[Confusion, Markup | None]]


def write_page(
    output: str | Path,
    paths: Sequence[str | Path],
    *,
    title: str = TITLE,
    selections: Sequence[str] = (),
    columns: Collection[str] = (),
    paper: bool = False,
    compare_to: str | None = None,
    margin: float = MARGIN,
    unfinished: bool = False,
    split_variants: bool = False,
    metric: str = "accuracy",
    pictures: Sequence[Picture] = (),
    tables: Sequence[TextTable] = (),
    answer: Answer | None = None,
    model_pictures: bool = False,
    dataset: "AnyDataset | None" = None,
    data_dir: str | Path | None = None,
    algorithm: "AnyAlgorithm | None" = None,
    network: "AnyNetwork | None" = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Read runs and write the page about them.

    Args:
        output: the file to write; missing parent folders are created.
        paths, columns, paper, compare_to, margin, unfinished, split_variants, metric: as of
            `domainwise.reports.report`.
        title: heading of the page.
        selections: model selection rules to show (default: that of the sweep first, then all others that apply).
        pictures: your own pictures, between the plots and the list of runs.
        tables: comparisons with the paper, or the evidence for the answer, before the results.
        answer: shown first.
        model_pictures: add pictures of the selected models: Grad-CAM, perturbations, accuracy under attack. Needs torch
            and the data.
        dataset: the images for `model_pictures`, if they are not those the runs were trained on.
        data_dir: folder that contains the datasets, for `model_pictures`.
        algorithm, network: the runs' own class or builder, as for `load_model`, for `model_pictures`.
        on_progress: called with a task, how much of it is done, and the total.
    """
    names = selections or [*read_selections(paths), *SELECTIONS]
    check_choices(names, columns, metric=metric, paper=paper)
    data = read_page_data(paths, unfinished=unfinished, split_variants=split_variants, metric=metric)
    if model_pictures:
        from domainwise.data.paths import ignore_progress
        from domainwise.reports.html.pictures import draw_selected_models

        selection, selected = next(iter(_apply_selections(data, names).items()))
        drawn = draw_selected_models(
            data,
            selection,
            selected,
            dataset=dataset,
            data_dir=data_dir,
            algorithm=algorithm,
            network=network,
            on_progress=on_progress or ignore_progress,
        )
        pictures = [*pictures, *drawn]
    text = render_page(
        data,
        title=title,
        selections=names,
        columns=columns,
        paper=paper,
        compare_to=compare_to,
        margin=margin,
        pictures=pictures,
        tables=tables,
        answer=answer,
    )
    write_text(output, text)


def render_page(
    data: PageData,
    *,
    title: str = TITLE,
    selections: Sequence[str] = (),
    columns: Collection[str] = (),
    paper: bool = False,
    compare_to: str | None = None,
    margin: float = MARGIN,
    pictures: Sequence[Picture] = (),
    tables: Sequence[TextTable] = (),
    answer: Answer | None = None,
) -> str:
    """Return the page about runs that were already read; arguments as of `write_page`."""
    metric = data.runs.metric
    selected = _apply_selections(data, selections or list(SELECTIONS))
    records = read_selected_records(data, selected)
    grids = build_grids(data.runs, data.variants)
    markers = assign_markers([*dict.fromkeys(name for grid in grids for name in grid.algorithms)], data.variants)
    views = []
    for selection, models in selected.items():
        report = build_report(
            data.runs,
            [selection],
            columns=columns,
            paper=paper,
            compare_to=compare_to,
            margin=margin,
            variants=data.variants,
        )
        views.append(_build_view(data, selection, models, grids, report.tables, markers, records))
    page = _load_template().render(
        title=metric.describe(title) if title == TITLE else title,
        metric=metric,
        max_classes=MAX_CLASSES,
        summary=summarize_runs(data),
        caveats=find_caveats(data, grids, selected, [table for view in views for table in view.tables]),
        notes=data.runs.notes,
        views=views,
        markers=markers,
        descriptions={selection: describe_selection(selection, metric) for selection in selected},
        pictures=pictures,
        text_tables=tables,
        answer=answer,
        run_count=len(data.page_runs),
        run_data=format_script_json(build_run_rows(data, selected)),
        style=Markup((_FOLDER / "style.css").read_text(encoding="utf-8")),
        script=Markup((_FOLDER / "page.js").read_text(encoding="utf-8")),
    )
    return escape_unprintable(page, keep="\n\t")


def _apply_selections(data: PageData, selections: Sequence[str]) -> dict[str, pl.DataFrame]:
    """Return what each selection rule selects, in order, without rules that select nothing.

    `one_standard_error` repeats `training_domain` if no method has a radius, and is left out then.
    """
    check_choices(selections)
    selected: dict[str, pl.DataFrame] = {}
    for name in selections:
        models = select_models(data.runs.frame, name, data.runs.metric)
        is_repeated = name == "one_standard_error" and any(models.equals(other) for other in selected.values())
        if not models.is_empty() and not is_repeated:
            selected.setdefault(name, models)
    if not selected:
        notes = "".join(f" ({note})" for note in data.runs.notes)
        raise DomainwiseError(f"no runs for a page: {' or '.join(selections)} selects none of them{notes}")
    return selected


def _build_view(
    data: PageData,
    selection: str,
    selected: pl.DataFrame,
    grids: Sequence[Grid],
    tables: Sequence[Table],
    markers: Mapping[str, Marker],
    records: Records,
) -> _View:
    frame, page_runs, metric = data.runs.frame, data.page_runs, data.runs.metric
    classes = {run.planned.dataset: run.classes for run in page_runs.values() if run.classes}
    chances = {dataset: 100 / count for dataset, count in classes.items()} if metric.has_chance_level else {}
    by_title = {table.title: table for table in tables}
    domains = [
        (grid.dataset, plots.plot_domains(by_title[grid.dataset], markers, chances.get(grid.dataset))) for grid in grids
    ]
    curves = [plots.collect_curves(frame, selected, page_runs, grid.dataset) for grid in grids]
    curve_plots = [(each, plots.plot_curves(each, markers, metric)) for each in curves]
    radii = []
    for grid in grids:
        radius_curves = plots.collect_radius_curves(frame, selection, page_runs, grid, data.variants, metric)
        if radius_curves:
            own_markers = _select_markers(radius_curves, markers, data)
            radii.append((radius_curves, plots.plot_radius_curves(radius_curves, own_markers, metric), own_markers))
    metric_tables = [build_metrics_table(records, selected, selection, grid) for grid in grids]
    confusions = [each for grid in grids for each in collect_confusions(data, records, selected, grid)]
    return _View(
        selection=selection,
        tables=list(tables),
        domains=[(dataset, plot) for dataset, plot in domains if plot is not None],
        curves=[(each, drawn) for each, drawn in curve_plots if drawn],
        radii=radii,
        metrics=[table for table in metric_tables if table is not None],
        confusions=[(each, plot_confusion(each) if each.is_drawn else None) for each in confusions],
    )


def _select_markers(curves: RadiusCurves, markers: Mapping[str, Marker], data: PageData) -> dict[str, Marker]:
    """Return one marker per method, that of its first variant, rather than one per radius."""
    by_method: dict[str, Marker] = {}
    for name, marker in markers.items():
        variant = data.variants.get(name)
        by_method.setdefault(variant.name_without("epsilon") if variant else name, marker)
    methods = [*([plots.REFERENCE] if curves.reference else []), *curves.methods]
    return {name: by_method[name] for name in methods if name in by_method}


def _load_template() -> "jinja2.Template":
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["render_cell"] = _render_cell
    environment.filters["format_cell"] = format_cell
    return environment.get_template("template.html")


def _render_cell(cell: Cell, column: Column) -> Markup:
    mean, uncertainty = format_parts(cell, column)
    text = Markup('{}<span class="error"> {}</span>').format(mean, uncertainty) if uncertainty else Markup.escape(mean)
    return Markup("<strong>{}</strong>").format(text) if cell.is_best else text
