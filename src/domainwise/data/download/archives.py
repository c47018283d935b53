"""What an archive holds, and the refusal of whatever could end up outside the folder it is unpacked into."""

import gzip
import json
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from gzip import BadGzipFile, GzipFile
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Literal, NamedTuple

from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError


class Member(NamedTuple):
    name: str
    kind: Literal["file", "folder", "symlink", "hardlink", "other"]
    points_to: str = ""


def check_members(archive: str, members: Iterable[Member]) -> None:
    """Refuses the archive, naming the member, if any of them is unsafe."""
    members = list(members)
    symlinks = {PurePosixPath(member.name) for member in members if member.kind == "symlink"}
    for member in members:
        if reason := _why_unsafe(member, symlinks):
            raise DomainwiseError(f"refused to unpack {archive}: its member {member.name!r} {reason}")


def _why_unsafe(member: Member, symlinks: set[PurePosixPath]) -> str | None:
    reason = _why_name_unsafe(member.name, symlinks)
    if reason or member.kind in ("file", "folder"):
        return reason
    if member.kind == "other":
        return "is neither a file, a folder nor a link"
    if member.kind == "symlink":
        return None if _stays_inside(member) else f"points to {member.points_to!r}, which may be outside the folder"
    # A hard link to a symlink is that symlink at another place, from where it points elsewhere.
    if _why_name_unsafe(member.points_to, symlinks) or PurePosixPath(member.points_to) in symlinks:
        return f"points to {member.points_to!r}, which may be outside the folder"
    return None


def _why_name_unsafe(name: str, symlinks: set[PurePosixPath]) -> str | None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return "would be outside the folder"
    if "\\" in name or "\0" in name or any(PureWindowsPath(part).drive for part in path.parts):
        return "has a name that is no plain path"
    if not symlinks.isdisjoint(path.parents):
        return "would be written through a link"
    return None


def _stays_inside(link: Member) -> bool:
    """Whether a symlink points into the folder, whatever other links there are.

    Its ".." must all come first: after a name, that name may be a link, and ".." is then not the folder it seems.
    """
    to = PurePosixPath(link.points_to)
    ups = next((index for index, part in enumerate(to.parts) if part != ".."), len(to.parts))
    depth = len(PurePosixPath(link.name).parts) - 1
    return not _why_name_unsafe("/".join(to.parts[ups:]), set()) and ups <= depth


TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
ARCHIVE_SUFFIXES = (".zip", *TAR_SUFFIXES)

# zipfile says RuntimeError of an encrypted member, and NotImplementedError of a compression it does not know.
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    BadGzipFile,
    EOFError,
    UnicodeError,
    NotImplementedError,
    RuntimeError,
)


def unpack(archive: Path, into: Path, *, on_progress: OnProgress = ignore_progress) -> Path:
    """Unpacks `archive` (zip, tar, tar.gz, tgz) as the new folder `into`, which is complete or absent at any moment.

    An archive with a member that could be written outside of `into` is refused before anything is written.
    """
    if into.exists():
        raise DomainwiseError(f"cannot unpack {archive.name}: {into} is already there")
    if not archive.name.endswith(ARCHIVE_SUFFIXES):
        raise DomainwiseError(f"cannot unpack {archive}: it is none of {', '.join(ARCHIVE_SUFFIXES)}")
    unfinished = into.with_name(f".{into.name}.unpacking")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        if archive.name.endswith(".zip"):
            _unpack_zip(archive, unfinished, on_progress)
        else:
            _unpack_tar(archive, unfinished, on_progress)
        os.rename(unfinished, into)
    except _DAMAGE as error:
        raise DomainwiseError(f"{archive} is damaged ({error}): delete it to download it again") from error
    except OSError as error:
        raise DomainwiseError(f"cannot unpack {archive} to {into}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return into


def _unpack_zip(archive: Path, into: Path, on_progress: OnProgress) -> None:
    with zipfile.ZipFile(archive) as file:
        infos = file.infolist()
        check_members(archive.name, [Member(info.filename, "file" if _is_plain(info) else "other") for info in infos])
        into.mkdir(parents=True)
        for done, info in enumerate(infos, start=1):
            file.extract(info, into)
            on_progress(f"unpacking {archive.name}", done, len(infos))


def _is_plain(info: zipfile.ZipInfo) -> bool:
    # A zip has room for a Unix mode, but zipfile does not act on it: a link would come out as a file with its target.
    return stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)


def _unpack_tar(archive: Path, into: Path, on_progress: OnProgress) -> None:
    with tarfile.open(archive, "r:" if archive.suffix == ".tar" else "r:gz") as file:
        infos = file.getmembers()
        _check_end(file)
        check_members(archive.name, [_member(info) for info in infos])
        # Absent before Python 3.11.4; what it refuses, check_members has refused already.
        if hasattr(tarfile, "data_filter"):
            file.extraction_filter = tarfile.data_filter
        into.mkdir(parents=True)
        for done, info in enumerate(infos, start=1):
            file.extract(info, into)
            on_progress(f"unpacking {archive.name}", done, len(infos))


