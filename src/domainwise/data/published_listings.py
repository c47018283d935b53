"""Listings of published datasets whose folders are not root/domain/class/image."""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domainwise.data.listing import (
    Listing,
    build_domain_files,
    build_listing,
    find_images,
    read_columns,
    read_rows,
)
from domainwise.errors import DomainwiseError, suggest_install

if TYPE_CHECKING:
    from domainwise.data.dataset import Role
    from domainwise.data.decoding import ImageFile

# Of metadata that others publish, only a few columns are kept.
_MAX_METADATA_BYTES = 2 * 10**9

_NICO_SPLIT = "mixed_split_corrected"
_NICO_ROLES: "Mapping[str, Role]" = {"train1": "train", "train2": "train", "val": "validation", "test": "test"}
_NICO_CLASSES = ("animal", "vehicle")


def list_nico(root: Path, name: str = "nico") -> Listing:
    """List NICO as OoD-Bench splits it: two training domains, one validation and one test domain; animal or vehicle.

    The files and their order are those of `mixed_split_corrected/env_*.csv`. The images are in root/<class>/<context>,
    or below root/animal and root/vehicle, with or without a folder `images`, as in NICO's own archives.
    """
    rows = {domain: read_rows(root / _NICO_SPLIT / f"env_{domain}.csv", _parse_nico_rows) for domain in _NICO_ROLES}
    roots = [_find_nico_root(root, label, rows) for label in range(len(_NICO_CLASSES))]
    domains = [
        build_domain_files(domain, [(roots[label] / path, label) for path, label in rows[domain]], role)
        for domain, role in _NICO_ROLES.items()
    ]
    return build_listing(root, name, _NICO_CLASSES, domains)


