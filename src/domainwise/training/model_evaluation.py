"""Accuracy and other metrics of a model, trained here or published, on labelled data that it was not trained with."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from domainwise.data import Dataset, Domain
from domainwise.data.batches import iterate_batches
from domainwise.data.decoding import CenterCrop
from domainwise.data.image_datasets import build_image_dataset
from domainwise.data.listing import DomainFiles, Listing, check_not_table, find_images
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.data.published_listings import load_wordnet_ids
from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.networks.backbones import is_published_classifier, load_published_classifier
from domainwise.selection.metrics import parse_metrics
from domainwise.selection.score import binomial_variance
from domainwise.storage.discovery import discover
from domainwise.storage.hub import find_run
from domainwise.storage.run_folder import RunFolder, Which
from domainwise.training.device import pick_device
from domainwise.training.loading import check_which, load_model
from domainwise.training.metrics import Predictions, collect_predictions, compute_metrics
from domainwise.training.prediction import check_input_shape
from domainwise.training.registry import (
    AnyAlgorithm,
    AnyDataset,
    AnyNetwork,
    build_dataset,
    dataset_name,
    dataset_options,
    is_path,
    list_dataset_files,
)

# The most class names in an error.
_MAX_LISTED = 20


@dataclass(frozen=True)
class Count:
    """How many of some images were classified correctly."""

    correct: int
    images: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.images

    @property
    def error(self) -> float:
        """The standard error of the accuracy."""
        return math.sqrt(binomial_variance(self.accuracy, self.images))

    def as_dict(self) -> dict[str, float]:
        return {
            "images": self.images,
            "correct": self.correct,
            "accuracy": self.accuracy,
            "standard_error": self.error,
        }


@dataclass(frozen=True)
class ModelEvaluation:
    """What the model of a run, or a published classifier, gets right on a dataset.

    Args:
        run: as it was given.
        which: model of the run; None for a published classifier.
        dataset: name of the dataset.
        counts: by domain and class; classes without an image in a domain are missing there.
        trained_on: domains of this dataset that the run was trained on, so that they say nothing about new data.
        ignored: number of images that were left out, by their classes, which the model does not have.
        classes: of the model: the rows and columns of confusion matrices.
        metrics: by domain, those that were asked for, by name.
        total_metrics: the same over all images.
        extra_classes: number of classes that the model has and the data lacks, if it may predict them.
    """

    run: str
    which: Which | None
    dataset: str
    counts: Mapping[str, Mapping[str, Count]]
    trained_on: tuple[str, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    total_metrics: Mapping[str, Any] = field(default_factory=dict)
    extra_classes: int = 0

    @property
    def total(self) -> Count:
        """Over all images."""
        return _add(self.by_domain.values())

    @property
    def by_domain(self) -> dict[str, Count]:
        return {name: _add(classes.values()) for name, classes in self.counts.items()}

    @property
    def worst_domain(self) -> str:
        """The domain with the lowest accuracy."""
        return min(self.by_domain, key=lambda name: self.by_domain[name].accuracy)

    @property
    def by_class(self) -> dict[str, Count]:
        """Over all domains."""
        names = dict.fromkeys(name for classes in self.counts.values() for name in classes)
        return {name: _add(classes[name] for classes in self.counts.values() if name in classes) for name in names}

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers, ready for JSON."""
        return {
            "run": self.run,
            "which": self.which,
            "dataset": self.dataset,
            **self.total.as_dict(),
            **({"metrics": dict(self.total_metrics), "model_classes": list(self.classes)} if self.metrics else {}),
            "worst_domain": self.worst_domain,
            "domains": {
                name: {
                    **count.as_dict(),
                    **({"metrics": dict(self.metrics[name])} if self.metrics else {}),
                    "classes": _as_dicts(self.counts[name]),
                }
                for name, count in self.by_domain.items()
            },
            "classes": _as_dicts(self.by_class),
            "trained_on": list(self.trained_on),
            "ignored_classes": dict(self.ignored),
            "extra_classes": self.extra_classes,
        }


