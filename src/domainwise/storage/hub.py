"""Names on the Hugging Face Hub, and models there or in a folder that stands in for it: run folders without checkpoint.

    config.json, records.jsonl, done    as in every run folder
    best.safetensors                    the weights; last.safetensors if asked for
    README.md                           the model card

A folder has these files for every version of a model, so that whoever reads one sees nothing of another:

    FOLDER/owner/name/version-ID/       what one push wrote; never changed
    FOLDER/owner/name/current-version   the name of the version to load

No file is ever unpickled, and `huggingface_hub` is imported on first use.
"""

import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import domainwise
from domainwise.errors import DomainwiseError, suggest_install
from domainwise.storage.files import (
    LockedError,
    hold_lock,
    read_regular,
    remove_partial_files,
    write_atomic,
)
from domainwise.storage.run_folder import RunFolder, Which, create_folder

PREFIX = "hf:"
HUB_VARIABLE = "DOMAINWISE_HUB"
CARD_FILE = "README.md"
VERSION_FILE = "current-version"
_VERSION = re.compile(r"version-[0-9a-f]{16}")
# Seconds for which a version that was replaced stays, for those who had already found it.
_GRACE = 3600
# `done` comes last: it says that all the others are there.
_RUN_FILES = ("config.json", "records.jsonl", "done")
_MODEL_FILES = frozenset((*_RUN_FILES, CARD_FILE, *(f"{which}.safetensors" for which in get_args(Which))))
# The Hub's own rules; no part can be `..` or leave the folder of a local hub in any other way.
_PART = r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_PART}/{_PART}", re.ASCII)
_MAX_LENGTH = 96


@dataclass(frozen=True)
class HubName:
    """The name of a model or dataset, owner/name, and a revision: a branch, a tag or a commit."""

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{PREFIX}{self.name}" + (f"@{self.revision}" if self.revision else "")


def parse_name(text: str, kind: str = "model") -> HubName:
    """Parse `owner/name` or `owner/name@revision`, with or without `hf:`; errors name the kind."""
    name, separator, revision = text.removeprefix(PREFIX).partition("@")
    is_valid = _NAME.fullmatch(name) and len(name) <= _MAX_LENGTH and not re.search(r"--|\.\.|\.git$", name)
    if not is_valid or (separator and not revision):
        raise DomainwiseError(
            f"{text!r} is not the name of a {kind}; expected {PREFIX}owner/name or {PREFIX}owner/name@revision"
        )
    return HubName(name, revision or None)


def find_run(run: str | Path, which: Which = "best", hub: str | Path | None = None) -> Path:
    """Return the folder of a run: the path itself, or a copy of what `hf:owner/name` names, downloaded if necessary.

    Args:
        which: the weights that are needed.
        hub: folder that stands in for the Hub (default: $DOMAINWISE_HUB, or the Hub itself).
    """
    text = os.fspath(run).replace(os.sep, "/")
    if not text.startswith(PREFIX):
        return find_version(Path(run))
    model = parse_name(text)
    folder = _find_hub_folder(hub)
    path = _download(model, which) if folder is None else _find_in_folder(model, folder)
    try:
        RunFolder(path).read_config(to_open=True)
    except DomainwiseError as error:
        raise DomainwiseError(f"{model} is not a domainwise model: {error}") from error
    if which in get_args(Which) and not RunFolder(path).has_weights(which):
        raise DomainwiseError(f"{model} has no {which}.safetensors")
    return path


def push_run(
    run: Path,
    name: str,
    card: str,
    *,
    weights: Sequence[Which] = ("best",),
    hub: str | Path | None = None,
    private: bool = False,
) -> str:
    """Write a finished run to owner/name, replacing the model that is there, and return where it is.

    All files are checked before anything is written. The old model is there until all of the new one is: on the Hub a
    push is one commit, and in a folder a new version.

    Args:
        card: text of README.md.
        weights: models of the run to push.
        hub: folder that stands in for the Hub (default: $DOMAINWISE_HUB, or the Hub itself).
        private: create a private repository. A public one that exists is an error.
    """
    model = parse_name(name)
    if model.revision is not None:
        raise DomainwiseError(f"a push goes to the main revision; expected owner/name, got {name!r}")
    source = RunFolder(run)
    source.read_config(to_open=True)
    if not source.is_done:
        raise DomainwiseError(f"the run in {source.path} is not finished; resume it first")
    for each in weights:
        if not source.has_weights(each):
            raise DomainwiseError(f"the run in {source.path} has no {each}.safetensors")
    names = (*(source.weights_file(each).name for each in weights), *_RUN_FILES)
    # What was checked is what is pushed, even if a file changes meanwhile.
    files = {name: _read_source(source.path / name) for name in names}
    source.check_finished(files)
    files = {CARD_FILE: card.encode(), **files}
    folder = _find_hub_folder(hub)
    if folder is not None:
        return str(_push_to_folder(model, folder, files))
    return _upload(model, files, private)


