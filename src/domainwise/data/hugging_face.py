"""Datasets of the Hugging Face Hub, or local folders in its formats, with columns for image, label and domain.

`hf:owner/name` is loaded through the `datasets` library and its cache. Images stay encoded in its Arrow files until
they are decoded into our cache, by the same rule as files.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from domainwise.data.dataset import Dataset
from domainwise.data.decoding import ImageFile, TableImage, UnreadableFile, read_image_file
from domainwise.data.image_datasets import IMAGE_SIZE, OnListing, build_image_dataset, ignore_listing
from domainwise.data.listing import Listing, build_domain_files, build_listing, is_saved_table, name_dataset
from domainwise.data.paths import OnProgress, expand_home, ignore_progress
from domainwise.errors import DomainwiseError, suggest_install, unknown_choice
from domainwise.storage.hub import PREFIX, HubName, parse_name

ALL_SPLITS = "all"


def is_hub_dataset(dataset: object) -> TypeGuard[str]:
    """Return whether a dataset is given as `hf:...`."""
    return isinstance(dataset, str) and dataset.startswith(PREFIX)


def find_hub_dataset(text: str) -> HubName | Path:
    """Parse `hf:owner/name` or `hf:owner/name@revision`; `hf:./folder`, `hf:/folder` and `hf:~/folder` are local."""
    name = text.removeprefix(PREFIX)
    return expand_home(name) if name.startswith((".", "/", "~")) else parse_name(text, "dataset")


def name_hub_dataset(text: str) -> str:
    """Return the name in records: `hf:owner/name` itself, or the name of a local folder."""
    source = find_hub_dataset(text)
    return name_dataset(source) if isinstance(source, Path) else str(source)


def hugging_face_dataset(
    name: str,
    seed: int = 0,
    *,
    image_column: str = "image",
    label_column: str = "label",
    domain_column: str = "domain",
    split: str = ALL_SPLITS,
    config: str = "",
    image_size: int = IMAGE_SIZE,
    skip_broken: bool = False,
    on_progress: OnProgress = ignore_progress,
    on_listing: OnListing = ignore_listing,
) -> Dataset:
    """Build a dataset from the Hugging Face Hub, or from a local folder in one of its formats.

    Args:
        name: `hf:owner/name`, `hf:owner/name@revision`, or `hf:./folder` for a folder that `save_to_disk` wrote or that
            `load_dataset` can load (Parquet, imagefolder).
        seed: not used; every builder has it.
        image_column, label_column, domain_column: names of the columns. Labels and domains are class labels, strings or
            integers.
        split: the split to use; `all` for all of them together.
        config: configuration of the dataset (the Hub calls it subset), if it has several.
        image_size, skip_broken, on_progress, on_listing: as for `image_files`.
    """
    listing = list_hub_dataset(
        name,
        image_column=image_column,
        label_column=label_column,
        domain_column=domain_column,
        split=split,
        config=config,
    )
    return build_image_dataset(
        listing, image_size=image_size, skip_broken=skip_broken, on_progress=on_progress, on_listing=on_listing
    )


def list_hub_dataset(
    name: str,
    *,
    image_column: str = "image",
    label_column: str = "label",
    domain_column: str = "domain",
    split: str = ALL_SPLITS,
    config: str = "",
) -> Listing:
    """List the images of a dataset, downloading it if necessary; arguments as for `hugging_face_dataset`.

    Classes and domains are sorted by name, integers by value. Images are in the order of their rows.
    """
    splits = _load_splits(name, config)
    if not any(map(len, splits.values())):
        raise DomainwiseError(f"{name} has no rows")
    if split != ALL_SPLITS:
        if split not in splits:
            raise unknown_choice(f"split of {name}", split, (*splits, ALL_SPLITS))
        splits = {split: splits[split]}
    files: list[ImageFile] = []
    labels: list[str | int] = []
    domains: list[str | int] = []
    # An empty split may lack columns, or have them without a type.
    for split_name, rows in ((split_name, rows) for split_name, rows in splits.items() if len(rows)):
        where = f"{name}, split {split_name}"
        options = {"image_column": image_column, "label_column": label_column, "domain_column": domain_column}
        for option, column in options.items():
            if column not in rows.column_names:
                columns = ", ".join(rows.column_names)
                raise DomainwiseError(
                    f"{where} has no column {column!r}; choose with --dataset-option {option}=NAME from {columns}"
                )
        labels += _read_names(rows, label_column, where)
        domains += _read_names(rows, domain_column, where)
        files += _list_column(rows, image_column, where)
    if not files:
        raise DomainwiseError(f"{name} has no rows in split {split}")
    classes = {value: index for index, value in enumerate(_sort_values(labels))}
    images: dict[str | int, list[tuple[ImageFile, int]]] = {value: [] for value in _sort_values(domains)}
    for file, label, domain in zip(files, labels, domains, strict=True):
        images[domain].append((file, classes[label]))
    listing = build_listing(
        name,
        name_hub_dataset(name),
        [str(value) for value in classes],
        [build_domain_files(str(domain), of_domain) for domain, of_domain in images.items()],
    )
    return replace(listing, revision=None if isinstance(find_hub_dataset(name), Path) else _read_commit(splits))


def _sort_values(values: Sequence[str | int]) -> list[str | int]:
    return sorted(set(values), key=lambda value: (isinstance(value, str), value))


def _load_splits(name: str, config: str) -> Mapping[str, Any]:
    """Load a dataset; return its splits by name."""
    source = find_hub_dataset(name)
    if isinstance(source, Path) and not source.is_dir():
        raise DomainwiseError(f"folder {source} not found; a dataset of the Hub is {PREFIX}owner/name")
    if config and isinstance(source, Path) and is_saved_table(source):
        raise DomainwiseError(
            f"{name} was written by save_to_disk, which has no configurations; remove the option config={config}"
        )
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        raise DomainwiseError(f"{name} needs datasets; {suggest_install('datasets')}") from error
    commit = None if isinstance(source, Path) else _find_commit(datasets, source)
    with _use_library(datasets, name):
        if isinstance(source, Path) and is_saved_table(source):
            return _load_saved_splits(datasets, source)
        if isinstance(source, Path):
            loaded = datasets.load_dataset(str(source.resolve()), config or None)
        else:
            loaded = datasets.load_dataset(source.name, config or None, revision=commit)
    splits = loaded if isinstance(loaded, dict) else {str(loaded.split or "train"): loaded}
    _check_commit(splits, name, commit)
    return splits


def _find_commit(datasets: Any, source: HubName) -> str | None:
    """Return the commit that a revision stands for; None without a revision."""
    if source.revision is None or re.fullmatch("[0-9a-f]{40}", source.revision):
        return source.revision
    from huggingface_hub import HfApi

    try:
        return HfApi(endpoint=datasets.config.HF_ENDPOINT).dataset_info(source.name, revision=source.revision).sha
    except Exception as error:  # as below
        raise DomainwiseError(
            f"revision {source.revision} of {PREFIX}{source.name} was not found ({_describe_error(error)}); without a "
            "connection, give a commit of 40 digits"
        ) from error


def _check_commit(splits: Mapping[str, Any], name: str, commit: str | None) -> None:
    """Raise an error if the splits are not of this commit: offline, the library loads the latest in its cache."""
    if commit is not None and _read_commit(splits) != commit:
        raise DomainwiseError(
            f"{name} could not be downloaded, and the latest revision in the cache of the datasets library is another"
        )


def _read_commit(splits: Mapping[str, Any]) -> str | None:
    """Return the commit that splits of the Hub are from, which the library names the folder of its cache after."""
    folders = {Path(file["filename"]).parent.name for rows in splits.values() for file in rows.cache_files}
    return folders.pop() if len(folders) == 1 else None


def _load_saved_splits(datasets: Any, folder: Path) -> dict[str, Any]:
    """Load the splits that `save_to_disk` wrote; those without rows, on which the library fails, are left out."""
    if (folder / "state.json").is_file():
        folders = [folder]
    else:
        folders = [folder / name for name in json.loads((folder / "dataset_dict.json").read_bytes())["splits"]]
    splits = {}
    for each in folders:
        if json.loads((each / "state.json").read_bytes()).get("_data_files") != []:
            rows = datasets.load_from_disk(str(each))
            splits[str(rows.split or "train") if each == folder else each.name] = rows
    return splits


@contextmanager
def _use_library(datasets: Any, name: str) -> Iterator[None]:
    """Turn the library's errors into one line; no bars without a terminal, and no log of its retries."""
    hides_bars = not sys.stderr.isatty() and not datasets.utils.are_progress_bars_disabled()
    loggers = [logging.getLogger(each) for each in ("datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    if hides_bars:
        datasets.disable_progress_bars()
    try:
        yield
    except ConnectionError as error:
        raise DomainwiseError(
            f"{name} is not in the cache of the datasets library and could not be downloaded ({error}); "
            f"check the connection and, if they are set, HF_HUB_OFFLINE and HF_ENDPOINT"
        ) from error
    except Exception as error:
        # The library and those below it raise many types of errors for files that they cannot read.
        raise DomainwiseError(f"{name} could not be loaded: {_describe_error(error.__cause__ or error)}") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if hides_bars:
            datasets.enable_progress_bars()


def _describe_error(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _read_names(rows: Any, column: str, where: str) -> list[str | int]:
    """Return the name or number of each row's class or domain."""
    feature = rows.features[column]
    values = rows.select_columns([column])[:][column] if len(rows) else []
    class_names = getattr(feature, "names", None)
    for row, value in enumerate(values):
        if value is None or value == "" or (class_names is not None and value < 0):
            raise DomainwiseError(f"{where} has no {column} in row {row}")
        if class_names is not None and value >= len(class_names):
            raise DomainwiseError(
                f"{where} has {column} {value} in row {row}, but the column has only {len(class_names)} class names"
            )
        if not isinstance(value, str | int):
            raise DomainwiseError(
                f"column {column!r} of {where} has values of type {type(value).__name__}; expected ClassLabel, "
                "string or integer"
            )
    return list(values) if class_names is None else [class_names[value] for value in values]


@dataclass(frozen=True, eq=False)
class _ImageColumn:
    """The images of one split: an `ImageTable`."""

    rows: Any
    column: str
    name: str
    version: tuple[int, int, int] | None

    def read(self, row: int) -> bytes:
        image = self.rows[row][self.column]
        if image is None or (image["bytes"] is None and image["path"] is None):
            raise UnreadableFile("has no image")
        content: bytes | None = image["bytes"]
        return read_image_file(Path(image["path"])) if content is None else content


def _list_column(rows: Any, column: str, where: str) -> list[ImageFile]:
    """Return the images of a split: its files if it refers to files, as an imagefolder does."""
    import datasets

    try:
        rows = rows.select_columns([column]).cast_column(column, datasets.Image(decode=False))
        first = rows[0][column] if len(rows) else None
    except Exception as error:  # pyarrow's errors have no common base that is not Exception
        kind = type(rows.features[column]).__name__
        raise DomainwiseError(f"column {column!r} of {where} has no images; its type is {kind}") from error
    table = _ImageColumn(rows, column, f"{where}, column {column}", _read_version(rows.cache_files))
    if first is None or first["bytes"] is not None:
        return [TableImage(table, row) for row in range(len(rows))]
    return [
        Path(image["path"]) if image and image["bytes"] is None and image["path"] else TableImage(table, row)
        for row, image in enumerate(rows[:][column])
    ]


def _read_version(files: Sequence[Mapping[str, str]]) -> tuple[int, int, int] | None:
    """Return the total size and the latest times of the Arrow files; None for a table in memory."""
    stats = [os.stat(file["filename"]) for file in files]
    if not stats:
        return None
    size = sum(stat.st_size for stat in stats)
    return size, max(stat.st_mtime_ns for stat in stats), max(stat.st_ctime_ns for stat in stats)