def evaluate_models(
    runs: Sequence[str | Path],
    dataset: AnyDataset,
    *,
    which: Which = "best",
    domains: Sequence[str] = (),
    ignore_unknown_classes: bool = False,
    only_dataset_classes: bool = False,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
    algorithm: AnyAlgorithm | None = None,
    network: AnyNetwork | None = None,
    device: str = "auto",
    weights: str | Path | None = None,
    metrics: str | Sequence[str] = (),
    on_progress: OnProgress = ignore_progress,
) -> list[ModelEvaluation]:
    """Measure the accuracy, and other metrics, of models on a labelled dataset, new to them or not.

    Images are resized to the squares that the model of a run was trained on, and prepared for a published classifier as
    they were for its published accuracy. Classes are matched by name.

    Args:
        runs: run folders, folders with runs below them, `hf:owner/name`, or classifiers of ImageNet:
            `torchvision:resnet50`, `timm:resnet50.a1_in1k`. The classes of the latter are WordNet ids.
        dataset: a folder root/domain/class/image or root/class/image (one domain), a CSV file with columns path, label
            and domain, or a dataset as for `RunConfig`.
        which: model of each run, `best` or `last`.
        domains: domains to evaluate (default: all).
        ignore_unknown_classes: leave out images of classes that a model does not have, instead of raising an error.
        only_dataset_classes: let models predict only classes that the dataset has. Otherwise, predictions of other
            classes are wrong answers like any other.
        options: options of the dataset, such as `skip_broken`.
        seed: seed of synthetic data.
        data_dir: folder that contains the datasets.
        algorithm, network: the runs' own class or builder, as for `load_model`.
        weights: of the published classifiers, as for `load_published_classifier`.
        device: auto, cpu, cuda or mps.
        metrics: macro_f1, balanced_accuracy, worst_class, ece or confusion, as of `RunConfig`.
        on_progress: called with a task, how much of it is done, and the total.
    """
    check_which(which)
    names = parse_metrics(metrics)
    torch_device = pick_device(device)
    found = _find_models(runs, which)
    if weights is not None and not any(map(is_published_classifier, found)):
        raise DomainwiseError("weights apply to torchvision: and timm: models only; runs have their own")
    built: dict[object, Dataset] = {}
    evaluations = []
    for name, folder in found.items():
        opened = _open_run(folder, which, algorithm, network) if folder else _open_classifier(name, weights)
        key = opened.shape, opened.crop
        if key not in built:
            built = {key: _build_for(opened, dataset, options or {}, seed, data_dir, on_progress)}
        data, classes = built[key], opened.classes
        chosen = _choose_domains(data, domains)
        labels, ignored = _match_classes(name, classes, data, chosen, ignore_unknown_classes)
        model, extra = opened.model.to(torch_device), len(set(classes) - set(data.classes))
        predict = partial(_predict_only, model, sorted(labels[labels >= 0].tolist())) if only_dataset_classes else model
        parts = [(domain, (labels[domain.labels] >= 0).nonzero().flatten()) for domain in chosen]
        progress = _Progress(f"evaluating {name}", sum(len(indices) for _, indices in parts), on_progress)
        predictions = {
            domain.name: collect_predictions(
                predict,
                (
                    _convert_channels(x, opened.shape[0])
                    for x, _ in progress.follow(iterate_batches(domain, indices, torch_device))
                ),
                labels[domain.labels[indices]],
            )
            for domain, indices in parts
            if len(indices)
        }
        counts = {domain: _count_by_class(each, classes) for domain, each in predictions.items()}
        by_domain = {
            domain: compute_metrics(names, each, len(classes)) for domain, each in predictions.items() if names
        }
        over_all = compute_metrics(names, Predictions.concatenate(predictions.values()), len(classes)) if names else {}
        trained_on = _find_trained(opened.facts, data.name, counts)
        evaluations.append(
            ModelEvaluation(
                *(name, which if folder else None, data.name, counts, trained_on, ignored),
                *(classes, by_domain, over_all, 0 if only_dataset_classes else extra),
            )
        )
    return evaluations


