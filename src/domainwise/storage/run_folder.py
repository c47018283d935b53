"""The run folder: the contract between training and everything that reads its results.

    config.json          what the run is, and the facts about its data that a model needs
    records.jsonl        one JSON line per evaluation
    best.safetensors     the network with the highest selection score
    last.safetensors     the network at the last record
    start.safetensors    the network before the first update, if it was asked for
    perturbations/       the perturbation at every record, if it was asked for
    checkpoint.pt        everything training needs to resume; written last. Removed from a finished run
    method.safetensors   what the method itself has learned, such as a perturbation, once there is no checkpoint
    done                 the run is complete; the last step, if training ended before its number of steps
    failed.txt           why the run failed in a sweep
    stopped.json         when and why a race stopped the run early

Torch is imported only by the methods that read or write tensors, so reports start without it.
"""

import io
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from domainwise.errors import DomainwiseError
from domainwise.storage.files import (
    LockedError,
    hold_lock,
    is_locked,
    read_regular,
    remove_partial_files,
    write_atomic,
)
from domainwise.storage.schemas import SCHEMA as SCHEMA
from domainwise.storage.schemas import NotJson, parse_config, parse_record, parse_stop, require_to_open
from domainwise.storage.schemas import Record as Record

if TYPE_CHECKING:
    from torch import Tensor

Which = Literal["best", "last", "start"]
Keep = Literal["best", "last", "both", "all"]
State = Literal["done", "stopped", "running", "failed", "unfinished", "pending"]

# Of the reason why a run failed, and of `done`.
_MAX_TEXT = 2**20
# In the order that keeps a folder sound if copying it is cut off.
_PORTABLE_FILES = (
    *("config.json", "records.jsonl", "start.safetensors", "best.safetensors", "last.safetensors"),
    *("method.safetensors", "checkpoint.pt", "done"),
)
RUN_FILES = (*_PORTABLE_FILES, "failed.txt", "stopped.json", ".lock")


class RunIsBusy(DomainwiseError):
    """Another process is training in the folder."""


@dataclass(frozen=True)
class RunStatus:
    """How far a run is.

    Args:
        state: `stopped` by a race before its end, `unfinished` has started and can resume, `pending` has not started.
        step: number of updates done, by the last record.
        error: the last line of the error, if the run failed.
        reason: when and why the run was stopped early, such as `after 61 of 300 steps: holdout 71.2, ...`.
    """

    state: State
    step: int = 0
    error: str = ""
    reason: str = ""


