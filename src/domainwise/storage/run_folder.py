"""A run's `records.jsonl`, a JSON line a record: how it is written, and read after anything that may happen to it."""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor

from domainwise.errors import DomainwiseError
from domainwise.storage.files import LockedError, locked, remove_partial_files, write_atomically

SCHEMA = 1
Record = dict[str, Any]


def read_records(path: Path) -> tuple[list[Record], bool]:
    """The records of a file, none where there is no file, and whether a half-written last line was dropped.

    What is lost with that line is known elsewhere: a checkpoint and a finished run say how far their records reach.
    """
    return read_lines(path, _check)


def read_lines(path: Path, check: Callable[[Record], None] = lambda line: None) -> tuple[list[Record], bool]:
    """The objects of a file of JSON lines, and whether a half-written last line was dropped.

    Args:
        check: raises a ValueError or KeyError for an object that does not belong into such a file.
    """
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], False
    except OSError as error:
        raise DomainwiseError(f"{path} cannot be read: {error.strerror}") from error
    # Every line ends with a newline; what comes after the last one was cut off, even where it happens to parse.
    is_cut = bool(rest)
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line.decode())
        except ValueError as error:
            if number == len(lines) and not is_cut:
                return records, True
            raise _damaged(path, number, error) from error
        try:
            if not isinstance(record, dict):
                raise ValueError("it is no object")
            check(record)
        except (ValueError, KeyError) as error:
            raise _damaged(path, number, error) from error
        records.append(record)
    return records, is_cut


def write_records(path: Path, records: Sequence[Record]) -> None:
    lines = [json.dumps(record, allow_nan=False) + "\n" for record in records]
    write_atomically(path, "".join(lines).encode())


def _check(record: Record) -> None:
    if record["schema"] != SCHEMA:
        raise ValueError(f"schema {record['schema']}")
    if "step" not in record:
        raise KeyError("step")


def _damaged(path: Path, number: int, error: Exception) -> DomainwiseError:
    said = f"it has no {error}" if isinstance(error, KeyError) else error
    return DomainwiseError(f"{path} is damaged at line {number}: {said}; restore it")


Which = Literal["best", "last"]


class RunIsBusy(DomainwiseError):
    """Another process is training in the folder."""


class RunFolder:
    """Reads and writes one run's files.

    `checkpoint.pt` is written last and says how far the run is; whatever is newer beside it is made again, the same,
    when the run goes on.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.records_file = self.path / "records.jsonl"
        self.checkpoint_file = self.path / "checkpoint.pt"
        self.done_file = self.path / "done"
        self.perturbations = self.path / "perturbations"

    @property
    def is_done(self) -> bool:
        return self.done_file.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training into the same folder; the system lets go when this one dies."""
        try:
            with locked(self.path / ".lock"):
                yield
        except LockedError as error:
            raise RunIsBusy(f"another process is training in {self.path}") from error

    def create(self) -> None:
        """Make the folder, unless it holds something that is not a run."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DomainwiseError(f"the folder {self.path} cannot be made: {error.strerror}") from error
        foreign = [item.name for item in self.path.iterdir() if not item.name.startswith(".")]
        if foreign and not self.config_file.exists():
            raise DomainwiseError(
                f"the folder {self.path} holds files but no run ({sorted(foreign)[0]} ...); choose another"
            )

    def claim(self, identity: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Write the config, or find that the folder holds this very run already."""
        wanted = json.loads(json.dumps({"schema": SCHEMA, "config": identity, "data": data}))
        if not self.config_file.exists():
            write_atomically(self.config_file, json.dumps(wanted, indent=2).encode())
        there = self.read_config()
        for part in ("config", "data"):
            differing = [name for name in wanted[part] if there[part].get(name) != wanted[part][name]]
            if differing:
                name = differing[0]
                raise DomainwiseError(
                    f"the folder {self.path} holds another run: its {name} is {_short(there[part].get(name))}, not "
                    f"{_short(wanted[part][name])}; choose another --output, or delete that folder"
                )
        for folder in (self.path, self.perturbations):
            remove_partial_files(folder)

    def read_config(self) -> dict[str, dict[str, Any]]:
        """`{"config": what RunConfig takes, "data": classes, input shape and domains}`."""
        if not self.config_file.exists():
            raise DomainwiseError(f"there is no run in {self.path}: it has no config.json")
        try:
            content = json.loads(self.config_file.read_text())
            return {"config": dict(content["config"]), "data": dict(content["data"])}
        except (ValueError, KeyError, TypeError) as error:
            raise DomainwiseError(f"{self.config_file} is damaged and cannot be read: {error}") from error

    def read_records(self) -> list[Record]:
        """What was measured; a half-written last line is dropped, and the checkpoint says whether it is missed."""
        records, _ = read_records(self.records_file)
        return records

    def write_records(self, records: Sequence[Record]) -> None:
        write_records(self.records_file, records)

    def write_weights(self, which: Which, state: Mapping[str, Tensor]) -> None:
        _write_tensors(self.path / f"{which}.safetensors", state)

    def read_weights(self, which: Which) -> dict[str, Tensor]:
        file = self.path / f"{which}.safetensors"
        if not file.exists():
            raise DomainwiseError(f"the run in {self.path} has no {which}.safetensors yet")
        return _read_tensors(file)

    def write_perturbation(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep the perturbation that the record of `step` describes."""
        self.perturbations.mkdir(exist_ok=True)
        _write_tensors(self.perturbations / f"step-{step:06d}.safetensors", tensors)

    def read_perturbations(self) -> dict[int, dict[str, Tensor]]:
        """What was kept of the perturbation, by step and in that order; empty where nothing was."""
        files = {int(file.stem.removeprefix("step-")): file for file in self.perturbations.glob("step-*.safetensors")}
        return {step: _read_tensors(files[step]) for step in sorted(files)}

    def write_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        # Through memory: where the disk is full, torch's own writer ends the process.
        content = io.BytesIO()
        torch.save(dict(checkpoint), content)
        write_atomically(self.checkpoint_file, content.getbuffer())

    def read_checkpoint(self) -> dict[str, Any] | None:
        """The newest state that training can go on from, or None before the first."""
        if not self.checkpoint_file.exists():
            return None
        try:
            checkpoint: dict[str, Any] = torch.load(self.checkpoint_file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises what its zip reader and unpickler happen to raise
            raise DomainwiseError(
                f"{self.checkpoint_file} is damaged or cut off and cannot be read; nothing was changed. "
                "Restore it, or delete it to train from the start"
            ) from error
        return checkpoint

    def write_done(self) -> None:
        write_atomically(self.done_file, b"")


def _write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(file, safetensors.torch.save(content))


def _read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(file)
    except safetensors.SafetensorError as error:
        raise DomainwiseError(f"{file} is damaged and cannot be read: {error}") from error


def _short(value: object, most: int = 60) -> str:
    text = json.dumps(value)
    return text if len(text) <= most else text[: most - 3] + "..."