@dataclass(frozen=True)
class _OpenedModel:
    """A model and what its inputs must look like.

    Args:
        classes: names of its outputs.
        shape: of one input.
        crop: how images are prepared; None if they are resized to squares, as in training here.
        facts: contents of the config.json of its run; empty for a published classifier.
    """

    model: nn.Module
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    crop: CenterCrop | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def _open_run(folder: Path, which: Which, algorithm: AnyAlgorithm | None, network: AnyNetwork | None) -> _OpenedModel:
    facts = RunFolder(folder).read_config()
    model = load_model(folder, which, algorithm=algorithm, network=network)
    return _OpenedModel(model, tuple(facts["data"]["classes"]), tuple(facts["data"]["input_shape"]), facts=facts)


def _open_classifier(name: str, weights: str | Path | None) -> _OpenedModel:
    classes = tuple(load_wordnet_ids(name))
    classifier = load_published_classifier(name, None if weights is None else str(weights))
    crop = CenterCrop(classifier.resize, classifier.interpolation, classifier.keeps_aspect)
    return _OpenedModel(classifier.model, classes, (3, classifier.size, classifier.size), crop)


def _predict_only(model: nn.Module, classes: Sequence[int], x: Tensor) -> Tensor:
    """Return logits with those of all other classes at minus infinity."""
    logits: Tensor = model(x)
    masked = torch.full_like(logits, -math.inf)
    masked[:, classes] = logits[:, classes]
    return masked


