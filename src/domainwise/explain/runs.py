"""Explain runs by their folders: what `domainwise explain`, `perturbations` and `robustness` do, as Python calls."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, get_args

import polars as pl
from matplotlib.figure import Figure

from domainwise.algorithms import ALGORITHMS
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.explain.attention import Attention, AttentionTable, Target, measure_attention, tabulate_attention
from domainwise.explain.corruption_errors import (
    CorruptionResult,
    check_reference,
    measure_corruptions,
    summarize_corruptions,
)
from domainwise.explain.corruptions import CORRUPTIONS, SEVERITIES
from domainwise.explain.features import FeatureMaps, map_features
from domainwise.explain.gradcam import TargetLayer, find_finer_layer, find_target_layer
from domainwise.explain.perturbations import (
    PerturbationHistory,
    PerturbationSummary,
    Ranks,
    has_perturbation,
    measure_ranks,
    read_perturbation_history,
    summarize_perturbation,
)
from domainwise.explain.plots.gradcam import Examples, plot_gradcam, sample_examples
from domainwise.explain.plots.perturbations import plot_components, plot_perturbation, plot_ranks
from domainwise.explain.robustness import DEFAULT_ATTACKS, Attacks, attack_run
from domainwise.perturbations.base import Norm
from domainwise.selection.statistics import pluralize
from domainwise.storage.discovery import discover
from domainwise.storage.run_folder import RunFolder, Which
from domainwise.training.device import pick_device
from domainwise.training.loading import OpenRun, load_algorithm, open_run
from domainwise.training.registry import AnyAlgorithm, AnyDataset, AnyNetwork, DatasetCache

# Train and test domains belong into a table's columns, not into a label.
_LABEL_SETTINGS = ("network", "weights", "steps", "batch_size", "dropout", "augment", "dataset_options")


class _OwnCode(TypedDict):
    algorithm: AnyAlgorithm | None
    network: AnyNetwork | None


@dataclass(frozen=True)
class TrainedRun:
    """A run folder, and the settings in its config.json."""

    path: Path
    settings: dict[str, Any]


def find_trained_runs(paths: Sequence[Path], *files: str) -> list[TrainedRun]:
    """Find the runs at or below `paths` that have one of `files`, in the order of `ALGORITHMS`.

    Runs without are left out with a warning that names the first of them, such as `best.safetensors`.

    Raises:
        DomainwiseError: If no run has one.
    """
    folders = [run.path for run in discover(paths).runs if not run.is_domainbed]
    ready = [folder for folder in folders if any((folder / file).exists() for file in files)]
    if not ready:
        raise DomainwiseError(
            f"no run in {', '.join(map(str, paths))} has {files[0]} yet; train until the first record"
        )
    if missing := len(folders) - len(ready):
        runs = "1 run" if missing == 1 else f"{missing} runs"
        warnings.warn(f"{runs} left out for lack of {files[0]}", stacklevel=3)
    trained = [TrainedRun(path, RunFolder(path).read_config(to_open=True)["config"]) for path in ready]
    order = {name: number for number, name in enumerate(ALGORITHMS)}
    return sorted(trained, key=lambda run: order.get(run.settings["algorithm"], len(order)))


def label_runs(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one label per run, such as `mat` or `mat, epsilon 0.5`: the method, and the settings in which it differs.

    Runs that differ only in trial seed or domains share a label.

    Args:
        settings: settings of each run's config.json. Sampled hyperparameters appear as the number of the draw.
    """
    distinctive = [(str(each["algorithm"]), _get_label_settings(each)) for each in settings]
    first: dict[tuple[str, str], Any] = {}
    differing: set[tuple[str, str]] = set()
    for method, own in distinctive:
        for name, value in own.items():
            if first.setdefault((method, name), value) != value:
                differing.add((method, name))
    return [
        ", ".join([method.rpartition(":")[2], *(f"{name} {own[name]}" for name in own if (method, name) in differing)])
        for method, own in distinctive
    ]


def _get_label_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    draw = settings.get("hparams_seed", 0)
    hparams = {"draw": draw, **({} if draw else settings.get("hparams", {}))}
    return {**hparams, **{name: settings.get(name) for name in _LABEL_SETTINGS}}


