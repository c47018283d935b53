"""What a recipe is: a table or figure of the paper as runs to make and claims to test, read from TOML."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from domainwise.errors import DomainwiseError, unknown

_HERE = Path(__file__).parent
# What is made of a recipe's runs; `theory` and `memory` need none.
Kind = Literal["table", "settings", "scale", "ranks", "grad_cam", "theory", "memory"]


@dataclass(frozen=True)
class Row:
    """A line of the table: a method, and what is fixed for it.

    Args:
        paper: how the paper's table calls this line's setting or column, where a method has several.
        space: that the rest of its hyperparameters are drawn from.
    """

    name: str
    algorithm: str
    hparams: Mapping[str, Any] = field(default_factory=dict)
    paper: str = ""
    space: str = "paper"


@dataclass(frozen=True)
class Block:
    """Datasets that are treated alike.

    Args:
        draws: of the hyperparameters at full scale; 1 is the fixed set alone.
        test_domains, train_domains: as for a sweep.
    """

    datasets: tuple[str, ...]
    selection: str
    draws: int = 1
    test_domains: tuple[str, ...] = ()
    train_domains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """What the paper says: the row `better` is above the row `than`, on `datasets` (without: all).

    Args:
        needs_all: whether it speaks of the average over them, so that some alone say nothing to it.
    """

    says: str
    better: str
    than: str
    datasets: tuple[str, ...] = ()
    needs_all: bool = False


@dataclass(frozen=True)
class Recipe:
    """One table or figure.

    Args:
        key: the name of its file, like `table_1`.
        name: in words, like `at_against_erm`.
        numbers: what it is called in the paper.
        published: the number of the table whose values stand beside ours.
    """

    key: str
    name: str
    numbers: tuple[str, ...]
    about: str
    kind: Kind = "table"
    published: int | None = None
    note: str = ""
    rows: tuple[Row, ...] = ()
    blocks: tuple[Block, ...] = ()
    claims: tuple[Claim, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What it may be called by: its key, its name in words, and every number it has in the paper."""
        return tuple(dict.fromkeys((self.key, self.name, *(_as_name(number) for number in self.numbers))))


@cache
def recipes() -> Mapping[str, Recipe]:
    """Every recipe by its key, tables first, as the paper numbers them."""
    found = [_read(file) for file in _HERE.glob("*.toml") if file.stem != "scales"]
    return {recipe.key: recipe for recipe in sorted(found, key=lambda recipe: _place(recipe.key))}


def recipe_named(name: str) -> Recipe:
    """By any of its names; `Figure 5` is as good as `figure_5`."""
    for recipe in recipes().values():
        if _as_name(name) in recipe.names:
            return recipe
    names = [word for recipe in recipes().values() for word in recipe.names]
    raise unknown("recipe", name, names, shown="what `domainwise reproduce --list` shows")


def _as_name(words: str) -> str:
    return words.strip().lower().replace(" ", "_")


def _place(key: str) -> tuple[str, int]:
    kind, _, number = key.rpartition("_")
    return ({"table": "1", "figure": "2"}.get(kind, f"3{key}"), int(number) if number.isdecimal() else 0)


def _read(file: Path) -> Recipe:
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    try:
        made = Recipe(
            key=file.stem,
            **{
                **{name: _tupled(value) for name, value in content.items() if name not in ("row", "block", "claim")},
                "rows": tuple(Row(**each) for each in content.get("row", [])),
                "blocks": _all(Block, content.get("block", [])),
                "claims": _all(Claim, content.get("claim", [])),
            },
        )
    except TypeError as error:
        raise DomainwiseError(f"the recipe {file} cannot be read: {error}") from error
    _check(made)
    return made


def _all(of: Any, given: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    return tuple(of(**{name: _tupled(value) for name, value in each.items()}) for each in given)


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _check(recipe: Recipe) -> None:
    names = [row.name for row in recipe.rows]
    if recipe.kind not in get_args(Kind):
        raise unknown(f"kind of recipe {recipe.key}", recipe.kind, get_args(Kind))
    for claim in recipe.claims:
        for row in (claim.better, claim.than):
            if row not in names:
                raise unknown(f"row of recipe {recipe.key}", row, names)


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
