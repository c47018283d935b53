"""Where data is looked for and kept: the folder of datasets, and the cache of decoded images."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from domainwise.errors import DomainwiseError

DATA_VARIABLE, CACHE_VARIABLE = "DOMAINWISE_DATA", "DOMAINWISE_CACHE"

# What is being done, how much of it is done, and how much there is.
OnProgress = Callable[[str, int, int], None]


def ignore_progress(what: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def data_folder(given: str | Path | None = None) -> Path:
    """The folder of datasets: `given`, or else $DOMAINWISE_DATA, or else one under the user's cache."""
    return Path(given or os.environ.get(DATA_VARIABLE) or _user_cache() / "data").expanduser()


def cache_folder() -> Path:
    """Where decoded images are kept: $DOMAINWISE_CACHE, or else a folder under the user's cache."""
    return Path(os.environ.get(CACHE_VARIABLE) or _user_cache() / "images").expanduser()


def dataset_folder(dataset: str, folder: str, given: str | Path | None = None) -> Path:
    """The folder that holds `dataset` inside the folder of datasets; says what to do where it is not."""
    path = data_folder(given) / folder
    if not path.is_dir():
        raise DomainwiseError(
            f"dataset {dataset} is not at {path}: run `domainwise data prepare {dataset}`, or name the folder that has "
            f"{folder} in it with --data-dir or ${DATA_VARIABLE}"
        )
    return path


def _user_cache() -> Path:
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "domainwise"
