"""Small hand-written runs to report on."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from domainwise.selection import build_frame
from domainwise.selection.runs import Runs
from domainwise.storage.run_folder import RunStatus, State
from domainwise.storage.sweep_folder import PlannedRun

DOMAINS = ("art", "cartoon", "sketch")
Pair = tuple[str, dict[str, Any]]


def run(
    algorithm: str,
    tested: str | Sequence[str],
    accuracy: float | None,
    *,
    trial: int = 0,
    draw: int = 0,
    step: int = 0,
    training: float | None = 0.9,
    holdout: float | None = 0.5,
    validation: float | None = None,
    dataset: str = "toy",
    domains: Sequence[str] = DOMAINS,
    roles: str = "left_out",
) -> Pair:
    """Return a run with a single record; `accuracy` is on the main part of every test domain."""
    test = [tested] if isinstance(tested, str) else list(tested)
    measured: dict[str, dict[str, float | None]] = {}
    for name in domains:
        measured[name] = {"main": accuracy, "holdout": holdout} if name in test else {"holdout": training}
    if validation is not None:
        measured["unseen"] = {"main": validation}
    record = {
        "step": step,
        "dataset": dataset,
        "algorithm": algorithm,
        "trial_seed": trial,
        "hparams_seed": draw,
        "train_domains": [name for name in domains if name not in test],
        "validation_domains": [] if validation is None else ["unseen"],
        "test_domains": test,
        "roles": roles,
        "accuracy": measured,
    }
    return f"{dataset}-{algorithm}-{'-'.join(test)}-{trial}-{draw}", record


def on_each(algorithm: str, accuracies: Sequence[float], **settings: Any) -> list[Pair]:
    """Return one run per test domain."""
    domains = settings.get("domains", DOMAINS)
    return [run(algorithm, domain, value, **settings) for domain, value in zip(domains, accuracies, strict=True)]


Plan = tuple[PlannedRun, RunStatus]


def plan(
    algorithm: str, tested: str | Sequence[str], state: State, error: str = "", trial: int = 0, draw: int = 0
) -> Plan:
    test = (tested,) if isinstance(tested, str) else tuple(tested)
    name = f"{algorithm}-{'-'.join(test)}-{trial}-{draw}"
    return PlannedRun(Path(name), name, "toy", algorithm, test, trial, draw), RunStatus(state, error=error)


def runs_of(records: Iterable[Pair], planned: Iterable[Plan] = (), notes: Iterable[str] = ()) -> Runs:
    return Runs(build_frame(records), dict(planned), notes=tuple(notes))
