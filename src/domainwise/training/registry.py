"""Names of a config to what they stand for, and back."""

import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from domainwise.data import DATASETS, Dataset, DatasetBuilder
from domainwise.data.image_files import image_files
from domainwise.data.paths import OnProgress, data_folder, ignore_progress
from domainwise.errors import DomainwiseError, unknown

T = TypeVar("T")


def found(kind: str, given: str | T, table: Mapping[str, T], others: Sequence[str] = (), shown: str = "") -> T:
    """What `given` names in `table` or as "package.module:Name"; a class or function is that itself.

    Args:
        others: names that belong to other tables, for the nearest right spelling.
        shown: the choices in words, where there are too many to list.
    """
    if not isinstance(given, str):
        return given
    if given in table:
        return table[given]
    module, colon, name = given.partition(":")
    if not colon:
        raise unknown(kind, given, (*table, *others), shown or None)
    try:
        imported: T = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise DomainwiseError(f"{kind} {given!r} cannot be imported: {error}") from error
    return imported


def name_of(thing: str | Callable[..., Any]) -> str:
    """A name as it is, and a class or function as where it can be imported from."""
    if isinstance(thing, str):
        return thing
    return f"{thing.__module__}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


AnyDataset = str | Path | DatasetBuilder


def is_path(dataset: AnyDataset) -> bool:
    """Whether a dataset is given as a folder or file."""
    if isinstance(dataset, Path):
        return True
    if not isinstance(dataset, str) or dataset in DATASETS:
        return False
    return "/" in dataset or dataset.endswith(".csv") or os.path.exists(dataset)


def dataset_builder(dataset: AnyDataset) -> DatasetBuilder:
    if isinstance(dataset, Path) or is_path(dataset):
        return partial(image_files, str(dataset))
    return found("dataset", dataset, DATASETS)


def dataset_name(dataset: AnyDataset) -> str:
    """As in records: a name of the table, that of a folder or file, or one's own builder."""
    if isinstance(dataset, Path) or is_path(dataset):
        path = Path(str(dataset)).resolve()
        return path.stem if path.suffix == ".csv" else path.name
    return name_of(dataset)


def dataset_options(dataset: AnyDataset) -> dict[str, inspect.Parameter]:
    """The options that this dataset has: arguments of its builder but for the seed and what surrounds it."""
    parameters = inspect.signature(dataset_builder(dataset)).parameters
    return {name: each for name, each in parameters.items() if name not in ("seed", "data_dir", "on_progress")}


def built(
    dataset: AnyDataset,
    options: Mapping[str, Any],
    *,
    seed: int,
    data_dir: str | Path | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Dataset:
    """The dataset, made from the seed and nothing else that differs between runs."""
    name, builder = dataset_name(dataset), dataset_builder(dataset)
    allowed = dataset_options(dataset)
    for option in options:
        if option not in allowed:
            raise unknown(f"option of dataset {name}", option, allowed)
    surroundings = {"data_dir": data_dir, "on_progress": on_progress}
    given = {key: value for key, value in surroundings.items() if key in inspect.signature(builder).parameters}
    source = str(Path(str(dataset)).resolve()) if is_path(dataset) else builder
    key = (source, str(data_folder(data_dir).resolve()), seed, repr(sorted(options.items())))
    if key not in _newest:
        try:
            made = builder(seed=seed, **given, **options)
        except TypeError as error:
            raise DomainwiseError(f"dataset {name} cannot be made: {error}") from error
        _newest.clear()
        _newest[key] = made
    return _newest[key]


# Runs that follow one another in a process mostly share their data; making it can take longer than a short run.
_newest: dict[tuple[DatasetBuilder | str, str, int, str], Dataset] = {}
