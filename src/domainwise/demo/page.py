"""The demo as a page: all its runs, and pictures of each method at the radius that holdout chooses."""

from collections.abc import Sequence
from pathlib import Path

from domainwise.data.places import OnProgress, silent
from domainwise.demo.plan import Plan, Row
from domainwise.demo.table import Line
from domainwise.reports.page import write_page
from domainwise.reports.page.gallery import gallery
from domainwise.runs import RunResult

# Strong enough to tell the methods apart, and not so strong that all fail.
LOOKED_AT = "shift_12"


def write_demo_page(
    path: Path,
    plan: Plan,
    table: Sequence[Line],
    results: Sequence[tuple[Row, RunResult]],
    *,
    has_pictures: bool = True,
    on_progress: OnProgress = silent,
) -> None:
    """Write the page about the plan's results; the pictures are those of its first seed."""
    first: dict[Row, Path] = {}
    for row, result in results:
        first.setdefault(row, result.folder)
    shown = {_name(line.row): first[line.row] for line in table if line.is_chosen}
    write_page(
        path,
        [result.folder for _, result in results],
        variants="split",
        title=f"domainwise demo: accuracy under unseen shift ({plan.title()})",
        pictures=gallery(shown, LOOKED_AT, on_progress=on_progress) if has_pictures else [],
    )


def _name(row: Row) -> str:
    return row.method if row.radius is None else f"{row.method}, epsilon {row.radius:g}"
