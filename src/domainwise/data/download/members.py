"""What an archive holds, and the refusal of whatever could end up outside the folder it is unpacked into."""

from collections.abc import Iterable
from pathlib import PurePosixPath, PureWindowsPath
from typing import Literal, NamedTuple

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
