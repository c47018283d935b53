"""What a sweep was to run, and how far it came."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from domainwise.errors import DomainwiseError
from domainwise.records import read_lines

State = Literal["done", "failed", "unfinished", "to do"]


@dataclass(frozen=True)
class Planned:
    """A run that a sweep's plan lists, and how it stands; `run` is its folder, and `error` what it failed of."""

    run: str
    dataset: str
    algorithm: str
    test_domains: tuple[str, ...]
    trial: int
    draw: int
    state: State
    error: str = ""


def read_plan(sweep: Path) -> list[Planned]:
    """Every run of `plan.jsonl`, in its order."""
    file = sweep / "plan.jsonl"
    lines, is_cut = read_lines(file)
    if is_cut:
        raise DomainwiseError(f"{file} is cut off after line {len(lines)}; restore it")
    return [_planned(file, number, line) for number, line in enumerate(lines, start=1)]


def _planned(file: Path, number: int, line: Mapping[str, Any]) -> Planned:
    try:
        folder = file.parent / line["run"]
        state, error = state_of(folder)
        return Planned(
            run=str(folder),
            dataset=str(line["dataset"]),
            algorithm=str(line["algorithm"]),
            test_domains=tuple(line["test_domains"]),
            trial=int(line["trial_seed"]),
            draw=int(line["hparams_seed"]),
            state=state,
            error=error,
        )
    except (KeyError, TypeError, ValueError) as problem:
        said = f"it has no {problem}" if isinstance(problem, KeyError) else problem
        raise DomainwiseError(f"{file} is damaged at line {number}: {said}; restore it") from problem


def state_of(folder: Path) -> tuple[State, str]:
    """How a run stands by the files in its folder, and the last line of its error."""
    if (folder / "done").exists():
        return "done", ""
    if (folder / "failed.txt").exists():
        lines = (folder / "failed.txt").read_text(errors="replace").split("\n")
        return "failed", next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ("unfinished" if (folder / "config.json").exists() else "to do"), ""
