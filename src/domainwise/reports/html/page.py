"""The page itself: all parts put into the template."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
import polars as pl
from markupsafe import Markup

from domainwise.errors import DomainwiseError, unknown
from domainwise.reports.cells import Cell, Column, Grid, Table, grids, shown
from domainwise.reports.footnotes import chosen_by
from domainwise.reports.html import plots
from domainwise.reports.html.caveats import cautions_of, summary_of
from domainwise.reports.html.content import Picture, TextTable
from domainwise.reports.html.page_data import Material, Variants, in_order, read_material
from domainwise.reports.html.plots import Curves, Radii, curves_of, draw_curves, draw_dots, draw_radii, radii_of
from domainwise.reports.html.runs_table import as_script, run_rows
from domainwise.reports.html.svg import Mark, marks_of
from domainwise.reports.report import make_report
from domainwise.selection import SELECTIONS
from domainwise.storage.files import write_atomic

_HERE = Path(__file__).parent


def write_page(
    path: Path,
    paths: Sequence[Path],
    *,
    variants: Variants = "refuse",
    unfinished: bool = False,
    **options: Any,
) -> None:
    """Read runs and write the page about them.

    Args:
        paths: folders of sweeps or runs.
        variants, unfinished: as `read_material` takes them.
        options: as `as_html` takes them.
    """
    text = as_html(read_material(paths, variants=variants, unfinished=unfinished), **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode())


def as_html(
    material: Material,
    *,
    title: str = "Accuracy in unseen domains",
    pictures: Sequence[Picture] = (),
    extra: Sequence[TextTable] = (),
    selections: Sequence[str] = (),
    columns: Collection[str] = (),
    beside_paper: bool = False,
    versus: str | None = None,
) -> str:
    """The page as one text.

    Args:
        pictures: galleries between the plots and the list of runs.
        extra: tables of words that come before the results.
        selections: ways of selecting to show, the first one first; all that find something to choose if none is given.
        columns, beside_paper, versus: as `make_report` takes them.
    """
    for name in selections:
        if name not in SELECTIONS:
            raise unknown("selection", name, SELECTIONS)
    chosen = allowed_selections(material.runs.frame)
    if selections:
        chosen = {name: chosen[name] for name in dict.fromkeys(selections) if name in chosen}
    if not chosen:
        notes = " ".join(f"({note})" for note in material.runs.notes)
        raise DomainwiseError(f"there are no runs to make a page of: no selection finds one to choose {notes}".strip())
    found = grids(material.runs)
    names = in_order((name for grid in found for name in grid.algorithms), material.variants)
    marks = marks_of(names, material.variants)
    options: dict[str, Any] = {"columns": columns, "beside_paper": beside_paper, "versus": versus}
    views = [view_of(material, name, chosen[name], found, marks, **options) for name in chosen]
    return _template().render(
        title=title,
        summary=summary_of(material),
        cautions=cautions_of(material, found, chosen, [table for view in views for table in view.tables]),
        notes=material.runs.notes,
        views=views,
        marks=marks,
        explained={name: chosen_by(name) for name in chosen},
        pictures=pictures,
        extra=extra,
        run_count=len(material.facts),
        run_data=as_script(run_rows(material, chosen)),
        style=Markup((_HERE / "style.css").read_text(encoding="utf-8")),
        script=Markup((_HERE / "page.js").read_text(encoding="utf-8")),
    )


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = _shown
    environment.filters["summarized"] = plots.shown
    return environment.get_template("template.html")


def _shown(cell: Cell, column: Column) -> Markup:
    mean, error = shown(cell, column)
    text = Markup('{}<span class="error"> ± {}</span>').format(mean, error) if error else Markup.escape(mean)
    return Markup("<strong>{}</strong>").format(text) if cell.is_best else text


Dots = tuple[str, Markup]


@dataclass(frozen=True)
class View:
    """Drawings stand beside what they show, for those who read rather than look."""

    selection: str
    tables: list[Table]
    dots: list[Dots]
    curves: list[tuple[Curves, list[Markup]]]
    radii: list[tuple[Radii, Markup, dict[str, Mark]]]


def allowed_selections(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The ways of selecting that find something to choose, and what each chooses."""
    every = {name: select(frame) for name, select in SELECTIONS.items()}
    return {name: chosen for name, chosen in every.items() if not chosen.is_empty()}


def view_of(
    material: Material,
    selection: str,
    chosen: pl.DataFrame,
    grids: Sequence[Grid],
    marks: Mapping[str, Mark],
    *,
    columns: Collection[str] = (),
    beside_paper: bool = False,
    versus: str | None = None,
) -> View:
    runs = material.runs
    made = make_report(runs, [selection], columns=columns, beside_paper=beside_paper, versus=versus)
    tables = [_ordered(table, material) for table in made.tables]
    plain = tables if not beside_paper else make_report(runs, [selection]).tables
    chances = _chances(material)
    by_title = {table.title: _ordered(table, material) for table in plain}
    dots = [(grid.dataset, draw_dots(by_title[grid.dataset], marks, chances.get(grid.dataset))) for grid in grids]
    curves = [curves_of(runs.frame, chosen, material.facts, grid.dataset) for grid in grids]
    radii = [radii_of(runs.frame, selection, material.facts, grid, material.variants) for grid in grids]
    drawn = [(each, draw_curves(each, marks)) for each in curves]
    return View(
        selection=selection,
        tables=tables,
        dots=[(dataset, drawing) for dataset, drawing in dots if drawing is not None],
        curves=[(each, drawings) for each, drawings in drawn if drawings],
        radii=[(each, draw_radii(each, own), own) for each in radii if each for own in [_marks(each, marks, material)]],
    )


def _ordered(table: Table, material: Material) -> Table:
    """Variants of a method beside one another, by their values."""
    if not material.variants:
        return table
    places = {name: place for place, name in enumerate(in_order((r.algorithm for r in table.rows), material.variants))}
    return replace(table, rows=tuple(sorted(table.rows, key=lambda row: places[row.algorithm])))


def _chances(material: Material) -> dict[str, float]:
    return {run.planned.dataset: 100 / run.classes for run in material.facts.values() if run.classes}


def _marks(radii: Radii, marks: Mapping[str, Mark], material: Material) -> dict[str, Mark]:
    """Marks of methods rather than of their variants at one radius: that of the first."""
    merged: dict[str, Mark] = {}
    for name, mark in marks.items():
        variant = material.variants.get(name)
        merged.setdefault(variant.without("epsilon") if variant else name, mark)
    shown = [*(["erm"] if radii.reference else []), *radii.methods]
    return {name: merged[name] for name in shown if name in merged}
