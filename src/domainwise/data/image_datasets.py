"""Datasets of image files: any folder, CSV or JSON file, and the published datasets, decoded through the cache."""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from domainwise.data.cache import CachedImages, decode_files, load_cached_images
from domainwise.data.dataset import Dataset, Domain
from domainwise.data.decoding import CenterCrop, ImageFile
from domainwise.data.download.sources import SOURCES
from domainwise.data.listing import DomainFiles, Listing, list_folder, list_images
from domainwise.data.paths import OnProgress, dataset_folder, ignore_progress
from domainwise.data.published_listings import (
    IMAGENET_VARIANTS,
    SPAWRIOUS,
    list_camelyon17,
    list_fmow,
    list_imagenet_variant,
    list_nico,
    list_spawrious,
)
from domainwise.errors import DomainwiseError
from domainwise.hparams import Power

IMAGE_SIZE = 224
_MAX_IMAGE_SIZE = 16384

# Called with all files of a dataset before the first image is read, to raise an error without delay.
OnListing = Callable[[Listing], object]


def ignore_listing(listing: Listing) -> None:
    """Do nothing: the default `OnListing`."""


def image_files(
    root: str | Path,
    seed: int = 0,
    *,
    image_size: int = IMAGE_SIZE,
    skip_broken: bool = False,
    on_progress: OnProgress = ignore_progress,
    on_listing: OnListing = ignore_listing,
) -> Dataset:
    """Build a dataset from a folder root/domain/class/image, or a file that lists images.

    Args:
        root: the folder, a CSV file with columns path, label and domain, or a JSON file {domain: {class: [path]}}.
        seed: not used; every builder has it.
        image_size: images are resized to this many pixels per side.
        skip_broken: leave out images that could not be read, instead of raising an error.
        on_progress: called while images are read and decoded.
        on_listing: called before, with the files.
    """
    return build_image_dataset(
        list_images(root),
        image_size=image_size,
        skip_broken=skip_broken,
        on_progress=on_progress,
        on_listing=on_listing,
    )


@dataclass(frozen=True, eq=False)
class PublishedDataset:
    """A builder of a dataset that is read from a known folder inside the data folder.

    Args:
        name: name of the dataset; `SOURCES` has its folder.
        list_files: lists the files of that folder.
        settings: fields of `Dataset` that differ from the defaults for photographs.
    """

    name: str
    list_files: Callable[[Path, str], Listing] = list_folder
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(
        self,
        seed: int = 0,
        *,
        data_dir: str | Path | None = None,
        image_size: int = IMAGE_SIZE,
        skip_broken: bool = False,
        on_progress: OnProgress = ignore_progress,
        on_listing: OnListing = ignore_listing,
    ) -> Dataset:
        """Build the dataset; `data_dir` contains its folder, the other arguments are those of `image_files`."""
        dataset = build_image_dataset(
            self.load_listing(data_dir),
            image_size=image_size,
            skip_broken=skip_broken,
            on_progress=on_progress,
            on_listing=on_listing,
        )
        return replace(dataset, **self.settings)

    def load_listing(self, data_dir: str | Path | None = None) -> Listing:
        return self.list_files(dataset_folder(self.name, SOURCES[self.name].folder, data_dir), self.name)


PUBLISHED: Mapping[str, PublishedDataset] = {
    dataset.name: dataset
    for dataset in (
        PublishedDataset("pacs"),
        PublishedDataset("office_home"),
        PublishedDataset("vlcs"),
        PublishedDataset("terra_incognita"),
        PublishedDataset(
            "domainnet", settings={"record_every": 1000, "search": {"batch_size": Power(2, 3, 5, whole=True)}}
        ),
        # NICO uses whole domains, and a network without ImageNet weights: ImageNet has nearly the same classes.
        PublishedDataset("nico", list_nico, settings={"record_every": 100, "holdout_fraction": 0.0, "weights": "none"}),
        PublishedDataset("sviro"),
        *(PublishedDataset(name, list_spawrious, settings={"record_every": 100}) for name in SPAWRIOUS),
        PublishedDataset("camelyon17", list_camelyon17, settings={"record_every": 100}),
        PublishedDataset("fmow", list_fmow, settings={"record_every": 100}),
        *(PublishedDataset(name, list_imagenet_variant) for name in IMAGENET_VARIANTS),
    )
}