def name_runs(folders: Sequence[Path]) -> list[str]:
    """Return one name per folder, made of as many of its last parts as make it unique."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["-".join(part.strip("/") for part in each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _check_same_data(runs: Sequence[TrainedRun], settings: Sequence[str]) -> None:
    for other in runs[1:]:
        for name in settings:
            one, two = runs[0].settings[name], other.settings[name]
            if one != two:
                raise DomainwiseError(
                    f"{runs[0].path} and {other.path} differ in {name} ({one} and {two}); give runs of the same data"
                )


@dataclass(frozen=True)
class Explanation:
    """Grad-CAM of runs on the same images, and their attention on the object where the data has masks.

    Args:
        layers: layer that is explained, by the label of the runs.
    """

    figure: Figure
    attention: AttentionTable | None
    layers: Mapping[str, TargetLayer]


def explain_runs(
    paths: Sequence[Path],
    *,
    domain: str | None = None,
    images: int = 6,
    target: Target = "predicted",
    which: Which = "best",
    layer: str | None = None,
    seed: int = 0,
    has_table: bool = True,
    dataset: AnyDataset | None = None,
    data_dir: str | Path | None = None,
    algorithm: AnyAlgorithm | None = None,
    network: AnyNetwork | None = None,
    device: str = "auto",
    on_progress: OnProgress = ignore_progress,
) -> Explanation:
    """Explain runs of one dataset by Grad-CAM: a figure of the lowest trial seed, and a table over all.

    Args:
        paths: run folders, or folders with runs below them.
        domain: domain whose images the figure shows (default: the last test domain).
        images: number of images, sampled from the domain's main part.
        target: class to explain, `predicted` or `true`.
        which: model of each run, `best` or `last`.
        layer: layer to explain (default: `find_target_layer`).
        seed: seed for sampling the images.
        has_table: measure the attention on the object.
        dataset: the runs' own dataset, if it is not a built-in one.
        data_dir: folder of the datasets, as for training.
        algorithm, network: the runs' own class or builder, as for `load_algorithm`.
        device: auto, cpu, cuda or mps.
    """
    for name, value, choices in (("target", target, get_args(Target)), ("which", which, get_args(Which))):
        if value not in choices:
            raise unknown_choice(name, value, choices)
    own: _OwnCode = {"algorithm": algorithm, "network": network}
    runs = find_trained_runs(paths, f"{which}.safetensors")
    _check_same_data(runs, ("dataset", "dataset_options"))
    runs.sort(key=lambda run: run.settings["trial_seed"])
    torch_device = pick_device(device)
    attention: dict[str, list[Mapping[str, Attention]]] = {}
    shown: dict[str, OpenRun] = {}
    layers: dict[str, TargetLayer] = {}
    examples: Examples | None = None
    for run, label in zip(runs, label_runs([run.settings for run in runs]), strict=True):
        opened = open_run(run.path, dataset=dataset, data_dir=data_dir, on_data=on_progress, **own)
        examples = examples or sample_examples(opened, domain or opened.roles.test[-1], images, seed)
        if _is_comparable(opened, shown.values(), examples.domain.name):
            shown.setdefault(label, opened)
        if label not in layers:
            layers[label] = _find_layer(opened, which, layer, layers.values())
        if has_table:
            shares = measure_attention(
                opened, torch_device, which=which, target=target, layer=layer, on_progress=on_progress
            )
            if shares:
                attention.setdefault(label, []).append(shares)
    assert examples is not None
    figure = plot_gradcam(shown, examples, which=which, target=target, layer=layer, device=torch_device)
    return Explanation(figure, tabulate_attention(attention) if attention else None, layers)


def _find_layer(run: OpenRun, which: Which, name: str | None, others: Iterable[TargetLayer]) -> TargetLayer:
    """Return the layer to explain; if its map is coarse and the layer a new one, warn and suggest a finer layer."""
    model, shape = run.model(which), run.dataset.image_shape
    layer = find_target_layer(model, shape, name)
    if layer.is_coarse and layer not in others:
        finer = find_finer_layer(model, shape)
        earlier = "" if finer is None else f"explain an earlier layer, such as --layer {finer.name}, or "
        warnings.warn(
            f"Grad-CAM maps of {layer.height} x {layer.width} cells are hardly finer than the whole image; "
            f"{earlier}train on larger images",
            stacklevel=3,
        )
    return layer


def _is_comparable(run: OpenRun, others: Iterable[OpenRun], domain: str) -> bool:
    """Return whether the run has the first one's seed, and was trained on `domain` only if that one was."""
    first = next(iter(others), run)
    is_alike = (domain in run.roles.train) == (domain in first.roles.train)
    return run.settings["trial_seed"] == first.settings["trial_seed"] and is_alike