def _parse_nico_rows(file: Path, lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield path and label of each row `path,class,context,superclass`; no header, paths have backslashes."""
    for number, row in enumerate(csv.reader(lines), start=1):
        path = row[0].replace("\\", "/") if row else ""
        if len(row) != 4 or row[3] not in _NICO_CLASSES or not path or path.startswith("/") or "\0" in path:
            raise DomainwiseError(f"{file} is damaged at line {number}: expected path,class,context,superclass")
        yield path, _NICO_CLASSES.index(row[3])


def _find_nico_root(root: Path, label: int, rows: Mapping[str, Sequence[tuple[str, int]]]) -> Path:
    """Return the folder that the paths of a class are relative to: the first candidate with any of their folders."""
    kind = _NICO_CLASSES[label]
    paths = [path for domain_rows in rows.values() for path, row_label in domain_rows if row_label == label]
    folders = sorted({path.split("/")[0] for path in paths})
    for candidate in (root, root / kind, root / kind / "images"):
        if not folders or any((candidate / folder).is_dir() for folder in folders):
            return candidate
    raise DomainwiseError(
        f"{root} has the split of nico but no images: put the folders {', '.join(folders[:2])}, ... next to "
        f"{_NICO_SPLIT}; `domainwise data prepare nico` says where to request them"
    )


# Location of each class in the training domains and in the test domain, in the order of `_SPAWRIOUS_ORDER`, and the
# location of all classes in the rest of the training images: Lynch et al. 2023, as in DomainBed.
_SPAWRIOUS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], str | None]] = {
    "spawrious_o2o_easy": (("desert", "jungle", "dirt", "snow"), ("dirt", "snow", "desert", "jungle"), "beach"),
    "spawrious_o2o_medium": (("mountain", "beach", "dirt", "jungle"), ("jungle", "dirt", "beach", "snow"), "desert"),
    "spawrious_o2o_hard": (("jungle", "mountain", "snow", "desert"), ("mountain", "snow", "desert", "jungle"), "beach"),
    "spawrious_m2m_easy": (("desert", "mountain", "dirt", "jungle"), ("dirt", "jungle", "mountain", "desert"), None),
    "spawrious_m2m_medium": (("beach", "snow", "mountain", "desert"), ("desert", "mountain", "beach", "snow"), None),
    "spawrious_m2m_hard": (("dirt", "jungle", "snow", "beach"), ("snow", "beach", "dirt", "jungle"), None),
}
SPAWRIOUS = tuple(_SPAWRIOUS)
_SPAWRIOUS_ORDER = ("bulldog", "dachshund", "labrador", "corgi")
# Images per class and training domain, and how many of them are in the class's own location if there is another.
_SPAWRIOUS_TOTAL, _SPAWRIOUS_CORRELATED = 3168, (3072, 2756)
# Many to many: in one of the two training domains, each class has its own location, and in the other its neighbour's.
_SPAWRIOUS_NEIGHBOURS = (1, 0, 3, 2)


def list_spawrious(root: Path, name: str) -> Listing:
    """List one of the six Spawrious challenges: dogs of four breeds, in locations that predict the breed in training.

    The images are in root/<0 or 1>/<location>/<breed>. One to one: each breed has one location, in 97 % of the images
    of one training domain and 87 % of the other; the rest are in a location that all breeds share. Many to many: two
    breeds share two locations, and exchange them between the training domains. Domains have DomainBed's names and
    order. Where a part of a folder is used, it is the first files by name; DomainBed's order is that of the disk.
    """
    own, tested, shared = _SPAWRIOUS[name]
    classes = sorted(_SPAWRIOUS_ORDER)
    domains: dict[str, list[tuple[ImageFile, int]]] = {"Test": [], "SC_group_1": [], "SC_group_2": []}

    def add(domain: str, place: str, breed: str, limit: int | None = None) -> None:
        files = find_images(root / place / breed)
        if not files:
            raise DomainwiseError(f"{name} needs images in {root / place / breed}, and there are none")
        domains[domain] += [(file, classes.index(breed)) for file in files[:limit]]

    for group in (0, 1):
        domain = f"SC_group_{group + 1}"
        for index, breed in enumerate(_SPAWRIOUS_ORDER):
            if shared is not None:
                add(domain, f"{group}/{own[index]}", breed, _SPAWRIOUS_CORRELATED[group])
                add("Test", f"{group}/{tested[index]}", breed)
            else:
                place = _SPAWRIOUS_NEIGHBOURS[index] if group else index
                add(domain, f"0/{own[place]}", breed, _SPAWRIOUS_TOTAL)
                add("Test", f"0/{tested[place]}", breed)
        for breed in _SPAWRIOUS_ORDER if shared is not None else ():
            add(domain, f"{group}/{shared}", breed, _SPAWRIOUS_TOTAL - _SPAWRIOUS_CORRELATED[group])
    return build_listing(
        root,
        name,
        classes,
        [build_domain_files(each, images, "test" if each == "Test" else "train") for each, images in domains.items()],
    )


def list_camelyon17(root: Path, name: str = "camelyon17") -> Listing:
    """List WILDS' Camelyon17, version 1.0: patches of tissue with or without tumour from five hospitals.

    The files and their order are those of `metadata.csv`; domains have DomainBed's names. WILDS itself trains on
    hospitals 0, 3 and 4, and tests on hospital 2.
    """
    file = root / "metadata.csv"
    images: dict[int, list[tuple[ImageFile, int]]] = {}
    columns = ("patient", "node", "x_coord", "y_coord", "tumor", "center")
    for row in read_columns(file, columns, max_bytes=_MAX_METADATA_BYTES):
        patient, node, x, y, tumor, center = row
        if not all(map(str.isdigit, row)) or tumor not in ("0", "1"):
            raise DomainwiseError(f"{file} is damaged: expected numbers for {', '.join(columns)}, got {', '.join(row)}")
        place = f"patient_{patient}_node_{node}"
        path = root / "patches" / place / f"patch_{place}_x_{x}_y_{y}.png"
        images.setdefault(int(center), []).append((path, int(tumor)))
    domains = [build_domain_files(f"hospital_{center}", images[center]) for center in sorted(images)]
    return build_listing(root, name, ("normal", "tumor"), domains)


def list_fmow(root: Path, name: str = "fmow") -> Listing:
    """List WILDS' FMoW, version 1.1: land use in satellite images from five regions of the world, and other places.

    All images of `rgb_metadata.csv` but the sequestered ones, as in DomainBed, in its order of regions: the first image
    of each decides.
    """
    countries = read_columns(root / "country_code_mapping.csv", ("alpha-3", "region"), optional=("region",))
    regions = {row[0]: row[1] for row in countries}
    columns = ("split", "category", "country_code")
    rows = read_columns(root / "rgb_metadata.csv", columns, optional=("country_code",), max_bytes=_MAX_METADATA_BYTES)
    classes = {category: label for label, category in enumerate(sorted({category for _, category, _ in rows}))}
    images: dict[str, list[tuple[ImageFile, int]]] = {}
    for index, (split, category, country) in enumerate(rows):
        of_region = images.setdefault(regions.get(country) or "Other", [])
        if split != "seq":
            of_region.append((root / "images" / f"rgb_img_{index}.png", classes[category]))
    domains = [build_domain_files(region, of_region) for region, of_region in images.items() if of_region]
    return build_listing(root, name, tuple(classes), domains)


IMAGENET_VARIANTS = ("imagenet_r", "imagenet_a", "imagenet_sketch", "imagenet_v2")
_WORDNET_ID = re.compile(r"n\d{8}")


def list_imagenet_variant(root: Path, name: str) -> Listing:
    """List new images of ImageNet's classes, for evaluation only: one test domain, with WordNet ids as class names.

    The folders are named by WordNet id, as in ImageNet itself, or, in ImageNetV2, by the position of the class.
    """
    folders = {each.name: each for each in root.iterdir() if each.is_dir() and not each.name.startswith((".", "__"))}
    if folders and all(map(str.isdecimal, folders)):
        ids = load_wordnet_ids(name)
        if unknown := [each for each in folders if int(each) >= len(ids)]:
            raise DomainwiseError(
                f"folder {unknown[0]} in {root} is not a class of ImageNet; expected 0 to {len(ids) - 1}"
            )
        folders = {ids[int(position)]: folder for position, folder in folders.items()}
    elif not folders or not all(map(_WORDNET_ID.fullmatch, folders)):
        raise DomainwiseError(f"{root} must have one folder per class, named by WordNet id (n01440764) or position (0)")
    classes = sorted(folders)
    images: list[tuple[ImageFile, int]] = [
        (file, label) for label, kind in enumerate(classes) for file in find_images(folders[kind])
    ]
    if not images:
        raise DomainwiseError(f"no images found in {root}")
    return build_listing(root, name, classes, [build_domain_files(name, images, "test")])


def load_wordnet_ids(name: str) -> list[str]:
    """Return the WordNet ids of ImageNet's 1,000 classes in order; `name` is what the error says needs them."""
    try:
        from timm.data.imagenet_info import ImageNetInfo
    except ImportError as error:
        raise DomainwiseError(f"{name} needs timm; {suggest_install('timm')}") from error
    info: Any = ImageNetInfo("imagenet-1k")
    return list(info.label_names())
