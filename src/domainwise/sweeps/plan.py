"""Plans a sweep: the runs that its selection rules look at, and no others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from domainwise.data import Dataset
from domainwise.data.dataset import NamedDomains, assign_roles
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.escaping import quote_file_name
from domainwise.hparams import SearchTask, Space, draw_hparams, read_space
from domainwise.hparams.space import RUN_SETTINGS
from domainwise.selection.score import dataset_label
from domainwise.storage.sweep_folder import PlannedRun
from domainwise.sweeps.spec import PLACEMENT_SETTINGS, SweepSpec
from domainwise.training.config import RunConfig
from domainwise.training.registry import DatasetCache, algorithm_name, keep_recorded_name

# The planned runs in order, each with its config.
Plan = dict[PlannedRun, RunConfig]
# About all methods on all of DomainBed's datasets with 20 draws and 3 trials. A plan of this size takes minutes.
MAX_RUNS = 100_000


def plan_sweep(
    spec: SweepSpec,
    folder: Path,
    *,
    first_trial: int = 0,
    placement: Mapping[str, Any] | None = None,
    on_data: OnProgress = ignore_progress,
    datasets: DatasetCache | None = None,
) -> Plan:
    """Plan every run, trial by trial, so that a sweep that stops early is a complete one of fewer trials.

    Args:
        first_trial: leave out the trials before it.
        placement: settings of `RunConfig` for where and how runs compute, which are not part of the spec: data_dir,
            device, threads, logger, keep_perturbations.
        datasets: where the datasets come from; share one between several plans to build their data once.
    """
    trials = range(first_trial, spec.trials)
    draw_count = len(trials) * sum(map(spec.count_draws, spec.algorithms))
    check_plan_size(draw_count * len(spec.datasets))  # before data is read, which may take minutes
    space = read_space(spec.space)
    cache = datasets or DatasetCache()
    placement = placement or {}
    for key in placement:
        if key not in PLACEMENT_SETTINGS:
            raise unknown_choice("placement setting", key, PLACEMENT_SETTINGS)
    by_name: dict[str, Dataset] = {}
    recorded_names: dict[str, str | None] = {}
    for name in spec.datasets:
        config = keep_recorded_name(spec.make_config(name, spec.algorithms[0], **placement, output=folder))
        dataset = cache.build(config, on_data, lambda listing: plan_test_domains(listing, spec))
        recorded_names[name] = config.name
        if dataset.name in (other.name for other in by_name.values()):
            raise DomainwiseError(f"two datasets are named {dataset.name}; names must be unique in a sweep")
        by_name[name] = dataset
    domains = dict.fromkeys(name for dataset in by_name.values() for name in dataset.domain_names)
    for name in spec.test_domains:
        if name not in domains:
            raise unknown_choice("test domain", name, domains)
    methods: dict[str, str] = {}
    for algorithm in spec.algorithms:
        name = algorithm_name(algorithm)
        if name in methods:
            raise DomainwiseError(f"{methods[name]} and {algorithm} are both named {name} in records; rename one class")
        methods[name] = algorithm
    test_domains = {name: plan_test_domains(dataset, spec) for name, dataset in by_name.items()}
    check_plan_size(draw_count * sum(map(len, test_domains.values())))
    draws = {algorithm: spec.list_draws(algorithm) for algorithm in spec.algorithms}
    for key in spec.grid:
        if not any(key in point for points in draws.values() for point in points):
            names = dict.fromkeys(name for each in spec.algorithms for name in spec.hparams_class(each).fields())
            raise unknown_choice("hyperparameter", key, names)
    return dict(
        _plan_run(replace(config, **placement, name=recorded_names[name], test_domains=tested), dataset, folder)
        for trial in trials
        for name, dataset in by_name.items()
        for draw in range(max(map(len, draws.values())))
        for algorithm, points in draws.items()
        if draw < len(points)
        for config in [_draw_config(spec, space, name, dataset, algorithm, draw, trial, points[draw])]
        for tested in test_domains[name]
    )


def check_plan_size(count: int) -> None:
    """Raise an error if a sweep has more runs than can be planned."""
    if count > MAX_RUNS:
        raise DomainwiseError(
            f"the sweep would have {count:,} runs, and at most {MAX_RUNS:,} are possible; reduce draws, trials or the "
            "grid, or divide its methods and datasets among several sweeps"
        )


def plan_test_domains(dataset: NamedDomains, spec: SweepSpec) -> list[tuple[str, ...]]:
    """Return the test domains of each run: every domain in turn, and pairs for `leave_one_out`."""
    roles = {domain.name: domain.role for domain in dataset.domains}
    fixed_roles = set(roles.values())
    if "ood_validation" in spec.selection and "validation" not in fixed_roles:
        raise DomainwiseError(f"ood_validation requires a validation domain, and {dataset.name} has none")
    targets = [name for name in roles if name in spec.test_domains or not spec.test_domains]
    if not targets:
        raise unknown_choice(f"domain of {dataset.name}", spec.test_domains[0], roles)
    train_domains = spec.settings.get("train_domains", ())
    if fixed_roles != {None}:
        test_domains = [name for name in targets if roles[name] == "test"]
    elif train_domains:
        test_domains = [name for name in targets if name not in train_domains]
    else:
        single: list[tuple[str, ...]] = [(name,) for name in targets]
        return (
            [*single, *_plan_pairs(dataset.name, list(roles), targets)] if "leave_one_out" in spec.selection else single
        )
    if "leave_one_out" in spec.selection:
        raise DomainwiseError(f"leave_one_out holds out each domain in turn, but {dataset.name} has fixed roles")
    return [tuple(test_domains)]


def _plan_pairs(dataset: str, names: Sequence[str], targets: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the pairs for `leave_one_out`: each domain of a pair selects the model for the other."""
    if len(names) < 3:
        raise DomainwiseError(f"leave_one_out requires at least 3 domains, and {dataset} has {len(names)}")
    return [pair for pair in combinations(names, 2) if set(pair) & set(targets)]


