"""Averages the models of a sweep (DiWA, Rame et al. 2022), or a run with its start (WiSE-FT, Wortsman et al. 2022).

Every average is written as a run folder of its own, so that it can be loaded, reported and explained like any run.
Choices are made on the training domains' holdouts; the test domain is only measured.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from domainwise.algorithms import Algorithm
from domainwise.averaging import average_states, interpolate_states, select_greedily
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError
from domainwise.selection.metrics import parse_metrics
from domainwise.selection.score import selection_score
from domainwise.storage.discovery import discover
from domainwise.storage.files import read_regular
from domainwise.storage.run_folder import SCHEMA, Record, RunFolder
from domainwise.storage.sweep_folder import place_derived_run
from domainwise.training.device import pick_device
from domainwise.training.distributed import World
from domainwise.training.evaluation import evaluate
from domainwise.training.loading import OpenRun, open_run, rebuild_algorithm
from domainwise.training.registry import AnyAlgorithm, AnyDataset, AnyNetwork, DatasetCache

Rule = Literal["uniform", "greedy", "interpolated"]
State = Mapping[str, Tensor]
# The settings that the members of an average have in common.
_GROUP_SETTINGS = (
    *("dataset", "train_domains", "test_domains", "trial_seed", "network", "batch_norm", "lora", "dataset_options"),
)


@dataclass(frozen=True)
class Member:
    """A run that an average may be made of.

    Args:
        settings: the `RunConfig` settings in its config.json.
        record: the record of its best model.
    """

    folder: RunFolder
    settings: Mapping[str, Any]
    record: Record


@dataclass(frozen=True)
class Soup:
    """An average of models, and what it is compared with.

    Args:
        folder: where it was written.
        members: names of the runs whose weights were averaged.
        num_candidates: number of runs that could have been.
        record: its accuracies.
        best: the record of the best single run, by the training domains' holdouts.
    """

    rule: Rule
    folder: Path
    members: tuple[str, ...]
    num_candidates: int
    record: Record
    best: Record


def average_sweep(
    sweep: str | Path,
    output: str | Path | None = None,
    *,
    rules: Sequence[Rule] = ("uniform", "greedy"),
    across_methods: bool = False,
    dataset: AnyDataset | None = None,
    data_dir: str | Path | None = None,
    algorithm: AnyAlgorithm | None = None,
    network: AnyNetwork | None = None,
    device: str = "auto",
    on_data: OnProgress = ignore_progress,
    on_soup: Callable[[Soup], None] = lambda soup: None,
) -> list[Soup]:
    """Average the finished runs of a sweep that share their start: per method, test domain and trial.

    Averages that exist already are not computed again.

    Args:
        sweep: folder of the sweep, or any folder with runs below it.
        output: folder for the averages (default: the sweep's name with `-averages`).
        rules: `uniform` averages all runs; `greedy` adds them in the order of their holdout accuracy, and keeps those
            that do not lower that of the average.
        across_methods: average over methods as well.
        dataset: the runs' own dataset, if it is not a built-in one.
        data_dir: folder of the built-in datasets.
        algorithm, network: the runs' own class or builder, as for `load_algorithm`.
        on_soup: called with each average.
    """
    sweep = Path(sweep)
    output = sweep.with_name(f"{sweep.resolve().name}-averages") if output is None else Path(output)
    groups = [members for members in _group_members(sweep, across_methods) if len(members) > 1]
    if not groups:
        raise DomainwiseError(f"nothing to average in {sweep}: no two finished runs share method, domains and trial")
    for members in groups:
        _check_shared_start(members)
    datasets = DatasetCache()
    soups = []
    for members in groups:
        run = open_run(
            members[0].folder.path,
            dataset=dataset,
            data_dir=data_dir,
            algorithm=algorithm,
            network=network,
            on_data=on_data,
            datasets=datasets,
        )
        writer = _SoupWriter(members[0], run, pick_device(device))
        for rule in rules:
            soup = writer.average(members, rule, output, "across " if across_methods else "")
            soups.append(soup)
            on_soup(soup)
    return soups


def interpolate_run(
    run: str | Path,
    alpha: float,
    output: str | Path | None = None,
    *,
    dataset: AnyDataset | None = None,
    data_dir: str | Path | None = None,
    algorithm: AnyAlgorithm | None = None,
    network: AnyNetwork | None = None,
    device: str = "auto",
    on_data: OnProgress = ignore_progress,
) -> Soup:
    """Write (1 - alpha) times the initial weights of a run plus alpha times its best ones (WiSE-FT)."""
    if not 0 <= alpha <= 1:
        raise DomainwiseError(f"alpha must be at least 0 and at most 1, got {alpha}")
    member = _read_member(RunFolder(run))
    if not member.folder.has_weights("start"):
        raise DomainwiseError(f"{run} has no initial weights; train it with --shared-start")
    if output is None:
        output = place_derived_run(run, f"alpha{alpha:g}", "averages")
    opened = open_run(run, dataset=dataset, data_dir=data_dir, algorithm=algorithm, network=network, on_data=on_data)
    writer = _SoupWriter(member, opened, pick_device(device))
    state = interpolate_states(member.folder.read_weights("start"), member.folder.read_weights("best"), alpha)
    return writer.write("interpolated", f"interpolated {alpha:g}", Path(output), state, [member], [member], alpha=alpha)


class _SoupWriter:
    """Evaluates averages on the data of a run, and writes them as if they were that run with other weights."""

    def __init__(self, member: Member, run: OpenRun, device: torch.device) -> None:
        self.member = member
        self.run = run
        self.device = device
        algorithm = rebuild_algorithm(member.folder.path, run.own_algorithm, run.own_network)
        self.algorithm: Algorithm = algorithm.to(device).eval()

    def average(self, members: Sequence[Member], rule: Rule, output: Path, scope: str = "") -> Soup:
        """Average the members, or read the average if there is one of the same members."""
        label = f"{scope}{rule}"
        folder = output / f"{members[0].folder.path.name}-{label.replace(' ', '-')}"
        ordered = sorted(members, key=lambda member: -selection_score(member.record))
        stored = _read_finished(folder)
        if stored is not None and set(stored["soup"]["candidates"]) == set(_names(members)):
            names = tuple(stored["soup"]["members"])
            return Soup(rule, folder, names, len(members), stored, ordered[0].record)
        states = [member.folder.read_weights("best") for member in ordered]
        chosen = list(range(len(states)))
        if rule == "greedy":
            chosen, _ = select_greedily(states, lambda state: selection_score(self._measure(state, tests=False)))
        mean = average_states([states[index] for index in chosen])
        return self.write(rule, label, folder, mean, [ordered[index] for index in chosen], ordered)

    def write(
        self,
        rule: Rule,
        label: str,
        output: Path,
        state: State,
        members: Sequence[Member],
        candidates: Sequence[Member],
        **facts: float,
    ) -> Soup:
        """Measure an average, write it as a run folder, and return it.

        Args:
            label: its setting `soup`.
            candidates: the runs that could have been members, the best one first.
            facts: what its record says besides.
        """
        names = _names(members)
        model = self.member
        record = {
            **{key: value for key, value in model.record.items() if key in _KEPT},
            **self._measure(state),
            "schema": SCHEMA,
            "step": int(model.settings["steps"]) - 1,
            "hparams_seed": 0,
            "soup": {"rule": rule, "members": list(names), "candidates": list(_names(candidates)), **facts},
        }
        folder = RunFolder(output)
        folder.create()
        stored = model.folder.read_config(to_open=True)
        identity = {**stored["config"], "hparams_seed": 0, "soup": label}
        folder.claim(identity, stored["data"])
        folder.done_file.unlink(missing_ok=True)  # an average of fewer runs may have been there
        folder.write_weights("best", state)
        folder.write_weights("last", state)
        folder.write_records([record])
        folder.write_done()
        return Soup(rule, output, names, len(candidates), record, candidates[0].record)

    def _measure(self, state: State, *, tests: bool = True) -> Record:
        """Return the part of a record that says how accurate these weights are; `tests`: on the test domains too."""
        self.algorithm.network.load_state_dict(state)
        run = self.run
        roles = run.roles if tests else replace(run.roles, test=())
        metrics = parse_metrics(self.member.settings.get("metrics", ()) if tests else ())
        return {
            "train_domains": roles.train,
            "validation_domains": roles.validation,
            "test_domains": roles.test,
            **evaluate(
                *(self.algorithm, run.dataset, run.splits, roles, "selection", self.device, World()), metrics=metrics
            ),
        }


_KEPT = ("dataset", "algorithm", "trial_seed", "roles", "hparams")


def _names(members: Sequence[Member]) -> tuple[str, ...]:
    return tuple(member.folder.path.name for member in members)


def _read_finished(folder: Path) -> Record | None:
    stored = RunFolder(folder)
    return stored.read_records()[-1] if stored.is_done else None


def _group_members(sweep: Path, across_methods: bool) -> Iterator[list[Member]]:
    groups: dict[str, list[Member]] = {}
    for stored in discover([sweep]).runs:
        if stored.is_domainbed or stored.status.state != "done":
            continue
        member = _read_member(RunFolder(stored.path))
        # A refit has seen the holdouts that decide.
        if member.settings.get("soup") is not None or member.settings.get("refit") is not None:
            continue
        names = _GROUP_SETTINGS if across_methods else (*_GROUP_SETTINGS, "algorithm")
        groups.setdefault(repr([member.settings.get(name) for name in names]), []).append(member)
    for members in groups.values():
        yield sorted(members, key=lambda member: member.settings["hparams_seed"])


def _read_member(folder: RunFolder) -> Member:
    records = folder.read_records()
    if not records:
        raise DomainwiseError(f"the run in {folder.path} has no records yet")
    # `max` returns the first of equals, as training does.
    return Member(folder, folder.read_config(to_open=True)["config"], max(records, key=selection_score))


def _check_shared_start(members: Sequence[Member]) -> None:
    hashes = {}
    for member in members:
        if not member.folder.has_weights("start"):
            raise DomainwiseError(f"{member.folder.path} has no initial weights; train the sweep with --shared-start")
        hashes[sha256(read_regular(member.folder.weights_file("start"), limit=None)).hexdigest()] = member.folder.path
    if len(hashes) > 1:
        one, other = list(hashes.values())[:2]
        raise DomainwiseError(
            f"{one} and {other} began with different weights, so their average is meaningless; train the sweep with "
            "--shared-start"
        )