def find_version(path: Path) -> Path:
    """Return the folder with the current version of a model in a hub folder; any other path is returned as it is."""
    pointer = path / VERSION_FILE
    try:
        name = read_regular(pointer).decode(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return path
    if not _VERSION.fullmatch(name):
        raise DomainwiseError(f"{pointer} is damaged: expected the name of a version; push the model again")
    return path / name


def _read_source(file: Path) -> bytes:
    """Return the content of a file to push. A link is an error, because any file of the user's could be behind it."""
    real = Path(os.path.realpath(file))
    # In the cache of the Hub's client, snapshots/COMMIT/FILE is a link to blobs/HASH.
    is_cached = real.parent == Path(os.path.realpath(file.parent / "../..")) / "blobs"
    return read_regular(real if is_cached else file, limit=None, follow_links=False)


def _find_hub_folder(hub: str | Path | None) -> Path | None:
    folder = hub or os.environ.get(HUB_VARIABLE)
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise DomainwiseError(f"hub folder {folder} not found" + ("" if hub else f" (set by {HUB_VARIABLE})"))
    return Path(folder)


def _check_inside(path: Path, hub: Path) -> Path:
    if not path.resolve().is_relative_to(hub.resolve()):
        raise DomainwiseError(f"{path} is a link to another place; a model must be inside the hub folder {hub}")
    return path


def _find_in_folder(model: HubName, hub: Path) -> Path:
    if model.revision is not None:
        raise DomainwiseError(f"{model}: the hub folder {hub} has no revisions; leave out @{model.revision}")
    path = _check_inside(hub / model.name, hub)
    if not path.is_dir():
        raise DomainwiseError(f"{model} not found in the hub folder {hub}")
    version = _check_inside(find_version(path), hub)
    if not RunFolder(version).is_done:
        raise DomainwiseError(f"{model} in the hub folder {hub} is incomplete; push it again")
    return version


def _push_to_folder(model: HubName, hub: Path, files: Mapping[str, bytes]) -> Path:
    path = _check_inside(hub / model.name, hub)
    create_folder(path)
    _check_no_foreign_files(path)
    version = path / f"version-{secrets.token_hex(8)}"
    try:
        with hold_lock(path / ".lock"):
            try:
                version.mkdir()
                for name, content in files.items():
                    write_atomic(version / name, content)
                write_atomic(path / VERSION_FILE, f"{version.name}\n".encode())
            finally:
                if find_version(path) != version:
                    shutil.rmtree(version, ignore_errors=True)
            _remove_old_versions(path)
    except LockedError as error:
        raise DomainwiseError(f"another push to {path} is under way") from error
    return path


def _check_no_foreign_files(path: Path) -> None:
    """Raise an error if a folder has anything but a model; earlier versions wrote its files into the folder itself."""
    names = {each.name for each in path.iterdir() if not each.name.startswith(".")}
    names = {name for name in names if not _VERSION.fullmatch(name)}
    # Without its card it may be somebody's run, and a card alone may be anything.
    is_model = VERSION_FILE in names or {CARD_FILE, "config.json"} <= names
    foreign = names - {VERSION_FILE, *_MODEL_FILES} if is_model else names
    if foreign:
        raise DomainwiseError(
            f"{path} contains files that are not a model ({min(foreign)} ...); choose another name, or delete them"
        )


def _remove_old_versions(path: Path) -> None:
    """Remove what a push that was killed left behind, and the versions that were replaced more than an hour ago."""
    current = find_version(path)
    # `path` itself is the version that an earlier domainwise wrote.
    versions = [path, *(each for each in path.iterdir() if _VERSION.fullmatch(each.name))]
    written = {each: RunFolder(each).done_file.stat().st_mtime for each in versions if RunFolder(each).is_done}
    # The newest of those that are older than an hour was replaced within the hour.
    oldest = max((time for time in written.values() if time <= written[current] - _GRACE), default=0)
    for each in versions:
        if written.get(each, -1) >= oldest:
            continue
        if each != path:
            shutil.rmtree(each, ignore_errors=True)
        else:
            for name in _MODEL_FILES:
                (path / name).unlink(missing_ok=True)
    remove_partial_files(path)


def _download(model: HubName, which: Which) -> Path:
    client = _import_client(str(model))
    with _use_client(client, str(model)):
        return Path(
            client.snapshot_download(
                model.name,
                revision=model.revision,
                allow_patterns=[*_RUN_FILES, f"{which}.safetensors"],
                library_name="domainwise",
                library_version=domainwise.__version__,
            )
        )


def _upload(model: HubName, files: Mapping[str, bytes], private: bool) -> str:
    client = _import_client(f"push to {model.name}")
    if client.get_token() is None:
        raise DomainwiseError("no Hugging Face token; log in with `hf auth login`, or set HF_TOKEN")
    api = client.HfApi(library_name="domainwise", library_version=domainwise.__version__)
    with _use_client(client, str(model)):
        # None leaves it to the owner's default.
        url = api.create_repo(model.name, private=private or None, exist_ok=True)
        there = api.model_info(model.name)
        if private and not there.private:
            raise DomainwiseError(f"{model.name} exists and is public; make it private on the Hub, or push elsewhere")
        names = {each.rfilename for each in there.siblings or []}
        # A card is in every new repository.
        if names & (files.keys() - {CARD_FILE}) and "records.jsonl" not in names:
            raise DomainwiseError(f"{model.name} is another model, not one of domainwise; choose another name")
        operations = [
            *(client.CommitOperationAdd(name, content) for name, content in files.items()),
            *(client.CommitOperationDelete(name) for name in sorted(names & (_MODEL_FILES - files.keys()))),
        ]
        api.create_commit(model.name, operations, commit_message=f"Model of domainwise {domainwise.__version__}")
    return str(url)


def _import_client(purpose: str) -> Any:
    try:
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise DomainwiseError(f"{purpose} needs huggingface_hub; {suggest_install('hub')}") from error
    return huggingface_hub


@contextmanager
def _use_client(client: Any, model: str) -> Iterator[None]:
    """Turn the errors of the client and of the HTTP library below it into one line; no bars without a terminal."""
    errors = client.errors
    hides_bars = not sys.stderr.isatty() and not client.utils.are_progress_bars_disabled()
    if hides_bars:
        client.utils.disable_progress_bars()
    try:
        yield
    except DomainwiseError:
        raise
    except errors.GatedRepoError as error:
        raise DomainwiseError(
            f"{model} is gated; accept its conditions on the Hub and log in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise DomainwiseError(
            f"{model} not found on the Hub; check the name or, if it is private, log in with `hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DomainwiseError(f"{model} not found on the Hub: no such revision") from error
    except errors.LocalEntryNotFoundError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise DomainwiseError(
            f"{model} is not in the cache and could not be downloaded from {client.constants.ENDPOINT} ({reason})"
        ) from error
    except errors.HfHubHTTPError as error:
        reason = error.server_message or str(error).splitlines()[0]
        raise DomainwiseError(f"{model}: the Hub answered {error.response.status_code} ({reason})") from error
    except Exception as error:
        # The client's HTTP library is httpx2, httpx or requests, depending on its version.
        is_network = isinstance(error, ConnectionError) or type(error).__module__.startswith(("httpx", "requests"))
        if isinstance(error, OSError) and not is_network:
            raise
        reason = " ".join(f"{error} {error.__cause__ or ''}".split())
        text = f"could not reach the Hub at {client.constants.ENDPOINT} ({reason})" if is_network else reason
        raise DomainwiseError(f"{model}: {text}") from error
    finally:
        if hides_bars:
            client.utils.enable_progress_bars()