def explain_features(
    paths: Sequence[Path],
    *,
    images: int = 200,
    which: Which = "best",
    seed: int = 0,
    perplexity: float | None = None,
    dataset: AnyDataset | None = None,
    data_dir: str | Path | None = None,
    algorithm: AnyAlgorithm | None = None,
    network: AnyNetwork | None = None,
    device: str = "auto",
    on_progress: OnProgress = ignore_progress,
) -> FeatureMaps:
    """Map the features of runs of one dataset by t-SNE, and measure how well domain and class follow from them.

    Runs with other training domains or another trial seed than the first of the lowest seed are left out with a
    warning, because they have no images in common that none was trained on.

    Args:
        paths: run folders, or folders with runs below them.
        images, which, seed, perplexity: as for `map_features`.
        dataset: the runs' own dataset, if it is not a built-in one.
        data_dir: folder of the datasets, as for training.
        algorithm, network: the runs' own class or builder, as for `load_algorithm`.
        device: auto, cpu, cuda or mps.
    """
    if which not in get_args(Which):
        raise unknown_choice("which", which, get_args(Which))
    torch_device = pick_device(device)
    runs = find_trained_runs(paths, f"{which}.safetensors")
    _check_same_data(runs, ("dataset", "dataset_options"))
    seeds = [run.settings["trial_seed"] for run in runs]
    datasets = DatasetCache()
    opened = [
        open_run(
            run.path,
            dataset=dataset,
            data_dir=data_dir,
            algorithm=algorithm,
            network=network,
            on_data=on_progress,
            datasets=datasets,
        )
        for run in runs
        if run.settings["trial_seed"] == min(seeds)
    ]
    alike = [run for run in opened if run.roles.train == opened[0].roles.train]
    if missing := len(runs) - len(alike):
        warnings.warn(f"{pluralize(missing, 'run')} left out for other training domains or trial seeds", stacklevel=2)
    labels = label_runs([run.settings for run in alike])
    if len(set(labels)) < len(labels):
        labels = name_runs([run.folder.path for run in alike])
    return map_features(
        dict(zip(labels, alike, strict=True)),
        images=images,
        which=which,
        seed=seed,
        perplexity=perplexity,
        device=torch_device,
        on_progress=on_progress,
    )


