"""Folders for datasets and decoded images, and progress callbacks for the work on them."""

import os
from collections.abc import Callable
from pathlib import Path

from platformdirs import user_cache_path

from domainwise.errors import DomainwiseError

DATA_VARIABLE, CACHE_VARIABLE = "DOMAINWISE_DATA", "DOMAINWISE_CACHE"

# Called with a description of the work, the amount done, and the total (0 if unknown).
OnProgress = Callable[[str, int, int], None]


def ignore_progress(description: str, done: int, total: int) -> None:
    """Do nothing: the default `OnProgress`."""


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Return the folder with the datasets: `data_dir`, else $DOMAINWISE_DATA, else `data` in the user's cache."""
    return expand_home(data_dir or os.environ.get(DATA_VARIABLE) or _user_cache() / "data")


def cache_folder() -> Path:
    """Return the folder with the decoded images: $DOMAINWISE_CACHE, else `images` in the user's cache."""
    return expand_home(os.environ.get(CACHE_VARIABLE) or _user_cache() / "images")


def expand_home(path: str | Path) -> Path:
    """Return the path with `~` and `~user` replaced by a home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = Path(path).parts[0]
        raise DomainwiseError(f"{path} starts with {user}, but there is no such user; give the full path") from None


def dataset_folder(dataset: str, folder: str, data_dir: str | Path | None = None) -> Path:
    """Return `folder` inside the data folder.

    Raises:
        DomainwiseError: it does not exist; the message says how to get or find `dataset`.
    """
    path = data_folder(data_dir) / folder
    if not path.is_dir():
        raise DomainwiseError(f"dataset {dataset} not found at {path}: {suggest_prepare(dataset, folder)}")
    return path


def suggest_prepare(dataset: str, folder: str) -> str:
    """Return the end of an error about missing files: how to get them, or where to point to."""
    return (
        f"run `domainwise data prepare {dataset}`, or set --data-dir or ${DATA_VARIABLE} to the folder that contains "
        f"{folder}"
    )


def _user_cache() -> Path:
    return user_cache_path("domainwise", appauthor=False, opinion=False)
