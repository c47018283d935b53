"""All that a page is made from, read once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from domainwise.reports.page.facts import RunFacts, read_facts
from domainwise.reports.page.variants import Variant, split_variants
from domainwise.selection.folders import find_folders
from domainwise.selection.read import Runs, read_runs

Variants = Literal["refuse", "split"]


@dataclass(frozen=True)
class Material:
    """Records, facts by run folder, and the variants by the names that tables have for them."""

    runs: Runs
    facts: Mapping[str, RunFacts] = field(default_factory=dict)
    variants: Mapping[str, Variant] = field(default_factory=dict)


def read_material(paths: Sequence[Path], *, variants: Variants = "refuse", unfinished: bool = False) -> Material:
    """What is at or below `paths`.

    Args:
        variants: what to do with runs that would fill the same place of a table: refuse them, or name them apart by the
            settings in which they differ.
        unfinished: whether runs that are not done count, too.
    """
    runs = read_runs(paths, unfinished=unfinished, keep_duplicates=variants == "split")
    facts = read_facts(find_folders(paths), runs.planned, runs.frame)
    if variants == "refuse":
        return Material(runs, facts)
    runs, named = split_variants(runs, {run: each.settings for run, each in facts.items()})
    names = dict(runs.frame.select("run", "algorithm").unique().iter_rows())
    facts = {run: replace(each, algorithm=names.get(run, each.algorithm)) for run, each in facts.items()}
    return Material(runs, facts, named)
