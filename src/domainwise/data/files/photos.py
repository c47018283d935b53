"""Listed image files to a dataset: decoded through the cache, with the settings that suit photographs."""

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from domainwise.data.dataset import Dataset, Domain
from domainwise.data.files.cache import Cached, cached_images
from domainwise.data.files.csv_table import list_csv
from domainwise.data.files.folder import list_folder
from domainwise.data.files.listing import DomainFiles, Listing
from domainwise.data.places import OnProgress, silent
from domainwise.errors import DomainwiseError

IMAGE_SIZE = 224


def image_files(
    root: str | Path,
    seed: int = 0,
    *,
    image_size: int = IMAGE_SIZE,
    skip_broken: bool = False,
    on_progress: OnProgress = silent,
) -> Dataset:
    """Any folder of images, root/domain/class/image, or a CSV file with columns path, label and domain.

    Args:
        seed: of no use here: the files are what they are.
        image_size: side in pixels that images are squashed to.
        skip_broken: leave out images that cannot be read, instead of refusing the dataset.
    """
    return photos(list_files(root), image_size=image_size, skip_broken=skip_broken, on_progress=on_progress)


def list_files(root: str | Path) -> Listing:
    """The listing of a folder or of a CSV file."""
    path = Path(root)
    if path.is_dir():
        return list_folder(path)
    if path.suffix.lower() == ".csv" and path.is_file():
        return list_csv(path)
    raise DomainwiseError(f"{path} is neither a folder of images nor a CSV file")


def photos(
    listing: Listing,
    *,
    image_size: int,
    skip_broken: bool,
    on_progress: OnProgress = silent,
    **settings: Any,
) -> Dataset:
    """The dataset of `listing`; `settings` are fields of `Dataset` that differ from what suits photographs."""
    if image_size < 1:
        raise DomainwiseError(f"image_size must be at least 1, not {image_size}")
    for gap in listing.gaps():
        warnings.warn(gap, stacklevel=2)
    domains = []
    for domain in listing.domains:

        def report(what: str, done: int, total: int, name: str = domain.name) -> None:
            on_progress(f"{what} {name}", done, total)

        cached = cached_images(domain.files, image_size, report)
        _judge(domain, cached, skip_broken)
        labels = torch.tensor([domain.labels[index] for index in cached.kept])
        domains.append(Domain(domain.name, cached.images, labels, domain.role))
    suited: dict[str, Any] = {
        "network": "resnet18",
        "weights": "IMAGENET1K_V1",
        "is_augmented": True,
        "defaults": {"lr": 5e-5, "batch_size": 32},
        "record_every": 300,
    }
    return Dataset(listing.name, listing.classes, tuple(domains), **{**suited, **settings})


def _judge(domain: DomainFiles, cached: Cached, skip_broken: bool) -> None:
    """Refuse broken images, or say how many are left out; say which were converted."""
    if cached.faults:
        first = min(cached.faults)
        fault = f"{domain.files[first]} {cached.faults[first]}"
        if not skip_broken:
            more = f", and {len(cached.faults) - 1} more images of the domain" if len(cached.faults) > 1 else ""
            raise DomainwiseError(f"{fault}{more}; --skip-broken leaves such images out")
        if not cached.kept:
            raise DomainwiseError(f"none of the {len(domain.files)} images of domain {domain.name!r} is left: {fault}")
        left = f"{len(cached.faults)} of {len(domain.files)} images"
        warnings.warn(f"{left} of domain {domain.name!r} are left out: {fault} ...", stacklevel=3)
    for note, count in Counter(cached.notes.values()).items():
        first = next(index for index in cached.notes if cached.notes[index] == note)
        warnings.warn(f"{count} images of domain {domain.name!r} are {note}: {domain.files[first]} ...", stacklevel=3)
