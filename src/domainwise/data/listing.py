"""Listings: which image files a dataset has, with the domain and class of each, before any file is opened."""

import csv
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from domainwise.data.paths import expand_home
from domainwise.errors import DomainwiseError
from domainwise.escaping import escape_unprintable

if TYPE_CHECKING:
    from domainwise.data.dataset import Role
    from domainwise.data.decoding import ImageFile

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
# Also those of formats that are not read, of phones and cameras among others.
ANY_IMAGE_SUFFIXES = (
    *IMAGE_SUFFIXES,
    *(".avif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jxl", ".psd", ".svg", ".tga"),
    *(".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".raf", ".rw2"),
)
# Files that list the images of a dataset.
LIST_SUFFIXES = (".csv", ".json")
_IGNORED_PREFIXES = (".", "__")
_LAYOUT = "images are expected at root/domain/class/image"
_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
# Far more than any dataset has; it keeps a wrong file from filling the memory.
_MAX_LIST_BYTES = 256 * 10**6
_MAX_CELLS = 10**6
_MAX_SUFFIXES = 8


@dataclass(frozen=True)
class DomainFiles:
    """The files of one domain and the label of each."""

    name: str
    files: "tuple[ImageFile, ...]"
    labels: tuple[int, ...]
    role: "Role | None" = None


@dataclass(frozen=True)
class Listing:
    """All files of a dataset; `revision` as of `Dataset`, and `root` is the folder whose images they all are."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[DomainFiles, ...]
    revision: str | None = None
    root: Path | None = None

    def count_images(self) -> list[list[int]]:
        """Return the number of images per domain (row) and class (column)."""
        counters = [Counter(domain.labels) for domain in self.domains]
        return [[counter[label] for label in range(len(self.classes))] for counter in counters]

    def count_skipped_files(self) -> Counter[str]:
        """Return the number of files per suffix that are in the folder and not in the dataset, without hidden ones."""
        listed = {os.fspath(file) for domain in self.domains for file in domain.files if isinstance(file, Path)}
        return _count_files(self.root, listed) if self.root else Counter()

    def describe_missing_classes(self) -> list[str]:
        """Return one line per class that is missing in a domain."""
        return [
            f"domain {domain.name!r} of {self.name} has no image of class {self.classes[label]!r}"
            for domain, row in zip(self.domains, self.count_images(), strict=True)
            for label, count in enumerate(row)
            if count == 0
        ]


def list_images(root: str | Path) -> Listing:
    """List the images of a folder, a CSV file or a JSON file."""
    path = expand_home(root)
    if path.is_dir():
        try:
            return list_folder(path)
        except DomainwiseError:
            check_not_table(path)
            raise
    if path.suffix.lower() in LIST_SUFFIXES and path.is_file():
        return list_csv(path) if path.suffix.lower() == ".csv" else list_json(path)
    kinds = "a folder of images, a CSV file or a JSON file"
    if not os.path.lexists(path):
        raise DomainwiseError(f"{path} not found; expected {kinds}")
    raise DomainwiseError(f"{path} is not {kinds}")


def is_saved_table(folder: Path) -> bool:
    """Return whether `save_to_disk` of the datasets library wrote a folder: one split, or several."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def check_not_table(path: Path) -> None:
    """Raise an error if a folder that is no folder of images has a format of the datasets library."""
    if is_saved_table(path) or any(any(path.glob(pattern)) for pattern in ("*.parquet", "*/*.parquet")):
        name = path if path.is_absolute() or str(path).startswith(".") else f"./{path}"
        raise DomainwiseError(f"{path} is a dataset in a format of the Hugging Face Hub; pass it as hf:{name}")


def name_dataset(path: str | Path) -> str:
    """Return the name of the dataset in a folder or file, as given: a link has its own name, not its target's."""
    path = Path(os.path.abspath(expand_home(path)))
    return escape_unprintable(path.stem if path.suffix.lower() in LIST_SUFFIXES and not path.is_dir() else path.name)


def list_folder(root: Path, name: str | None = None) -> Listing:
    """List the files at root/domain/class; domains, classes and files are sorted by name.

    If all domains contain nothing but one folder of the same name, such as Office-31's `images`, the classes are below
    that folder. Folders that start with a dot or two underscores, hidden files, and files without an image suffix are
    ignored. A class that is missing in some domains has the same label in all others.
    """
    domain_folders = _list_subfolders(root)
    parents = _find_class_parents(domain_folders)
    names = [folder.name for parent in parents for folder in _list_subfolders(parent)]
    classes = sorted(set(names))
    _check_layout(root, domain_folders, classes)
    # The domains of a dataset share classes; the datasets in a folder seldom share domains.
    if len(names) == len(classes):
        _check_root(root, domain_folders)
    domains = []
    for folder, parent in zip(domain_folders, parents, strict=True):
        images = [(file, label) for label, kind in enumerate(classes) for file in find_images(parent / kind)]
        if not images:
            hint = "remove the folder or fill it"
            if _has_images(folder):
                hint = f"its images are not in class folders; {_LAYOUT}"
            elif others := _count_files(folder):
                hint = f"it has only other files ({describe_suffixes(others)}); expected {', '.join(IMAGE_SUFFIXES)}"
            raise DomainwiseError(f"domain {folder.name!r} has no images in {folder}: {hint}")
        domains.append(build_domain_files(folder.name, images))
    return replace(build_listing(root, name or name_dataset(root), classes, domains), root=root)


def _find_class_parents(domains: Sequence[Path]) -> list[Path]:
    """Return the folder of each domain that contains its class folders: the domain's, or the only one in it."""
    children = [_list_subfolders(domain) for domain in domains]
    names = {tuple(child.name for child in each) for each in children}
    if len(names) == 1 and len(names.pop()) == 1:
        inner = [each[0] for each in children]
        if all(_list_subfolders(folder) and not _has_images(folder) for folder in inner):
            return inner
    return list(domains)


def _check_layout(root: Path, domains: Sequence[Path], classes: Sequence[str]) -> None:
    """Raise an error if the folders seem to have a level too few or too many."""
    if not classes:
        is_domain = any(map(_has_images, domains))
        hint = f"; if its folders are classes, {root} is one domain, and the dataset is the folder above it"
        raise DomainwiseError(f"no images found in {root}: {_LAYOUT}{hint if is_domain else ''}")
    if len(classes) > 1 and {name.lower() for name in classes} <= _SPLITS:
        raise DomainwiseError(
            f"the classes in {root} are named {', '.join(classes)}: {_LAYOUT}, without a level for the parts of a split"
        )


def _check_root(root: Path, folders: Sequence[Path]) -> None:
    """Raise an error if the domains are in one of these folders, or below; it names the right root."""
    for folder in folders:
        while len(children := _list_subfolders(folder)) == 1 and not _has_images(folder):
            folder = children[0]
        if _contains_domains(folder):
            places = "one folder with domains in it" if len(folders) == 1 else "folders with domains in them"
            raise DomainwiseError(f"{root} has {places}: {_LAYOUT}; did you mean {folder}?")


def _contains_domains(folder: Path) -> bool:
    """Return whether the folders in a folder look like domains: no images but the same folders in each of them."""
    children = _list_subfolders(folder)
    if len(children) < 2 or any(map(_has_images, children)):
        return False
    classes = [{each.name for each in _list_subfolders(parent)} for parent in _find_class_parents(children)]
    return len(set.intersection(*classes)) > 1


def find_images(folder: Path) -> list[Path]:
    """Return the images in a folder and its subfolders, in the order of torchvision's ImageFolder.

    Links are followed. A warning names those that lead to a folder listed before, which are left out.
    """
    if not folder.is_dir():
        return []
    contents, repeated = _walk(folder)
    for path in repeated:
        warnings.warn(f"{path} is left out: it leads to a folder that is already listed", stacklevel=2)
    return [path for parent, files in contents for path in map(Path(parent).joinpath, filter(_is_image_name, files))]


def _walk(folder: Path) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """Return folders and the names of their files, sorted, and the links to folders that were entered before."""
    contents, repeated = [], []
    # The real path of each folder, to enter it only once: links may form a loop.
    real_paths = {os.fspath(folder): os.path.realpath(folder)}
    entered = set(real_paths.values())
    for parent, subfolders, files in os.walk(folder, onerror=_raise_unreadable, followlinks=True):
        names = sorted(name for name in subfolders if not name.startswith(_IGNORED_PREFIXES))
        subfolders.clear()
        for name in names:
            path = os.path.join(parent, name)
            real = os.path.realpath(path) if os.path.islink(path) else os.path.join(real_paths[parent], name)
            if real in entered:
                repeated.append(path)
                continue
            entered.add(real)
            real_paths[path] = real
            subfolders.append(name)
        contents.append((parent, sorted(name for name in files if not name.startswith("."))))
    return sorted(contents), repeated


def _count_files(folder: Path, listed: Container[str] = ()) -> Counter[str]:
    """Return the number of files per suffix in a folder and its subfolders, without hidden ones and the `listed`."""
    return Counter(
        os.path.splitext(name)[1].lower() or "without suffix"
        for parent, files in _walk(folder)[0]
        for name in files
        if os.path.join(parent, name) not in listed
    )


def describe_suffixes(counts: Mapping[str, int]) -> str:
    """Return counts per suffix as text, those of images first, such as "10 .heic, 2 .txt"."""
    suffixes = sorted(counts, key=lambda suffix: (suffix not in ANY_IMAGE_SUFFIXES, -counts[suffix], suffix))
    more = f" (+{len(suffixes) - _MAX_SUFFIXES} more suffixes)" if len(suffixes) > _MAX_SUFFIXES else ""
    return ", ".join(f"{counts[suffix]} {suffix}" for suffix in suffixes[:_MAX_SUFFIXES]) + more


def _is_image_name(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def _has_images(folder: Path) -> bool:
    return any(_is_image_name(child.name) for child in _list_children(folder))


def _list_subfolders(parent: Path) -> list[Path]:
    return [
        child for child in _list_children(parent) if child.is_dir() and not child.name.startswith(_IGNORED_PREFIXES)
    ]


def _list_children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        _raise_unreadable(error)


def _raise_unreadable(error: OSError) -> NoReturn:
    raise DomainwiseError(f"folder {error.filename} could not be read: {error.strerror}") from error


def build_listing(source: str | Path, name: str, classes: Sequence[str], domains: Sequence[DomainFiles]) -> Listing:
    """Build a listing of at least two classes in which every file occurs once; errors name `source`.

    Names are escaped: they go into records, folder names and tables.
    """
    listing = Listing(
        name,
        tuple(map(escape_unprintable, classes)),
        tuple(replace(domain, name=escape_unprintable(domain.name)) for domain in domains),
    )
    for kind, names in (("classes", listing.classes), ("domains", [domain.name for domain in listing.domains])):
        if len(set(names)) < len(names):
            raise DomainwiseError(f"two {kind} in {source} have the same name when written as text; rename one")
    labels = {label for domain in domains for label in domain.labels}
    if len(labels) < 2:
        only = listing.classes[labels.pop()]
        raise DomainwiseError(f"{source} has images of one class only, {only!r}; at least two are needed")
    if len(classes) * len(domains) > _MAX_CELLS:
        raise DomainwiseError(
            f"{source} has {len(classes):,} classes in {len(domains):,} domains, more than {_MAX_CELLS:,} combinations"
        )
    _check_distinct(listing)
    return listing


def _check_distinct(listing: Listing) -> None:
    """Raise an error if two paths lead to one file: its copies could be on both sides of a split."""
    folders: dict[str, tuple[str, set[str]]] = {}
    paths: dict[str, Path] = {}
    repeated: list[tuple[Path, Path]] = []
    for file in (file for domain in listing.domains for file in domain.files if isinstance(file, Path)):
        folder, name = os.path.split(file)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder), _list_links(folder)
        real_folder, links = folders[folder]
        real = os.path.realpath(file) if name in links else f"{real_folder}/{name}"
        if real in paths:
            repeated.append((paths[real], file))
        paths[real] = file
    if repeated:
        more = f" (+{len(repeated) - 1} more)" if len(repeated) > 1 else ""
        raise DomainwiseError(
            f"{repeated[0][0]} and {repeated[0][1]} are the same file{more}; an image may occur in a dataset only once"
        )


def _list_links(folder: str) -> set[str]:
    """Return the names of the links in a folder; by folder, because asking for each file takes far longer."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_symlink()}
    except OSError:
        return set()


def build_domain_files(name: str, images: "Sequence[tuple[ImageFile, int]]", role: "Role | None" = None) -> DomainFiles:
    """Build the listing of one domain from its files and the label of each."""
    return DomainFiles(name, tuple(file for file, _ in images), tuple(label for _, label in images), role)


def list_csv(file: Path) -> Listing:
    """List the files in a CSV file with columns path, label and domain.

    Paths are absolute or relative to the CSV file's folder. Classes and domains are sorted by name. Missing files are
    reported as broken images when they are read.
    """
    rows = read_columns(file, ("path", "label", "domain"))
    classes = sorted({label for _, label, _ in rows})
    labels = {name: label for label, name in enumerate(classes)}
    images: dict[str, list[tuple[ImageFile, int]]] = {name: [] for name in sorted({domain for *_, domain in rows})}
    for path, label, domain in rows:
        images[domain].append((file.parent / path.replace("\\", "/"), labels[label]))
    domains = [build_domain_files(name, of_domain) for name, of_domain in images.items()]
    return build_listing(file, name_dataset(file), classes, domains)


def list_json(file: Path) -> Listing:
    """List the files in a JSON file {domain: {class: [path, ...]}}.

    Paths are absolute or relative to the JSON file's folder. Classes and domains are sorted by name. Missing files are
    reported as broken images when they are read.
    """
    content = dict(read_rows(file, _parse_json))
    classes = sorted({label for by_class in content.values() for label in by_class})
    for kind in classes:
        if not any(by_class.get(kind) for by_class in content.values()):
            raise DomainwiseError(f"{file} lists no images of class {kind!r} in any domain")
    domains = []
    for name, by_class in sorted(content.items()):
        images: list[tuple[ImageFile, int]] = [
            (file.parent / path, label) for label, kind in enumerate(classes) for path in by_class.get(kind, ())
        ]
        if not images:
            raise DomainwiseError(f"{file} lists no images of domain {name!r}")
        domains.append(build_domain_files(name, images))
    return build_listing(file, name_dataset(file), classes, domains)


def _parse_json(file: Path, lines: Iterable[str]) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield each domain and its paths by class."""

    def check_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # Of two equal keys, the module keeps the last.
        if repeated := [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]:
            raise DomainwiseError(f"{file} has the key {repeated[0]!r} twice; merge its two entries")
        if not all(key.strip() for key, _ in pairs):
            raise DomainwiseError(f"{file} has an empty name; every domain and class needs one")
        return dict(pairs)

    expected = f"{file} must be {{domain: {{class: [path, ...]}}}}"
    try:
        # Python refuses integers of more than 4,300 digits, but no number is expected here.
        content = json.loads("".join(lines), object_pairs_hook=check_keys, parse_int=float)
    except json.JSONDecodeError as error:
        raise DomainwiseError(f"{file} is not valid JSON: {error}") from error
    except RecursionError as error:
        raise DomainwiseError(f"{expected}; it is nested deeper") from error
    if not isinstance(content, dict):
        raise DomainwiseError(f"{expected}, not {_describe_json(content)}")
    for domain, by_class in content.items():
        if not isinstance(by_class, dict):
            raise DomainwiseError(f"{expected}; domain {domain!r} has {_describe_json(by_class)}")
        for label, paths in by_class.items():
            if not isinstance(paths, list):
                raise DomainwiseError(f"{expected}; class {label!r} of {domain!r} has {_describe_json(paths)}")
            for path in paths:
                if not isinstance(path, str) or not path:
                    given = "an empty path" if path == "" else _describe_json(path)
                    raise DomainwiseError(f"{expected}; the list of class {label!r} of {domain!r} has {given}")
                if not _can_be_path(path):
                    raise DomainwiseError(f"{file} has a path that no file can have: {path!r} of class {label!r}")
        yield domain, {label: [path.replace("\\", "/") for path in paths] for label, paths in by_class.items()}


def _can_be_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can express
        return False


def _describe_json(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def read_columns(
    file: Path, columns: Sequence[str], *, optional: Sequence[str] = (), max_bytes: int = _MAX_LIST_BYTES
) -> list[tuple[str, ...]]:
    """Read some columns of a CSV file, which its first line names; only the `optional` ones may have empty cells."""

    def parse(file: Path, lines: Iterable[str]) -> Iterator[tuple[str, ...]]:
        reader = csv.reader(lines, skipinitialspace=True)
        header = [name.strip() for name in next(reader, ())]
        for column in columns:
            if column not in header:
                raise DomainwiseError(f"{file} has no column {column!r}; the first line must name {','.join(columns)}")
            if header.count(column) > 1:
                raise DomainwiseError(
                    f"{file} has {header.count(column)} columns named {column!r}; rename or remove one"
                )
        positions = [header.index(column) for column in columns]
        for row in filter(None, reader):
            cells = [row[position].strip() if position < len(row) else "" for position in positions]
            for column, cell in zip(columns, cells, strict=True):
                if not cell and column not in optional:
                    raise DomainwiseError(f"{file} has no {column} in line {reader.line_num}")
                if "\0" in cell:
                    raise DomainwiseError(f"{file} has a NUL byte in line {reader.line_num}; save it as UTF-8 text")
            yield tuple(cells)

    return read_rows(file, parse, max_bytes)


_Row = TypeVar("_Row")


def read_rows(
    file: Path, parse: Callable[[Path, Iterable[str]], Iterator[_Row]], max_bytes: int = _MAX_LIST_BYTES
) -> list[_Row]:
    """Return what `parse` makes of the lines of a file, with one-line errors for what cannot be read."""
    try:
        size = file.stat().st_size
        if not file.is_file() or size > max_bytes:
            reason = f"{size:,} bytes, the limit is {max_bytes:,}" if file.is_file() else "not a regular file"
            raise DomainwiseError(f"{file} could not be read: {reason}")
        with open(file, newline="", encoding="utf-8-sig") as lines:
            rows = list(parse(file, lines))
    except FileNotFoundError as error:
        raise DomainwiseError(f"{file} not found") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DomainwiseError(f"{file} could not be read: {error}") from error
    if not rows:
        raise DomainwiseError(f"{file} lists no images")
    return rows
