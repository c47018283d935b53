"""Unpacks zip and tar archives: all of one or nothing, and never anything outside the folder."""

import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from gzip import BadGzipFile, GzipFile
from pathlib import Path

from domainwise.data.download.members import Member, check_members
from domainwise.data.places import OnProgress, silent
from domainwise.errors import DomainwiseError

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


def unpack(archive: Path, into: Path, *, on_progress: OnProgress = silent) -> Path:
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