def _check_end(file: tarfile.TarFile) -> None:
    """Refuses a tar that was cut between two members, which tarfile takes for a shorter one."""
    assert file.fileobj is not None
    if not isinstance(file.fileobj, GzipFile):
        file.fileobj.seek(file.offset)
        if file.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("its end is missing")
    # At its own end gzip compares the sum of all that was read, and tarfile does not read that far.
    while file.fileobj.read(1 << 20):
        pass


def _member(info: tarfile.TarInfo) -> Member:
    if info.isfile():
        return Member(info.name, "file")
    if info.isdir():
        return Member(info.name, "folder")
    if info.issym():
        return Member(info.name, "symlink", info.linkname)
    return Member(info.name, "hardlink" if info.islnk() else "other", info.linkname)


Arrange = Callable[[Path], Path]

# A Mac adds a second tree with the same names to its zip files, which holds no images.
_MAC_EXTRAS = "__MACOSX"


def folder_holding(unpacked: Path, names: Sequence[str]) -> Path:
    """The outermost folder with folders of all these names in it, whatever it is called and lies in."""
    level = [unpacked]
    while level:
        for folder in level:
            if all((folder / name).is_dir() for name in names):
                return folder
        level = [child for folder in level for child in sorted(folder.iterdir()) if _may_hold_images(child)]
    raise DomainwiseError(f"what was downloaded has no folder with {', '.join(names)} in it")


def gather_folders(unpacked: Path, names: Sequence[str], duplicates: str) -> Path:
    """One folder with the folder `name` of every archive `<name>.zip`, without what the file `duplicates` lists."""
    gathered = unpacked / "gathered"
    gathered.mkdir()
    for name in names:
        os.rename(folder_holding(unpacked / f"{name}.zip", [name]) / name, gathered / name)
    remove_listed(gathered, unpacked / duplicates)
    return gathered


def remove_listed(folder: Path, listing: Path) -> int:
    """Removes the files in `folder` that `listing` names, a relative path a line; returns how many there were."""
    removed = 0
    for line in listing.read_text().splitlines():
        path = PurePosixPath(line.strip())
        if path.is_absolute() or ".." in path.parts:
            raise DomainwiseError(
                f"refused to remove {line.strip()!r}, which {listing.name} lists: it is not in {folder}"
            )
        if (folder / path).is_file():
            (folder / path).unlink()
            removed += 1
    return removed


def gunzip_to_raw(unpacked: Path) -> Path:
    """The files `<name>.gz` as `raw/<name>`, where torchvision looks for MNIST."""
    arranged = unpacked / "arranged"
    (arranged / "raw").mkdir(parents=True)
    for zipped in sorted(unpacked.glob("*.gz")):
        try:
            with gzip.open(zipped) as source, open(arranged / "raw" / zipped.stem, "wb") as target:
                shutil.copyfileobj(source, target)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DomainwiseError(f"{zipped.name} is damaged ({error}): delete it to download it again") from error
    return arranged


def _may_hold_images(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and path.name != _MAC_EXTRAS


LOCATIONS = ("38", "43", "46", "100")
CATEGORIES = ("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel")
_IMAGES = "eccv_18_all_images_sm"


def split_by_location(unpacked: Path) -> Path:
    """Folders `location_<number>/<category>` with copies of the images of the four locations and ten categories.

    An image that shows two of the categories is in both of their folders, as in DomainBed.
    """
    images = next((path for path in sorted(unpacked.rglob(_IMAGES)) if path.is_dir()), None)
    annotations = sorted(unpacked.rglob("*.json"))
    if images is None or not annotations:
        raise DomainwiseError(f"what was downloaded has no folder {_IMAGES} or no .json file of annotations")
    arranged = unpacked / "arranged"
    for file_name, location, category in sorted(set(_sightings(annotations))):
        image = images / file_name
        if Path(file_name).name != file_name or not image.is_file():
            raise DomainwiseError(f"the annotations name the image {file_name!r}, which is not in {_IMAGES}")
        folder = arranged / f"location_{location}" / category
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, folder / file_name)
    if not arranged.is_dir():
        raise DomainwiseError(f"the annotations have no image of the locations {', '.join(LOCATIONS)}")
    return arranged


def _sightings(annotations: Iterable[Path]) -> Iterator[tuple[str, str, str]]:
    """File name, location and category of every annotation that is of use."""
    for path in annotations:
        try:
            yield from _sightings_in(json.loads(path.read_bytes()))
        except (KeyError, TypeError, ValueError) as error:
            raise DomainwiseError(f"{path.name} is not a file of annotations as expected: {error!r}") from error


def _sightings_in(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    categories = {each["id"]: each["name"] for each in content["categories"]}
    # A number in some editions of the annotations, and text in others.
    images = {each["id"]: (each["file_name"], str(each["location"])) for each in content["images"]}
    for each in content["annotations"]:
        file_name, location = images[each["image_id"]]
        category = categories[each["category_id"]]
        if location in LOCATIONS and category in CATEGORIES:
            yield file_name, location, category
