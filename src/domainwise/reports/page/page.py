"""The page itself: all parts put into the template."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from domainwise.atomic import write_atomically
from domainwise.errors import DomainwiseError, unknown
from domainwise.reports.cells import Cell, Column, shown
from domainwise.reports.footnotes import chosen_by
from domainwise.reports.grid import grids
from domainwise.reports.page import scale
from domainwise.reports.page.cautions import cautions_of
from domainwise.reports.page.extra import WordTable
from domainwise.reports.page.marks import marks_of
from domainwise.reports.page.material import Material, Variants, read_material
from domainwise.reports.page.pictures import Picture
from domainwise.reports.page.runs_table import as_script, run_rows
from domainwise.reports.page.summary import summary_of
from domainwise.reports.page.variants import in_order
from domainwise.reports.page.views import allowed_selections, view_of
from domainwise.selection import SELECTIONS

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
    write_atomically(path, text.encode())


def as_html(
    material: Material,
    *,
    title: str = "Accuracy in unseen domains",
    pictures: Sequence[Picture] = (),
    extra: Sequence[WordTable] = (),
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
    environment.filters["summarized"] = scale.shown
    return environment.get_template("template.html")


def _shown(cell: Cell, column: Column) -> Markup:
    mean, error = shown(cell, column)
    text = Markup('{}<span class="error"> ± {}</span>').format(mean, error) if error else Markup.escape(mean)
    return Markup("<strong>{}</strong>").format(text) if cell.is_best else text