class RunFolder:
    """Reads and writes the files of one run.

    `checkpoint.pt` is written last and says how far the run is. Files that are newer are written again,
    identically, when the run resumes.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.records_file = self.path / "records.jsonl"
        self.checkpoint_file = self.path / "checkpoint.pt"
        self.method_file = self.path / "method.safetensors"
        self.done_file = self.path / "done"
        self.failure_file = self.path / "failed.txt"
        self.stop_file = self.path / "stopped.json"
        self.lock_file = self.path / ".lock"
        self.perturbations = self.path / "perturbations"

    @property
    def is_done(self) -> bool:
        return self.done_file.exists()

    @property
    def is_busy(self) -> bool:
        """Whether another process is training in the folder."""
        return is_locked(self.lock_file)

    def has_weights(self, which: Which) -> bool:
        return self.weights_file(which).exists()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from training in the folder; the operating system releases it if this one dies."""
        try:
            with hold_lock(self.lock_file):
                yield
        except LockedError as error:
            raise RunIsBusy(f"another process is training in {self.path}") from error

    def create(self) -> None:
        """Create the folder; refuse one that holds something other than a run."""
        create_folder(self.path)
        foreign = [item.name for item in self.path.iterdir() if not item.name.startswith(".")]
        if foreign and not self.config_file.exists():
            raise DomainwiseError(
                f"{self.path} contains files that are not a run ({sorted(foreign)[0]} ...); choose another --output"
            )

    def claim(
        self, identity: Mapping[str, Any], data: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
    ) -> None:
        """Write the config, or check that the folder already holds this very run.

        The revision of the data is not compared: a new one may have the same images.

        Args:
            defaults: values of settings, and in `hparams` of hyperparameters, that the stored run may be older than.
        """
        config = json.loads(json.dumps({"schema": SCHEMA, "config": identity, "data": data}))
        if not self.config_file.exists():
            write_atomic(self.config_file, json.dumps(config, indent=2).encode())
        stored = self.read_config()
        defaults = defaults or {}
        hparams = {**defaults.get("hparams", {}), **stored["config"].get("hparams", {})}
        stored["config"] = {**defaults, **stored["config"], "hparams": hparams}
        # Older runs do not have it.
        stored["data"].setdefault("chance", config["data"].get("chance"))
        for part in ("config", "data"):
            wanted = {name: value for name, value in config[part].items() if (part, name) != ("data", "revision")}
            if difference := _find_difference(stored[part], wanted):
                name, old, new = difference
                raise DomainwiseError(
                    f"{self.path} contains a different run: {name} is {_abbreviate(old, new)} there and "
                    f"{_abbreviate(new, old)} here; choose another --output, or delete that folder"
                )
        for folder in (self.path, self.perturbations):
            remove_partial_files(folder)

    def check_seeding(self, seeding: str) -> None:
        """Raise an error if the folder has a run with another seeding: paired with others, it would mislead."""
        if self.config_file.exists() and (stored := self.read_config()["config"]["seeding"]) != seeding:
            raise DomainwiseError(
                f"{self.path} contains a run with {stored} seeding, not {seeding}; choose another --output, or "
                f"continue with --seeding {stored}"
            )

    def read_config(self, *, to_open: bool = False) -> dict[str, dict[str, Any]]:
        """Return `{"config": settings of RunConfig, "data": classes, input shape and domains}`.

        Args:
            to_open: raise an error unless everything is there that opening the run needs.
        """
        try:
            content = read_regular(self.config_file)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DomainwiseError(f"no run in {self.path}: config.json not found") from error
        return self._parse_config(content, to_open=to_open)

    def _parse_config(self, content: bytes, *, to_open: bool) -> dict[str, dict[str, Any]]:
        try:
            config = parse_config(content)
            if to_open:
                require_to_open(config)
        except ValueError as error:
            raise DomainwiseError(f"{self.config_file} is damaged: {error}; restore it") from error
        # A run from before there was a choice has DomainBed's.
        config["config"].setdefault("seeding", "domainbed")
        return {"config": config["config"], "data": config["data"]}

    def read_records(self) -> list[Record]:
        """Return the records. An incomplete last line is dropped; the checkpoint says whether it matters."""
        return read_record_file(self.records_file)[0]

    def write_records(self, records: Sequence[Record]) -> None:
        write_json_lines(self.records_file, records)

    def write_weights(self, which: Which, state: "Mapping[str, Tensor]") -> None:
        _write_tensors(self.weights_file(which), state)

    def read_weights(self, which: Which) -> "dict[str, Tensor]":
        if not self.has_weights(which):
            raise DomainwiseError(f"the run in {self.path} has no {which}.safetensors yet")
        return _read_tensors(self.weights_file(which))

    def check_finished(self, files: Mapping[str, bytes]) -> None:
        """Raise an error unless files that were read from this folder are those of a finished run, and undamaged.

        Args:
            files: content by name: the config, the records, `done`, and any weights.
        """
        config = self._parse_config(files[self.config_file.name], to_open=True)["config"]
        records, is_truncated = parse_json_lines(self.records_file, files[self.records_file.name], parse_record)
        if is_truncated:
            raise DomainwiseError(f"{self.records_file} is truncated after line {len(records)}; restore it")
        done, steps = files[self.done_file.name], config.get("steps")
        try:
            last_step = int(done) if done else steps and steps - 1
        except ValueError as error:
            raise DomainwiseError(f"{self.done_file} is damaged: expected the last step or nothing") from error
        if not records or last_step not in (None, records[-1]["step"]):
            raise DomainwiseError(f"{self.records_file} does not reach the last step of the run; restore it")
        for name, content in files.items():
            if name.endswith(".safetensors"):
                _parse_tensors(self.path / name, content)

    def write_perturbation(self, step: int, tensors: "Mapping[str, Tensor]") -> None:
        """Keep the perturbation that the record of `step` describes."""
        self.perturbations.mkdir(exist_ok=True)
        _write_tensors(self.perturbations / f"step-{step:06d}.safetensors", tensors)

    def read_perturbations(self) -> "dict[int, dict[str, Tensor]]":
        """Return the stored perturbations by step, in order; empty if none were kept."""
        files = {int(file.stem.removeprefix("step-")): file for file in self.perturbations.glob("step-*.safetensors")}
        return {step: _read_tensors(files[step]) for step in sorted(files)}

    def write_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        import torch

        # Through memory: on a full disk, torch's own writer aborts the process.
        content = io.BytesIO()
        torch.save(dict(checkpoint), content)
        write_atomic(self.checkpoint_file, content.getbuffer())

    def read_checkpoint(self) -> dict[str, Any] | None:
        """Return the newest state that training can resume from, or None before the first."""
        import torch

        if not self.checkpoint_file.exists():
            return None
        try:
            content = io.BytesIO(read_regular(self.checkpoint_file, limit=None))
            # torch itself does not look at the checksums.
            with zipfile.ZipFile(content) as archive:
                if (member := archive.testzip()) is not None:
                    raise ValueError(f"wrong checksum of {member}")
            content.seek(0)
            checkpoint: dict[str, Any] = torch.load(content, map_location="cpu", weights_only=True)
            if not isinstance(checkpoint, dict):
                raise TypeError(f"expected a dict, got {type(checkpoint).__name__}")
        except Exception as error:  # torch passes on whatever its zip reader and unpickler raise
            raise DomainwiseError(
                f"{self.checkpoint_file} is damaged or incomplete; nothing was changed. Restore it, or delete it to "
                "train from the start"
            ) from error
        return checkpoint

    def write_method_state(self, state: "Mapping[str, Tensor]") -> None:
        """Keep what the method itself has learned, so that the checkpoint can be removed."""
        _write_tensors(self.method_file, state)

    def read_method_state(self) -> "dict[str, Tensor] | None":
        """Return what `write_method_state` wrote, or None."""
        return _read_tensors(self.method_file) if self.method_file.exists() else None

    def prune(self, keep: Keep) -> None:
        """Remove what is not to be kept of a finished run."""
        if keep != "all" and self.method_file.exists():
            self.checkpoint_file.unlink(missing_ok=True)
        for which in ("best", "last"):
            if keep in ("best", "last") and keep != which and self.has_weights(keep):
                self.weights_file(which).unlink(missing_ok=True)

    def write_done(self, last_step: int | None = None) -> None:
        """Mark the run as complete.

        Args:
            last_step: the step of its last record, if that is not the last of the planned steps.
        """
        write_atomic(self.done_file, b"" if last_step is None else str(last_step).encode())

    def find_last_step(self, steps: int) -> int:
        """Return the step of the last record of a complete run that was planned with this many steps."""
        with suppress(OSError, ValueError):
            return int(read_regular(self.done_file, _MAX_TEXT))
        return steps - 1

    def write_failure(self, error: str) -> None:
        """Record why the run failed."""
        with suppress(OSError):  # a full disk is often the cause itself
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomic(self.failure_file, f"{error}\n".encode())

    def clear_failure(self) -> None:
        self.failure_file.unlink(missing_ok=True)

    def write_stop(self, step: int, reason: str) -> None:
        """Record that a race has stopped the run after `step` updates, and why."""
        write_atomic(self.stop_file, json.dumps({"step": step, "reason": reason}).encode())

    def read_status(self) -> RunStatus:
        """Return how far the run is, including whether a process is training in it right now."""
        status = self.read_stored_status()
        step = 0
        with suppress(DomainwiseError):  # reported where the records are needed
            records = self.read_records()
            step = records[-1]["step"] + 1 if records else 0
        if status.state != "done" and self.is_busy:
            return RunStatus("running", step)
        return status if status.state == "stopped" else replace(status, step=step)

    def read_stored_status(self) -> RunStatus:
        """Return the status by the files alone: no lock is tested and no record is read."""
        if self.is_done:
            return RunStatus("done")
        if self.failure_file.exists():
            lines = read_regular(self.failure_file, _MAX_TEXT).decode(errors="replace").split("\n")
            return RunStatus("failed", error=next((line.strip() for line in reversed(lines) if line.strip()), ""))
        if self.stop_file.exists():
            return self._read_stop()
        return RunStatus("unfinished" if self.config_file.exists() else "pending")

    def _read_stop(self) -> RunStatus:
        try:
            content = parse_stop(read_regular(self.stop_file))
        except (OSError, ValueError) as error:
            raise DomainwiseError(
                f"{self.stop_file} is damaged: {error}; delete it to let the race decide again"
            ) from error
        return RunStatus("stopped", content["step"], reason=content["reason"])

    def export_files(self) -> dict[str, bytes]:
        """Return the files another machine needs to resume the run."""
        return {name: (self.path / name).read_bytes() for name in _PORTABLE_FILES if (self.path / name).exists()}

    def import_files(self, files: Mapping[str, bytes]) -> None:
        """Write what `export_files` returned elsewhere."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name in _PORTABLE_FILES:
            if name in files:
                write_atomic(self.path / name, files[name])
        if self.done_file.name in files:
            # What the finished run has removed there, its checkpoint above all.
            for name in set(_PORTABLE_FILES) - set(files):
                (self.path / name).unlink(missing_ok=True)

    def weights_file(self, which: Which) -> Path:
        return self.path / f"{which}.safetensors"


def read_record_file(path: Path) -> tuple[list[Record], bool]:
    """Return the records of a file, none if it does not exist, and whether an incomplete last line was dropped.

    Nothing is lost with that line: a checkpoint and a finished run say how far their records reach.
    """
    return read_json_lines(path, parse_record)


def read_json_lines(path: Path, parse: Callable[[bytes], Record]) -> tuple[list[Record], bool]:
    """Return the objects of a file of JSON lines, and whether an incomplete last line was dropped.

    Args:
        parse: parses a line; raises a ValueError for one that does not belong in such a file.
    """
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return [], False
    except OSError as error:
        raise DomainwiseError(f"{path} could not be read: {error.strerror}") from error
    return parse_json_lines(path, content, parse)


def parse_json_lines(path: Path, content: bytes, parse: Callable[[bytes], Record]) -> tuple[list[Record], bool]:
    """Return what `read_json_lines` does, for the content of `path`."""
    *lines, rest = content.split(b"\n")
    objects = []
    for number, line in enumerate(lines, start=1):
        try:
            objects.append(parse(line))
        except NotJson as error:
            if number == len(lines) and not rest:
                return objects, True
            raise damaged_line(path, number, error) from error
        except ValueError as error:
            raise damaged_line(path, number, error) from error
    # Every line ends with a newline; what follows the last one was cut off, even if it happens to parse.
    return objects, bool(rest)


def write_json_lines(path: Path, objects: Sequence[Mapping[str, Any]]) -> None:
    lines = [json.dumps(each, allow_nan=False) + "\n" for each in objects]
    write_atomic(path, "".join(lines).encode())


def damaged_line(path: Path, number: int, error: Exception) -> DomainwiseError:
    """Return the error for a line that could not be used."""
    reason = f"missing key {error}" if isinstance(error, KeyError) else error
    return DomainwiseError(f"{path} is damaged at line {number}: {reason}; restore it")


def create_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DomainwiseError(f"could not create the folder {path}: {error.strerror}") from error


def _write_tensors(file: Path, tensors: "Mapping[str, Tensor]") -> None:
    import safetensors.torch

    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(file, safetensors.torch.save(content, {_DIGEST: _digest_tensors(content)}))


def _read_tensors(file: Path) -> "dict[str, Tensor]":
    return _parse_tensors(file, read_regular(file, limit=None))


def _parse_tensors(file: Path, content: bytes) -> "dict[str, Tensor]":
    """Return the tensors in the content of `file`, or raise an error if they do not have the digest in its header."""
    import safetensors.torch

    try:
        tensors = safetensors.torch.load(content)
        digest = _read_metadata(content).get(_DIGEST)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise DomainwiseError(f"{file} is damaged: {error}; restore it") from error
    # Files from before there were digests have none.
    if digest is not None and digest != _digest_tensors(tensors):
        raise DomainwiseError(f"{file} is damaged: its weights do not have the digest in its header; restore it")
    return tensors


# The key in the header of a safetensors file.
_DIGEST = "sha256"


def _digest_tensors(tensors: "Mapping[str, Tensor]") -> str:
    """Return a digest of names, types, shapes and values, whatever the order."""
    import torch

    digest = sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read_metadata(content: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file: 8 bytes for the length of the header, then the header as JSON."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return dict(header.get("__metadata__", {}))


def _find_difference(stored: Any, wanted: Any, place: str = "") -> tuple[str, Any, Any] | None:
    """Return the first place where values differ, like `hparams.epsilon` or `classes[3]`, and both values."""
    pairs: Iterable[tuple[str, Any, Any]]
    if isinstance(stored, Mapping) and isinstance(wanted, Mapping):
        # A name that is not wanted is there from an older version, unless it is one of several in a setting.
        names = wanted if not place else dict.fromkeys((*stored, *wanted))
        pairs = [(f"{place}.{name}".lstrip("."), stored.get(name), wanted.get(name)) for name in names]
    elif isinstance(stored, list) and isinstance(wanted, list) and len(stored) == len(wanted):
        pairs = [(f"{place}[{index}]", *pair) for index, pair in enumerate(zip(stored, wanted, strict=True))]
    else:
        return None if stored == wanted else (place, stored, wanted)
    return next((each for pair in pairs if (each := _find_difference(pair[1], pair[2], pair[0]))), None)


def _abbreviate(value: object, other: object, limit: int = 60) -> str:
    """Return a value as JSON; of a long one, the part from where it begins to differ from the other."""
    text, other_text = json.dumps(value), json.dumps(other)
    if len(text) <= limit:
        return text
    pairs = enumerate(zip(text, other_text, strict=False))
    start = max(0, next((index for index, (a, b) in pairs if a != b), len(other_text)) - limit // 4)
    part = text[start : start + limit]
    return ("..." if start else "") + part + ("..." if start + limit < len(text) else "")
