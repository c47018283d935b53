"""What one way of selecting shows: its tables and the drawings that go with them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl
from markupsafe import Markup

from domainwise.reports.cells import Table
from domainwise.reports.grid import Grid
from domainwise.reports.page.curves import Curves, curves_of, draw_curves
from domainwise.reports.page.dots import draw_dots
from domainwise.reports.page.marks import Mark
from domainwise.reports.page.material import Material
from domainwise.reports.page.scale import Radii, draw_radii, radii_of
from domainwise.reports.page.variants import in_order
from domainwise.reports.report import make_report
from domainwise.selection import SELECTIONS

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
    return {run.dataset: 100 / run.classes for run in material.facts.values() if run.classes}


def _marks(radii: Radii, marks: Mapping[str, Mark], material: Material) -> dict[str, Mark]:
    """Marks of methods rather than of their variants at one radius: that of the first."""
    merged: dict[str, Mark] = {}
    for name, mark in marks.items():
        variant = material.variants.get(name)
        merged.setdefault(variant.without("epsilon") if variant else name, mark)
    shown = [*(["erm"] if radii.reference else []), *radii.methods]
    return {name: merged[name] for name in shown if name in merged}