@dataclass
class _Progress:
    """Calls back after every batch."""

    task: str
    total: int
    on_progress: OnProgress
    done: int = 0

    def follow(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in batches:
            yield x, y
            self.done += len(x)
            self.on_progress(self.task, self.done, self.total)


def _count_by_class(predictions: Predictions, classes: Sequence[str]) -> dict[str, Count]:
    truth = predictions.truth
    images = truth.bincount(minlength=len(classes)).tolist()
    correct = truth[predictions.predicted == truth].bincount(minlength=len(classes)).tolist()
    return {name: Count(*each) for name, *each in zip(classes, correct, images, strict=True) if each[1]}


def _add(counts: Iterable[Count]) -> Count:
    pairs = [(count.correct, count.images) for count in counts]
    return Count(sum(correct for correct, _ in pairs), sum(images for _, images in pairs))


def _as_dicts(counts: Mapping[str, Count]) -> dict[str, dict[str, float]]:
    return {name: count.as_dict() for name, count in counts.items()}


def _find_models(runs: Sequence[str | Path], which: Which) -> dict[str, Path | None]:
    """Return the folder of every run, by the names as they were given or, below a folder, by their paths.

    Published classifiers have none.
    """
    folders: dict[str, Path | None] = {}
    for run in runs:
        if is_published_classifier(run):
            folders[str(run)] = None
            continue
        path = find_run(run, which)
        below = [] if RunFolder(path).config_file.exists() else discover([path]).runs
        ready = [each.path for each in below if not each.is_domainbed and RunFolder(each.path).has_weights(which)]
        if below and not ready:
            raise DomainwiseError(f"no run in {path} has {which}.safetensors yet")
        folders |= {str(each): each for each in ready} if below else {str(run): path}
    return folders


def _build_for(
    opened: _OpenedModel,
    dataset: AnyDataset,
    options: Mapping[str, Any],
    seed: int,
    data_dir: str | Path | None,
    on_progress: OnProgress,
) -> Dataset:
    """Build the dataset with images that a model takes."""
    shape = opened.shape
    if is_path(dataset) and _is_single_domain(path := Path(str(dataset))):
        _, size = check_input_shape(shape)
        dataset = partial(_build_single_domain, path, image_size=size, crop=opened.crop)
    elif opened.crop:
        listing = list_dataset_files(dataset, options, data_dir)
        if listing is None or "image_size" in options:
            reason = "is not made of image files" if listing is None else "cannot have an image_size here"
            raise DomainwiseError(f"{dataset_name(dataset)} {reason}: a published classifier has its own preprocessing")
        skip_broken = bool(options.get("skip_broken", False))
        return build_image_dataset(
            listing, image_size=shape[-1], skip_broken=skip_broken, on_progress=on_progress, crop=opened.crop
        )
    elif "image_size" in dataset_options(dataset):
        options = {"image_size": shape[-1], **options}
    data = build_dataset(dataset, options, seed=seed, data_dir=data_dir, on_progress=on_progress)
    # As in `predict_images`, a model that takes one channel gets the mean of three.
    if data.image_shape not in (shape, (3, *shape[1:]) if shape[0] == 1 else ()):
        raise DomainwiseError(
            f"the model takes inputs of shape {shape}, and {data.name} has images of shape {data.image_shape}"
        )
    return data


def _is_single_domain(path: Path) -> bool:
    """Return whether a folder has images at root/class/image rather than at root/domain/class/image."""
    if not path.is_dir():
        return False
    folders = [each for each in path.iterdir() if each.is_dir() and not each.name.startswith(".")]
    return bool(folders) and not any(child.is_dir() for folder in folders for child in folder.iterdir())


def _build_single_domain(
    root: Path,
    seed: int = 0,
    *,
    image_size: int,
    crop: CenterCrop | None,
    skip_broken: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> Dataset:
    name = root.resolve().name
    by_class = {folder.name: find_images(folder) for folder in sorted(root.iterdir()) if folder.is_dir()}
    by_class = {label: files for label, files in by_class.items() if files}
    files = tuple(file for each in by_class.values() for file in each)
    if not files:
        check_not_table(root)
        raise DomainwiseError(f"no images found in {root}: expected at root/domain/class/image or root/class/image")
    labels = tuple(label for label, each in enumerate(by_class.values()) for _ in each)
    listing = Listing(name, tuple(by_class), (DomainFiles(name, files, labels),))
    return build_image_dataset(
        listing, image_size=image_size, skip_broken=skip_broken, on_progress=on_progress, crop=crop
    )


def _match_classes(
    run: str, classes: Sequence[str], data: Dataset, domains: Sequence[Domain], ignore_unknown: bool
) -> tuple[Tensor, dict[str, int]]:
    """Return the model's label for each label of the data (-1: none), and the number of images without one."""
    sizes = torch.cat([domain.labels for domain in domains]).bincount(minlength=len(data.classes)).tolist()
    unknown = {name: size for name, size in zip(data.classes, sizes, strict=True) if size and name not in classes}
    if unknown and not ignore_unknown:
        raise DomainwiseError(
            f"the model of {run} does not have the classes {_list_few(unknown)} of {data.name}, only "
            f"{_list_few(classes)}; rename them, or leave out their images with --ignore-unknown-classes"
        )
    if len(unknown) == sum(map(bool, sizes)):
        raise DomainwiseError(f"the model of {run} has none of the classes of {data.name}, only {_list_few(classes)}")
    known = {name: index for index, name in enumerate(classes)}
    return torch.tensor([known.get(name, -1) for name in data.classes]), unknown


def _list_few(names: Iterable[str]) -> str:
    shown = list(names)
    more = f" (+{len(shown) - _MAX_LISTED} more)" if len(shown) > _MAX_LISTED else ""
    return ", ".join(shown[:_MAX_LISTED]) + more


def _choose_domains(data: Dataset, names: Sequence[str]) -> list[Domain]:
    for name in names:
        if name not in data.domain_names:
            raise unknown_choice(f"domain of {data.name}", name, data.domain_names)
    return [domain for domain in data.domains if not names or domain.name in names]


def _convert_channels(x: Tensor, channels: int) -> Tensor:
    return x if x.shape[1] == channels else x.mean(1, keepdim=True)


def _find_trained(facts: Mapping[str, Any], dataset: str, domains: Iterable[str]) -> tuple[str, ...]:
    is_same = bool(facts) and facts["config"].get("dataset") == dataset
    trained = facts["data"].get("train_domains", ()) if is_same else ()
    return tuple(name for name in domains if name in trained)