def build_image_dataset(
    listing: Listing,
    *,
    image_size: int,
    skip_broken: bool,
    on_progress: OnProgress = ignore_progress,
    on_listing: OnListing = ignore_listing,
    crop: CenterCrop | None = None,
) -> Dataset:
    """Build the dataset of `listing`, with default settings for photographs; `crop` as for `decode_image`."""
    if image_size < 1:
        raise DomainwiseError(f"image_size must be at least 1, got {image_size}")
    if image_size > _MAX_IMAGE_SIZE:
        raise DomainwiseError(f"image_size must be at most {_MAX_IMAGE_SIZE}, got {image_size}")
    on_listing(listing)
    for line in listing.describe_missing_classes():
        warnings.warn(line, stacklevel=2)
    domains = []
    for files in listing.domains:
        cached = load_cached_images(files.files, image_size, _name_progress(on_progress, files.name), crop)
        _report_broken_images(files, cached, skip_broken)
        labels = torch.tensor([files.labels[index] for index in cached.kept])
        domains.append(Domain(files.name, cached.images, labels, files.role))
    return Dataset(
        listing.name,
        listing.classes,
        tuple(domains),
        network="resnet18",
        weights="IMAGENET1K_V1",
        is_augmented=True,
        defaults={"lr": 5e-5, "batch_size": 32},
        record_every=300,
        revision=listing.revision,
    )


def _name_progress(on_progress: OnProgress, domain: str) -> OnProgress:
    """Return a callback that adds the domain to the description."""
    return lambda description, done, total: on_progress(f"{description} {domain}", done, total)


def _report_broken_images(files: DomainFiles, cached: CachedImages, skip_broken: bool) -> None:
    """Raise an error for broken images, or warn if they are skipped; warn about converted images."""
    if cached.errors:
        first = min(cached.errors)
        error = f"{files.files[first]} {cached.errors[first]}"
        if not skip_broken:
            more = f" (+{len(cached.errors) - 1} more in domain {files.name!r})" if len(cached.errors) > 1 else ""
            raise DomainwiseError(f"{error}{more}; use --skip-broken to leave out such images")
        if not cached.kept:
            raise DomainwiseError(f"all {len(files.files)} images of domain {files.name!r} are broken: {error}")
        broken = f"{len(cached.errors)} of {len(files.files)} images"
        warnings.warn(f"{broken} of domain {files.name!r} are left out: {error} ...", stacklevel=3)
    for note, count in Counter(cached.notes.values()).items():
        first = next(index for index in cached.notes if cached.notes[index] == note)
        warnings.warn(f"{count} images of domain {files.name!r} are {note}: {files.files[first]} ...", stacklevel=3)


@dataclass(frozen=True)
class ImageCheck:
    """Result of `check_images`.

    Args:
        errors: files that could not be read, with the reason.
        notes: files that are converted, with the kind.
        missing_classes: one line per class that is missing in a domain.
        skipped: number of files in the folder that are not part of the dataset, per suffix.
    """

    errors: dict[ImageFile, str]
    notes: dict[ImageFile, str]
    missing_classes: list[str]
    skipped: Counter[str]


def check_images(listing: Listing, on_progress: OnProgress = ignore_progress) -> ImageCheck:
    """Decode every file of `listing` without keeping the images."""
    errors, notes = {}, {}
    for files in listing.domains:
        images = decode_files(files.files, 1, _name_progress(on_progress, files.name))
        for file, image in zip(files.files, images, strict=True):
            if image.error:
                errors[file] = image.error
            elif image.note:
                notes[file] = image.note
    return ImageCheck(errors, notes, listing.describe_missing_classes(), listing.count_skipped_files())