def _draw_config(
    spec: SweepSpec,
    space: Space,
    name: str,
    dataset: Dataset,
    algorithm: str,
    draw: int,
    trial: int,
    point: Mapping[str, Any],
) -> RunConfig:
    """Return the config of one draw, without test domains. What the spec fixes is not drawn.

    Args:
        point: values of the grid, if the spec has one; all others are then those of the first draw.
    """
    hparams_class = spec.hparams_class(algorithm)
    dimensions = space(SearchTask(algorithm, hparams_class, dataset.name, dataset.search))
    values = draw_hparams(dimensions, 0 if spec.grid else draw, trial)
    settings = {key: values.pop(key) for key in RUN_SETTINGS if key in values}
    settings |= {key: value for key, value in spec.settings.items() if key in RUN_SETTINGS}
    hparams = {
        **values,
        **{key: value for key, value in spec.hparams.items() if key in hparams_class.fields()},
        **point,
    }
    return spec.make_config(name, algorithm, **settings, hparams=hparams, trial_seed=trial, hparams_seed=draw)


def _plan_run(config: RunConfig, dataset: Dataset, folder: Path) -> tuple[PlannedRun, RunConfig]:
    test_domains = config.test_domains
    roles = assign_roles(dataset, config.train_domains, test_domains)
    # More than two test domains are always the same ones, so they need not be part of the name.
    parts = [config.dataset_name, config.algorithm_name, *(test_domains if len(test_domains) <= 2 else ())]
    # Domain names come from folders and columns, and may contain anything.
    name = f"{quote_file_name('-'.join(parts))}-draw{config.hparams_seed}-trial{config.trial_seed}"
    run = PlannedRun(
        folder=folder / name,
        name=name,
        dataset=dataset_label(dataset.name, roles.train, roles.assignment),
        algorithm=config.algorithm_name,
        test_domains=test_domains,
        trial=config.trial_seed,
        draw=config.hparams_seed,
    )
    return run, replace(config, output=run.folder)
