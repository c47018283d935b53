"""Archives: unpack them without writing outside their folder, and arrange their content by domain and class."""

import gzip
import json
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Literal

from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")

# zipfile raises RuntimeError for an encrypted member, and NotImplementedError for an unknown compression.
_DAMAGE_ERRORS = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    gzip.BadGzipFile,
    EOFError,
    UnicodeError,
    NotImplementedError,
    RuntimeError,
)


def unpack_archive(archive: Path, target: Path, *, on_progress: OnProgress = ignore_progress) -> Path:
    """Unpack `archive` (.zip, .tar, .tar.gz, .tgz) into the new folder `target`, which is complete or absent.

    Raises:
        DomainwiseError: the archive is damaged, of another kind, or has a member that would be outside of `target`.
    """
    if target.exists():
        raise DomainwiseError(f"{archive.name} could not be unpacked: {target} already exists")
    if not archive.name.endswith(ARCHIVE_SUFFIXES):
        raise DomainwiseError(f"unsupported archive {archive}; expected {', '.join(ARCHIVE_SUFFIXES)}")
    partial = target.with_name(f".{target.name}.unpacking")
    unpack = _unpack_zip if archive.name.endswith(".zip") else _unpack_tar
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        unpack(archive, partial, on_progress)
        os.rename(partial, target)
    except _DAMAGE_ERRORS as error:
        raise DomainwiseError(f"{archive} is damaged ({error}): delete it to download it again") from error
    except OSError as error:
        raise DomainwiseError(f"{archive} could not be unpacked to {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def is_archive(file: Path, name: str) -> bool:
    """Return whether a file is an archive of the kind that the suffix of `name` says; it is not read to the end."""
    if name.endswith(".zip"):
        return zipfile.is_zipfile(file)
    try:
        with tarfile.open(file, _tar_mode(name)):
            return True
    except _DAMAGE_ERRORS:
        return False


def _tar_mode(name: str) -> Literal["r:", "r:gz"]:
    return "r:" if name.endswith(".tar") else "r:gz"


def _unpack_zip(archive: Path, target: Path, on_progress: OnProgress) -> None:
    with zipfile.ZipFile(archive) as file:
        members = file.infolist()
        for member in members:
            if not _is_plain_member(member):
                raise _unsafe_member(archive, member.filename)
        for done, member in enumerate(members, start=1):
            file.extract(member, target)
            on_progress(f"unpacking {archive.name}", done, len(members))


def _is_plain_member(member: zipfile.ZipInfo) -> bool:
    # zipfile has no filter like tarfile's: it would silently rename "../x" to "x" and write a link as a text file.
    path = PurePosixPath(member.filename)
    is_inside = not path.is_absolute() and ".." not in path.parts and "\\" not in member.filename
    has_drive = any(PureWindowsPath(part).drive for part in path.parts)
    is_file_or_folder = stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
    return is_inside and not has_drive and is_file_or_folder


def _unpack_tar(archive: Path, target: Path, on_progress: OnProgress) -> None:
    with tarfile.open(archive, _tar_mode(archive.name)) as file:
        # Symbolic links last: nothing can be written through them.
        members = sorted(file.getmembers(), key=tarfile.TarInfo.issym)
        _check_end(file)
        root = target.resolve()
        for done, member in enumerate(members, start=1):
            if not _write_member(file, member, root):
                raise _unsafe_member(archive, member.name)
            on_progress(f"unpacking {archive.name}", done, len(members))


def _write_member(file: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> bool:
    """Write a file, folder or link below `root`; return False if the member is anything else or leads outside.

    `TarFile.extract` is safe only with a filter, which Python before 3.11.4 does not have. As with zip files, names and
    contents are all that is taken over: no owners, modes or times.
    """
    name, link = Path(member.name.lstrip("/")), Path(member.linkname)
    if not _stays_inside(name):
        return False
    path = root / name
    (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
    if member.isreg():
        content = file.extractfile(member)
        assert content is not None
        with content, open(path, "wb") as copy:
            shutil.copyfileobj(content, copy)
    elif member.islnk() and _stays_inside(link) and (root / link).is_file():
        path.hardlink_to(root / link)
    elif member.issym() and _stays_inside(link, len(name.parts) - 1) and path.parent.resolve() == path.parent:
        path.symlink_to(link)
    else:
        return member.isdir()
    return True


def _stays_inside(path: Path, levels: int = 0) -> bool:
    """Return whether a relative path leads up by at most `levels`, and only at its start, where no link can be."""
    up = path.parts.count("..")
    return not path.anchor and "\0" not in str(path) and up <= levels and path.parts[:up] == ("..",) * up


def _check_end(file: tarfile.TarFile) -> None:
    """Raise an error if the archive is truncated between two members, which tarfile does not notice."""
    assert file.fileobj is not None
    if not isinstance(file.fileobj, gzip.GzipFile):
        file.fileobj.seek(file.offset)
        if file.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("truncated")
    # gzip verifies its checksum at the end of the stream, and tarfile does not read that far.
    while file.fileobj.read(1 << 20):
        pass


def _unsafe_member(archive: Path, member: str) -> DomainwiseError:
    return DomainwiseError(f"refused to unpack {archive.name}: member {member!r} is not a file or folder inside it")


# A Mac adds a second tree with the same names to zip files; it has no images.
_MAC_EXTRAS = "__MACOSX"


def find_parent(unpacked: Path, names: Sequence[str]) -> Path:
    """Return the outermost folder that has subfolders of all these names."""
    level = [unpacked]
    while level:
        for folder in level:
            if all((folder / name).is_dir() for name in names):
                return folder
        level = [
            child
            for folder in level
            for child in sorted(folder.iterdir())
            if child.is_dir() and not child.is_symlink() and child.name != _MAC_EXTRAS
        ]
    raise DomainwiseError(f"the download has no folder with the subfolders {', '.join(names)}")


def gather_folders(unpacked: Path, names: Sequence[str], duplicates: str) -> Path:
    """Move the folder `name` of every archive `<name>.zip` into one, without the files that `duplicates` lists."""
    gathered = unpacked / "gathered"
    gathered.mkdir()
    for name in names:
        os.rename(find_parent(unpacked / f"{name}.zip", [name]) / name, gathered / name)
    remove_files(gathered, unpacked / duplicates)
    return gathered


def remove_files(folder: Path, listing: Path) -> int:
    """Remove the files in `folder` that `listing` names, one relative path per line; return how many existed."""
    removed = 0
    for line in listing.read_text().splitlines():
        path = PurePosixPath(line.strip())
        if path.is_absolute() or ".." in path.parts:
            raise DomainwiseError(f"refused to remove {str(path)!r}, listed in {listing.name}: it is outside {folder}")
        if (folder / path).is_file():
            (folder / path).unlink()
            removed += 1
    return removed


def gunzip_to_raw(unpacked: Path) -> Path:
    """Unpack the files `<name>.gz` to `raw/<name>`, torchvision's layout of MNIST."""
    arranged = unpacked / "arranged"
    (arranged / "raw").mkdir(parents=True)
    for file in sorted(unpacked.glob("*.gz")):
        try:
            with gzip.open(file) as source, open(arranged / "raw" / file.stem, "wb") as target:
                shutil.copyfileobj(source, target)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DomainwiseError(f"{file.name} is damaged ({error}): delete it to download it again") from error
    return arranged


LOCATIONS = ("38", "43", "46", "100")
CATEGORIES = ("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel")
_IMAGES = "eccv_18_all_images_sm"


def split_by_location(unpacked: Path) -> Path:
    """Copy Terra Incognita's images to `location_<number>/<category>` for DomainBed's four locations, ten categories.

    An image with two of the categories is in both folders, as in DomainBed.
    """
    images = next((path for path in sorted(unpacked.rglob(_IMAGES)) if path.is_dir()), None)
    annotations = sorted(unpacked.rglob("*.json"))
    if images is None or not annotations:
        raise DomainwiseError(f"the download has no folder {_IMAGES} or no .json file with annotations")
    arranged = unpacked / "arranged"
    for file_name, location, category in sorted(set(_read_annotations(annotations))):
        image = images / file_name
        if Path(file_name).name != file_name or not image.is_file():
            raise DomainwiseError(f"image {file_name!r} of the annotations not found in {_IMAGES}")
        folder = arranged / f"location_{location}" / category
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, folder / file_name)
    if not arranged.is_dir():
        raise DomainwiseError(f"the annotations have no image from the locations {', '.join(LOCATIONS)}")
    return arranged


def _read_annotations(files: Iterable[Path]) -> Iterator[tuple[str, str, str]]:
    """Yield file name, location and category of every annotation that DomainBed uses."""
    for file in files:
        try:
            yield from _parse_annotations(json.loads(file.read_bytes()))
        except (KeyError, TypeError, ValueError) as error:
            raise DomainwiseError(f"{file.name} does not have the expected annotations: {error!r}") from error


def _parse_annotations(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    categories = {each["id"]: each["name"] for each in content["categories"]}
    # Locations are numbers in some editions of the annotations, and strings in others.
    images = {each["id"]: (each["file_name"], str(each["location"])) for each in content["images"]}
    for each in content["annotations"]:
        file_name, location = images[each["image_id"]]
        category = categories[each["category_id"]]
        if location in LOCATIONS and category in CATEGORIES:
            yield file_name, location, category
