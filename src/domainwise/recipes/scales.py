"""How large the runs of a recipe are: the paper's setting, one for two processors, or barely a run at all."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from domainwise.errors import unknown

# Datasets that share the settings of photographs.
PHOTO = ("pacs", "office_home", "vlcs", "nico")


@dataclass(frozen=True)
class Scale:
    """Settings of runs.

    Args:
        draws: of the hyperparameters; None for what the recipe says.
        is_one_cell: run each method on the first dataset alone, and leave out only its first domain.
        cost: seconds of a processor for updates and for evaluations of an ERM run, by dataset or `photo`, where known.
        settings: by dataset or `photo`, as `RunConfig` takes them; `image_size` is an option of the dataset.
    """

    name: str
    about: str
    trials: int
    draws: int | None
    is_one_cell: bool
    cost: Mapping[str, Sequence[float]]
    settings: Mapping[str, Mapping[str, Any]]

    def of(self, dataset: str) -> dict[str, Any]:
        """What runs on this dataset are set to."""
        shared = self.settings.get("photo", {}) if dataset in PHOTO else {}
        return {**shared, **self.settings.get(dataset, {})}


@cache
def scales() -> Mapping[str, Scale]:
    content = tomllib.loads((Path(__file__).parent / "scales.toml").read_text(encoding="utf-8"))
    return {name: _scale(name, given) for name, given in content.items()}


def scale_named(name: str) -> Scale:
    if name not in scales():
        raise unknown("scale", name, scales())
    return scales()[name]


def _scale(name: str, given: Mapping[str, Any]) -> Scale:
    return Scale(
        name=name,
        about=given["about"],
        trials=given["trials"],
        draws=given.get("draws"),
        is_one_cell=given.get("is_one_cell", False),
        cost=given.get("cost", {}),
        settings={key: value for key, value in given.items() if isinstance(value, dict) and key != "cost"},
    )
