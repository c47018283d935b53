"""Accuracy against the radius of an attack: a row a kind of attack, a column a domain, a curve a method."""

import polars as pl
from matplotlib.figure import Figure

from domainwise.explain.bands import curve, mean_and_error

_KINDS = {"domain": "one perturbation a domain", "sample": "one a sample"}


def draw_robustness(frame: pl.DataFrame) -> Figure:
    """Means over runs that differ in their seeds alone, with their standard error.

    Args:
        frame: a row a measurement, with `label`, `domain`, `kind`, `radius` and `accuracy`.
    """
    means = mean_and_error(frame, ["label", "domain", "kind", "radius"])
    kinds, domains, names = (frame[name].unique(maintain_order=True).to_list() for name in ("kind", "domain", "label"))
    figure = Figure((max(5.5, 3.1 * len(domains) + 0.8), 2.9 * len(kinds) + 0.5), layout="constrained", dpi=120)
    panels = figure.subplots(len(kinds), len(domains), sharex=True, sharey=True, squeeze=False)
    for row, kind in zip(panels, kinds, strict=True):
        for panel, domain in zip(row, domains, strict=True):
            here = means.filter(pl.col("kind") == kind, pl.col("domain") == domain)
            for index, name in enumerate(names):
                points = here.filter(pl.col("label") == name)
                if len(points):
                    curve(panel, points, "radius", f"C{index % 10}", name)
            panel.set_title(f"{domain}: {_KINDS[kind]}", fontsize=9)
            panel.grid(alpha=0.25)
            panel.set_ylim(-0.02, 1.02)
        row[0].set_ylabel("accuracy")
    for panel in panels[-1]:
        panel.set_xlabel("l2 radius of the attack")
    panels[0][-1].legend(fontsize=7.5, loc="upper right")
    return figure
