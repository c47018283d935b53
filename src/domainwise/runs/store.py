"""The run folder: the only contract between training and everything that reads its outcome."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor

from domainwise.atomic import remove_partial_files, write_atomically
from domainwise.errors import DomainwiseError
from domainwise.locks import LockedError, locked
from domainwise.records import SCHEMA, Record, read_records, write_records

__all__ = ["SCHEMA", "Record", "RunFolder", "RunIsBusy", "Which"]

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
