"""Which runs a sweep needs: those that its ways of selecting look at, and no others."""

from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import quote

from domainwise.data import Dataset
from domainwise.data.dataset import assign_roles
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, unknown
from domainwise.hparams import Space, Task, drawn, read_space
from domainwise.hparams.space import RUN_SETTINGS
from domainwise.selection.frame import dataset_label
from domainwise.sweeps.spec import SweepSpec
from domainwise.training import RunConfig
from domainwise.training.config import build_dataset

Tests = tuple[str, ...]


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep: its name in the folder, and that of its dataset in tables."""

    name: str
    config: RunConfig
    dataset: str

    def as_line(self) -> dict[str, Any]:
        """What one must know of it without the data."""
        return {
            "run": self.name,
            "dataset": self.dataset,
            "algorithm": self.config.algorithm_name,
            "test_domains": list(self.config.test_domains),
            "trial_seed": self.config.trial_seed,
            "hparams_seed": self.config.hparams_seed,
        }


def plan(
    spec: SweepSpec, folder: Path, data_dir: str | Path | None = None, on_data: OnProgress = ignore_progress
) -> list[PlannedRun]:
    """Every run, trial by trial, so that a sweep that is stopped is one of fewer trials."""
    space = read_space(spec.space)
    datasets: dict[str, Dataset] = {}
    for given in spec.datasets:
        dataset = build_dataset(spec.config(given, spec.algorithms[0], data_dir=data_dir), on_data)
        if dataset.name in (other.name for other in datasets.values()):
            raise DomainwiseError(f"two datasets have the name {dataset.name}: a sweep could not tell them apart")
        datasets[given] = dataset
    return [
        _run(replace(config, data_dir=data_dir, test_domains=tests), dataset, folder)
        for trial in range(spec.trials)
        for given, dataset in datasets.items()
        for draw in range(spec.draws)
        for algorithm in spec.algorithms
        for config in [_drawn(spec, space, given, dataset, algorithm, draw, trial)]
        for tests in tested(dataset, spec)
    ]


def tested(dataset: Dataset, spec: SweepSpec) -> list[Tests]:
    """What the runs test on: each domain in turn, and pairs where one of them selects for the other."""
    roles = {domain.role for domain in dataset.domains}
    if "ood_validation" in spec.selection and "validation" not in roles:
        raise DomainwiseError(f"ood_validation needs a validation domain, which {dataset.name} does not have")
    targets = [name for name in dataset.domain_names if name in spec.test_domains or not spec.test_domains]
    if not targets:
        raise unknown(f"domain of {dataset.name}", spec.test_domains[0], dataset.domain_names)
    trained = spec.settings.get("train_domains", ())
    if roles != {None}:
        together = [name for name in targets if dataset.domains[dataset.index(name)].role == "test"]
    elif trained:
        together = [name for name in targets if name not in trained]
    else:
        alone: list[Tests] = [(name,) for name in targets]
        return [*alone, *_pairs(dataset, targets)] if "leave_one_out" in spec.selection else alone
    if "leave_one_out" in spec.selection:
        raise DomainwiseError(f"leave_one_out leaves out each domain in turn; those of {dataset.name} have fixed roles")
    return [tuple(together)]


def _pairs(dataset: Dataset, targets: list[str]) -> list[Tests]:
    """Each serves both of its domains, as the one that is tested and as the one that selects."""
    names = dataset.domain_names
    if len(names) < 3:
        raise DomainwiseError(f"leave_one_out needs at least 3 domains; {dataset.name} has {len(names)}")
    return [pair for pair in combinations(names, 2) if set(pair) & set(targets)]


def _drawn(
    spec: SweepSpec, space: Space, given: str, dataset: Dataset, algorithm: str, draw: int, trial: int
) -> RunConfig:
    """The config of one draw, before it is said what to test on; what the sweep fixes is not drawn."""
    hparams_class = spec.config(given, algorithm).algorithm_class().Hparams
    values = drawn(space(Task(algorithm, hparams_class, dataset.name, dataset.search)), draw, trial)
    settings = {name: values.pop(name) for name in RUN_SETTINGS if name in values}
    settings |= {name: value for name, value in spec.settings.items() if name in RUN_SETTINGS}
    hparams = {**values, **{name: value for name, value in spec.hparams.items() if name in hparams_class.names()}}
    return spec.config(given, algorithm, **settings, hparams=hparams, trial_seed=trial, hparams_seed=draw)


def _run(config: RunConfig, dataset: Dataset, folder: Path) -> PlannedRun:
    tests = config.test_domains
    parts_played = assign_roles(dataset, config.train_domains, tests)
    label = dataset_label(dataset.name, parts_played.train, parts_played.assignment)
    # More than two are all that the dataset has to test on, which tells runs apart no better than nothing.
    parts = [config.dataset_name, config.algorithm_name, *(tests if len(tests) <= 2 else ())]
    name = "-".join([*parts, f"draw{config.hparams_seed}", f"trial{config.trial_seed}"])
    name = quote(name, safe="+, ")  # names of domains come from folders and columns, and may hold anything
    return PlannedRun(name, replace(config, output=folder / name), label)
