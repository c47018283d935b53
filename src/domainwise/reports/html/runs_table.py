"""Every run as a few short values, which a script in the page makes rows of."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup

from domainwise.reports.html.page_data import Material, flat_settings
from domainwise.training.command import stored_command


def run_rows(material: Material, chosen: Mapping[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """An object a run, accuracies in percent: after the last step, and by selection where that chose it."""
    frame = material.runs.frame
    last = (
        frame.filter(pl.col("step") == pl.col("step").max().over("run"))
        .group_by("run")
        .agg(pl.col("main").mean(), pl.col("step").first())
    )
    ends = {run: (accuracy, step) for run, accuracy, step in last.iter_rows()}
    selected: dict[str, dict[str, float]] = {}
    for selection, rows in chosen.items():
        for run, accuracy in rows.group_by("run").agg(pl.col("accuracy").mean()).iter_rows():
            selected.setdefault(run, {})[selection] = _percent(accuracy)
    start = _common_folder(list(material.facts))
    return [
        {
            "folder": os.path.relpath(run, start),
            "method": facts.planned.algorithm,
            "dataset": facts.planned.dataset,
            "tested": ", ".join(facts.planned.test_domains),
            "trial": facts.planned.trial,
            "draw": facts.planned.draw,
            "state": facts.status.state,
            "error": facts.status.error,
            "last": _percent(ends[run][0]) if run in ends and ends[run][0] is not None else None,
            "chosen": selected.get(run, {}),
            "settings": _settings(facts.settings),
            "command": stored_command(facts.settings),
        }
        for run, facts in material.facts.items()
    ]


def as_script(rows: list[dict[str, Any]]) -> Markup:
    """The rows as JSON that cannot end the element it stands in."""
    text = json.dumps(rows, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings by name; nothing for what is left open."""
    return {name: _shown(value) for name, value in flat_settings(settings).items() if value not in (None, [], "")}


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _percent(accuracy: float) -> float:
    return round(100 * accuracy, 2)


def _common_folder(runs: list[str]) -> str:
    """What all folders begin with, so that the page does not repeat it, nor tell more of a disk than it must."""
    if len(runs) < 2:
        return str(Path(runs[0]).parent) if runs else "."
    return os.path.commonpath([os.path.abspath(Path(run).parent) for run in runs])
