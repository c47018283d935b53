"""Names on the Hugging Face Hub, and models there or in a folder that stands in for it: run folders without checkpoint.

    config.json, records.jsonl, done    as in every run folder
    best.safetensors                    the weights; last.safetensors if asked for
    README.md                           the model card

In a folder, owner/name is FOLDER/owner/name. No file is ever unpickled, and `huggingface_hub` is imported on first use.
"""

import io
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import domainwise
from domainwise.errors import DomainwiseError
from domainwise.storage.files import (
    LockedError,
    check_regular,
    hold_lock,
    open_atomic,
    remove_partial_files,
    write_atomic,
)
from domainwise.storage.run_folder import RunFolder, Which, create_folder

PREFIX = "hf:"
HUB_VARIABLE = "DOMAINWISE_HUB"
CARD_FILE = "README.md"
_RUN_FILES = ("config.json", "records.jsonl", "done")
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
        return Path(run)
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

    On the Hub that is one commit. In a folder, every file is replaced atomically, and the model counts as incomplete
    until the last one is there.

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
    # `done` comes last: it says that all the others are there.
    files = [*(source.weights_file(each) for each in weights), *(source.path / each for each in _RUN_FILES)]
    for file in files:
        check_regular(file)
    stale = [f"{each}.safetensors" for each in get_args(Which) if each not in weights]
    folder = _find_hub_folder(hub)
    if folder is not None:
        return str(_push_to_folder(model, folder, files, stale, card))
    return _upload(model, files, stale, card, private)


def _find_hub_folder(hub: str | Path | None) -> Path | None:
    folder = hub or os.environ.get(HUB_VARIABLE)
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise DomainwiseError(f"hub folder {folder} not found" + ("" if hub else f" (set by {HUB_VARIABLE})"))
    return Path(folder)


def _place_in_folder(model: HubName, hub: Path) -> Path:
    path = hub / model.name
    if not path.resolve().is_relative_to(hub.resolve()):
        raise DomainwiseError(f"{path} is a link to another place; a model must be inside the hub folder {hub}")
    return path


def _find_in_folder(model: HubName, hub: Path) -> Path:
    if model.revision is not None:
        raise DomainwiseError(f"{model}: the hub folder {hub} has no revisions; leave out @{model.revision}")
    path = _place_in_folder(model, hub)
    if not path.is_dir():
        raise DomainwiseError(f"{model} not found in the hub folder {hub}")
    if not RunFolder(path).is_done:
        raise DomainwiseError(f"{model} in the hub folder {hub} is incomplete; push it again")
    return path


def _push_to_folder(model: HubName, hub: Path, files: Sequence[Path], stale: Sequence[str], card: str) -> Path:
    path = _place_in_folder(model, hub)
    create_folder(path)
    if path.samefile(files[0].parent):
        raise DomainwiseError(f"{path} is the run itself; nothing to push")
    try:
        with hold_lock(path / ".lock"):
            RunFolder(path).done_file.unlink(missing_ok=True)
            remove_partial_files(path)
            for name in stale:
                (path / name).unlink(missing_ok=True)
            write_atomic(path / CARD_FILE, card.encode())
            for file in files:
                with open(file, "rb") as content, open_atomic(path / file.name) as copy:
                    shutil.copyfileobj(content, copy)
    except LockedError as error:
        raise DomainwiseError(f"another push to {path} is under way") from error
    return path


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


def _upload(model: HubName, files: Sequence[Path], stale: Sequence[str], card: str, private: bool) -> str:
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
        operations = [
            *(client.CommitOperationAdd(file.name, file) for file in files),
            client.CommitOperationAdd(CARD_FILE, io.BytesIO(card.encode())),
            *(client.CommitOperationDelete(name) for name in stale if name in names),
        ]
        api.create_commit(model.name, operations, commit_message=f"Model of domainwise {domainwise.__version__}")
    return str(url)


def _import_client(purpose: str) -> Any:
    try:
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise DomainwiseError(
            f"{purpose} needs huggingface_hub; install it with: pip install 'domainwise[hub]'"
        ) from error
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