@dataclass(frozen=True)
class RunPerturbations:
    """Perturbations of one run: summary, history, and ranks per training domain."""

    summary: PerturbationSummary
    history: PerturbationHistory
    ranks: list[Ranks]

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as JSON-serializable values."""
        summary, history = self.summary, self.history
        weights, has_components = summary.mixing_weights, summary.components is not None
        return {
            "run": summary.run,
            "method": summary.method,
            "epsilon": summary.epsilon,
            "norm": summary.norm,
            "prior": summary.prior,
            "is_kept": summary.is_kept,
            "rank_limit": summary.rank,
            "steps": history.steps,
            "snapshot_steps": history.snapshot_steps,
            "domains": [
                {
                    "domain": ranks.domain,
                    "norm": summary.norms[index],
                    "singular_values": summary.singular_values[index].tolist(),
                    "component_norms": summary.component_norms[index].tolist() if has_components else None,
                    "component_cosine": summary.component_cosines[index] if has_components else None,
                    "mixing_weights": None if weights is None else weights[index].tolist(),
                    "norm_over_training": [float(each[index]) for each in history.norms],
                    "cosine_to_last": [float(each[index]) for each in history.cosine_to_last],
                    "images": ranks.images,
                    "rank": ranks.stacked,
                    "effective_rank": ranks.stacked_effective,
                    "rank_of_one": ranks.single,
                    "effective_rank_of_one": ranks.single_effective,
                }
                for index, ranks in enumerate(self.ranks)
            ],
        }


def summarize_perturbations(
    paths: Sequence[Path],
    *,
    images: int = 256,
    dataset: AnyDataset | None = None,
    data_dir: str | Path | None = None,
    algorithm: AnyAlgorithm | None = None,
    network: AnyNetwork | None = None,
    device: str = "auto",
    on_progress: OnProgress = ignore_progress,
) -> list[RunPerturbations]:
    """Summarize the perturbations of runs; runs of methods without a perturbation are left out with a warning.

    Args:
        paths: run folders, or folders with runs below them.
        images: number of training images per domain over which ranks are measured.
        dataset: the runs' own dataset, if it is not a built-in one.
        data_dir: folder of the datasets, as for training.
        algorithm, network: the runs' own class or builder, as for `load_algorithm`.
        device: auto, cpu, cuda or mps.
    """
    torch_device = pick_device(device)
    own: _OwnCode = {"algorithm": algorithm, "network": network}
    runs = find_trained_runs(paths, "checkpoint.pt", "method.safetensors")
    perturbed = [run for run in runs if has_perturbation(load_algorithm(run.path, **own))]
    if not perturbed:
        methods = ", ".join(sorted({str(run.settings["algorithm"]) for run in runs}))
        raise DomainwiseError(
            f"no perturbation to show: the runs trained with {methods}; give runs of at, uat, mat or ldat"
        )
    if missing := len(runs) - len(perturbed):
        count = "1 run" if missing == 1 else f"{missing} runs"
        warnings.warn(f"{count} left out because the method has no perturbation", stacklevel=2)
    folders = [run.path for run in perturbed]
    summaries = []
    for number, (folder, name) in enumerate(zip(folders, name_runs(folders), strict=True), start=1):
        run = open_run(folder, dataset=dataset, data_dir=data_dir, on_data=on_progress, **own)
        ranks = [replace(each, run=name) for each in measure_ranks(run, images, torch_device)]
        summary = replace(summarize_perturbation(run), run=name)
        summaries.append(RunPerturbations(summary, read_perturbation_history(run), ranks))
        on_progress("perturbations of runs", number, len(folders))
    return summaries


def plot_perturbations(runs: Sequence[RunPerturbations]) -> dict[str, Figure]:
    """Plot one figure per run, one of its components where it has any, and one of all ranks, by file name."""
    figures = {}
    for run in runs:
        figures[run.summary.run] = plot_perturbation(run.summary, run.history)
        if run.summary.components is not None:
            figures[f"{run.summary.run}-components"] = plot_components(run.summary)
    figures["ranks"] = plot_ranks([each for run in runs for each in run.ranks])
    return figures


def attack_runs(
    paths: Sequence[Path],
    *,
    domains: Sequence[str] = (),
    attacks: Attacks = DEFAULT_ATTACKS,
    norm: Norm | None = None,
    epsilons: Sequence[float | str] = (),
    steps: int | None = None,
    step_size: float | str | None = None,
    restarts: int = 1,
    images: int | None = 500,
    which: Which = "best",
    seed: int = 0,
    dataset: AnyDataset | None = None,
    data_dir: str | Path | None = None,
    algorithm: AnyAlgorithm | None = None,
    network: AnyNetwork | None = None,
    device: str = "auto",
    on_progress: OnProgress = ignore_progress,
) -> pl.DataFrame:
    """Measure the accuracy of runs of one dataset under attack.

    Args:
        paths: run folders, or folders with runs below them.
        domains, attacks, norm, epsilons, steps, step_size, restarts, images, which, seed: as for `attack_run`.
        dataset: the runs' own dataset, if it is not a built-in one.
        data_dir: folder of the datasets, as for training.
        algorithm, network: the runs' own class or builder, as for `load_algorithm`.
        device: auto, cpu, cuda or mps.

    Returns:
        One row per run, domain, attack and epsilon: `label` (the method, and the settings in which its runs differ),
        `trial`, `run`, `domain`, `attack`, `norm`, `epsilon`, `accuracy`, `images`. `norm` and `epsilon` are null for
        custom attacks that are not called with an epsilon.
    """
    if which not in get_args(Which):
        raise unknown_choice("which", which, get_args(Which))
    torch_device = pick_device(device)
    own: _OwnCode = {"algorithm": algorithm, "network": network}
    runs = find_trained_runs(paths, f"{which}.safetensors")
    _check_same_data(runs, ("dataset",))
    rows = []
    labels, names = label_runs([run.settings for run in runs]), name_runs([run.path for run in runs])
    for number, (run, label, name) in enumerate(zip(runs, labels, names, strict=True), start=1):
        opened = open_run(run.path, dataset=dataset, data_dir=data_dir, on_data=on_progress, **own)
        title = f"attacking {name}, run {number} of {len(runs)}"
        report = partial(_report_as, on_progress, title)
        results = attack_run(
            opened,
            domains=domains,
            attacks=attacks,
            norm=norm,
            epsilons=epsilons,
            steps=steps,
            step_size=step_size,
            restarts=restarts,
            images=images,
            which=which,
            seed=seed,
            device=torch_device,
            on_progress=report,
        )
        rows += [{"label": label, "trial": run.settings["trial_seed"], **asdict(each), "run": name} for each in results]
    return pl.DataFrame(rows, schema_overrides={"norm": pl.String, "epsilon": pl.Float64}, infer_schema_length=None)


@dataclass(frozen=True)
class CorruptedAccuracy:
    """Accuracy of runs on corrupted images.

    Args:
        measurements: one row per run, domain, corruption and severity: `label` (the method, and the settings in which
            its runs differ), `trial`, `held_out` (the test domains), `run`, `domain`, `corruption`, `severity`,
            `accuracy`, `images`. The corruption `clean` has severity 0.
        summary: one row per run and domain, as `summarize_corruptions` returns it.
    """

    measurements: pl.DataFrame
    summary: pl.DataFrame


def corrupt_runs(
    paths: Sequence[Path],
    *,
    domains: Sequence[str] = (),
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    images: int | None = 500,
    which: Which = "best",
    seed: int = 0,
    reference: str | None = None,
    dataset: AnyDataset | None = None,
    data_dir: str | Path | None = None,
    algorithm: AnyAlgorithm | None = None,
    network: AnyNetwork | None = None,
    device: str = "auto",
    on_progress: OnProgress = ignore_progress,
) -> CorruptedAccuracy:
    """Measure the accuracy of runs of one dataset on corrupted images, and their mean corruption error (mCE).

    Needs the extra `corruptions`.

    Args:
        paths: run folders, or folders with runs below them.
        domains, corruptions, severities, images, which, seed: as for `measure_corruptions`.
        reference: method or run that the mCE is relative to, as for `summarize_corruptions`.
        dataset: the runs' own dataset, if it is not a built-in one.
        data_dir: folder of the datasets, as for training.
        algorithm, network: the runs' own class or builder, as for `load_algorithm`.
        device: auto, cpu, cuda or mps.
    """
    if which not in get_args(Which):
        raise unknown_choice("which", which, get_args(Which))
    torch_device = pick_device(device)
    runs = find_trained_runs(paths, f"{which}.safetensors")
    _check_same_data(runs, ("dataset",))
    labels, names = label_runs([run.settings for run in runs]), name_runs([run.path for run in runs])
    check_reference(reference, labels, names)
    trials: dict[int, list[int]] = {}
    for position, run in enumerate(runs):
        trials.setdefault(run.settings["trial_seed"], []).append(position)
    results: dict[int, list[CorruptionResult]] = {}
    held_out: dict[int, str] = {}
    datasets = DatasetCache()
    # Trials differ in their splits, so that only runs of one trial share images.
    for number, (trial, positions) in enumerate(trials.items(), start=1):
        opened = [
            open_run(
                runs[position].path,
                dataset=dataset,
                data_dir=data_dir,
                algorithm=algorithm,
                network=network,
                on_data=on_progress,
                datasets=datasets,
            )
            for position in positions
        ]
        title = f"corruptions, trial {trial} ({number} of {len(trials)})"
        measured = measure_corruptions(
            opened,
            domains=domains,
            corruptions=corruptions,
            severities=severities,
            images=images,
            which=which,
            seed=seed,
            device=torch_device,
            on_progress=partial(_report_as, on_progress, title),
        )
        results.update(zip(positions, measured, strict=True))
        held_out.update(zip(positions, (", ".join(run.roles.test) for run in opened), strict=True))
    measurements = pl.DataFrame(
        [
            {
                "label": labels[position],
                "trial": run.settings["trial_seed"],
                "held_out": held_out[position],
                **asdict(each),
                "run": names[position],
            }
            for position, run in enumerate(runs)
            for each in results[position]
        ]
    )
    return CorruptedAccuracy(measurements, summarize_corruptions(measurements, reference))


def _report_as(on_progress: OnProgress, title: str, what: str, done: int, total: int) -> None:
    on_progress(title, done, total)
