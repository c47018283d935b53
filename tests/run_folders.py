"""Writes run folders as training does, without training."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DOMAINS = ("art", "cartoon", "sketch")


def write_run(
    folder: Path,
    algorithm: str,
    tested: str,
    accuracies: Sequence[float] = (0.5, 0.7),
    *,
    trial: int = 0,
    draw: int = 0,
    training: float = 0.9,
    hparams: Mapping[str, Any] | None = None,
    dataset: str = "toy",
    domains: Sequence[str] = DOMAINS,
    classes: int = 4,
    is_done: bool = True,
    **settings: Any,
) -> Path:
    """Write one record per step with its accuracy on the test domain; the last has the best holdouts."""
    folder.mkdir(parents=True)
    trained = [name for name in domains if name != tested]
    lines = []
    for step, accuracy in enumerate(accuracies):
        behind = 0.01 * (len(accuracies) - 1 - step)
        measured: dict[str, dict[str, float]] = {name: {"holdout": training - behind} for name in domains}
        measured[tested] = {"main": accuracy, "holdout": 1 - accuracy}
        lines.append(
            {
                "schema": 1,
                "step": step,
                "dataset": dataset,
                "algorithm": algorithm,
                "trial_seed": trial,
                "hparams_seed": draw,
                "train_domains": trained,
                "validation_domains": [],
                "test_domains": [tested],
                "roles": "left_out",
                "hparams": dict(hparams or {}),
                "accuracy": measured,
                "loss": 1 / (1 + step),
            }
        )
    config = {
        "dataset": dataset,
        "algorithm": algorithm,
        "network": "small_cnn",
        "hparams": dict(hparams or {}),
        "train_domains": trained,
        "test_domains": [tested],
        "trial_seed": trial,
        "hparams_seed": draw,
        "steps": len(lines),
        **settings,
    }
    data = {"classes": [f"class {number}" for number in range(classes)]}
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.json").write_text(json.dumps({"schema": 1, "config": config, "data": data}))
    if is_done:
        (folder / "done").touch()
    return folder


def write_grid(
    folder: Path, algorithm: str, accuracy: float, trials: int = 3, name: str | None = None, **settings: Any
) -> None:
    """Write one run per test domain and trial; accuracies rise a little with both."""
    for trial in range(trials):
        for place, domain in enumerate(settings.get("domains", DOMAINS)):
            reached = accuracy + place / 10 + trial / 50
            run = folder / f"{name or algorithm}-{domain}-{trial}-{settings.get('draw', 0)}"
            write_run(run, algorithm, domain, (0.3, reached), trial=trial, **settings)


# What DomainBed records for ERM on photographs, until June 2024 and since.
DOMAINBED_2021 = {
    "data_augmentation": True,
    "resnet18": False,
    "resnet_dropout": 0.0,
    "class_balanced": False,
    "nonlinear_classifier": False,
    "lr": 5e-05,
    "weight_decay": 0.0,
    "batch_size": 32,
}
DOMAINBED_2024 = {
    **DOMAINBED_2021,
    "resnet50_augmix": True,
    "dinov2": False,
    "vit": False,
    "vit_attn_tune": False,
    "freeze_bn": False,
    "lars": False,
    "linear_steps": 500,
    "vit_dropout": 0.0,
}


def write_domainbed_run(
    folder: Path,
    algorithm: str,
    hparams: Mapping[str, Any],
    *,
    tested: int = 0,
    dataset: str = "PACS",
    domains: int = 4,
) -> Path:
    """Write a `results.jsonl` with one record, as DomainBed does."""
    folder.mkdir(parents=True)
    args = {"algorithm": algorithm, "dataset": dataset, "test_envs": [tested], "trial_seed": 0, "hparams_seed": 0}
    accuracies = {f"env{index}_{part}_acc": 0.8 for index in range(domains) for part in ("in", "out")}
    line = {"args": args, "hparams": dict(hparams), "step": 300, "loss": 0.5, **accuracies}
    (folder / "results.jsonl").write_text(json.dumps(line) + "\n")
    return folder


def write_shift_run(
    folder: Path, algorithm: str, holdout: float, shifted: float, loss: float = 0.1, *, trial: int = 0
) -> Path:
    """Write a finished run on two training domains, tested on a shift of 0 and one of 12, with one record."""
    folder.mkdir(parents=True)
    record = {
        "schema": 1,
        "step": 0,
        "dataset": "silhouettes",
        "algorithm": algorithm,
        "trial_seed": trial,
        "hparams_seed": 0,
        "train_domains": ["style_0", "style_1"],
        "validation_domains": [],
        "test_domains": ["shift_0", "shift_12"],
        "roles": "fixed",
        "hparams": {},
        "loss": loss,
        "accuracy": {
            "style_0": {"holdout": holdout - 0.1},
            "style_1": {"holdout": holdout + 0.1},
            "shift_0": {"main": 1.0, "holdout": 0.0},
            "shift_12": {"main": shifted, "holdout": 0.0},
        },
    }
    config = {"dataset": "silhouettes", "algorithm": algorithm, "steps": 1}
    (folder / "records.jsonl").write_text(json.dumps(record) + "\n")
    (folder / "config.json").write_text(json.dumps({"schema": 1, "config": config, "data": {}}))
    (folder / "done").touch()
    return folder
