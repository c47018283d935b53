"""Which models the pictures of a page are of: for each dataset those that were chosen for its hardest domain."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from domainwise.reports.page.material import Material
from domainwise.reports.page.variants import Variant, in_order

# More columns than this are too narrow to see anything in.
MOST = 8


@dataclass(frozen=True)
class LookedAt:
    """Runs of one trial on one dataset, by the names of their methods on the page.

    Args:
        domain: the test domain with the lowest accuracy, on average over methods.
        which: the model of each run that the selection means.
    """

    dataset: str
    domain: str
    which: Literal["best", "last"]
    folders: dict[str, Path]


def runs_to_look_at(material: Material, selection: str, chosen: pl.DataFrame) -> list[LookedAt]:
    """What `selection` chose, in the first trial; of a method's variants the one with the highest score."""
    which: Literal["best", "last"] = "last" if selection == "test_domain" else "best"
    found = []
    for dataset in chosen["dataset"].unique(maintain_order=True):
        own = chosen.filter(pl.col("dataset") == dataset, _has_model(which))
        if own.is_empty():
            continue
        means = own.group_by("test_domain", maintain_order=True).agg(pl.col("accuracy").mean())
        domain = means.sort("accuracy", maintain_order=True)["test_domain"][0]
        here = own.filter(pl.col("test_domain") == domain)
        here = here.filter(pl.col("trial") == pl.col("trial").min()).sort("score", descending=True, maintain_order=True)
        best: dict[str, str] = {}
        for name in here["algorithm"]:
            best.setdefault(material.variants.get(name, Variant(name)).method, name)
        runs = dict(here.select("algorithm", "run").iter_rows())
        names = in_order(best.values(), material.variants)[:MOST]
        found.append(LookedAt(dataset, domain, which, {name: Path(runs[name]) for name in names}))
    return found


def _has_model(which: str) -> pl.Expr:
    def is_there(run: str) -> bool:
        return (Path(run) / f"{which}.safetensors").exists()

    return pl.col("run").map_elements(is_there, return_dtype=pl.Boolean)
