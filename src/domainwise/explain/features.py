"""Features of trained models on the same images: their t-SNE map, and how well domain and class follow from them.

A t-SNE map (van der Maaten and Hinton 2008) keeps neighbors together. Distances between its clusters, and their sizes,
mean little, and clusters appear in noise too. The numbers do not depend on the map: they are the cross-validated
accuracy of a logistic regression on the features themselves.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from domainwise.algorithms.base import eval_mode
from domainwise.data import Dataset, Domain
from domainwise.data.batches import iterate_batches
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError
from domainwise.selection.score import binomial_variance
from domainwise.selection.statistics import Estimate, format_percent
from domainwise.storage.run_folder import Which
from domainwise.training.loading import OpenRun

_FOLDS = 5
# As van der Maaten and Hinton do: principal components suppress noise and make t-SNE faster.
_COMPONENTS = 50
_PERPLEXITY = 30.0
# The standard deviation that t-SNE starts with; from far apart it does not converge.
_START_SPREAD = 1e-4


@dataclass(frozen=True)
class Probe:
    """How well a logistic regression predicts a target from features.

    Args:
        accuracy: on images that it was not fitted on, by cross-validation, with the standard error over images.
        chance: share of the most frequent value of the target.
        left_out: number of images left out because their value is too rare for every fold to have one.
    """

    accuracy: Estimate
    chance: float
    left_out: int = 0


@dataclass(frozen=True)
class FeatureMaps:
    """t-SNE maps of several runs on the same images, and what their features tell.

    Args:
        classes: names of the dataset's classes.
        points: one row per run and image: `run`, `domain`, `role` (train, validation or test), `image` (its index in
            the domain), `class`, `predicted`, and its place on the run's map, `x` and `y`.
        domain_probes, class_probes: accuracy of predicting domain or class from the features, by run; None where
            there are too few images.
        domain_from_class: accuracy of predicting the domain from the class alone, which features that tell nothing but
            the class would reach.
        perplexity: of t-SNE, about the number of neighbors of each point.
    """

    dataset: str
    classes: tuple[str, ...]
    points: pl.DataFrame
    domain_probes: Mapping[str, Probe | None]
    class_probes: Mapping[str, Probe | None]
    domain_from_class: Probe | None
    perplexity: float

    def format_rows(self) -> list[list[str]]:
        """Return per run its name and both accuracies in percent; last the guesses to compare them with."""
        rows = [[run, _format(self.domain_probes[run]), _format(self.class_probes[run])] for run in self.domain_probes]
        first = next(iter(self.domain_probes))
        chances = [_format_chance(probes[first]) for probes in (self.domain_probes, self.class_probes)]
        return [*rows, ["the class alone", _format(self.domain_from_class), ""], ["chance", *chances]]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON-serializable values."""
        return {
            "dataset": self.dataset,
            "perplexity": self.perplexity,
            "runs": {
                run: {
                    "domain": _to_json(self.domain_probes[run]),
                    "class": _to_json(self.class_probes[run]),
                }
                for run in self.domain_probes
            },
            "domain_from_class": _to_json(self.domain_from_class),
            "points": self.points.to_dicts(),
        }


def _format(probe: Probe | None) -> str:
    return "" if probe is None else format_percent(probe.accuracy.mean, probe.accuracy.error)


def _format_chance(probe: Probe | None) -> str:
    return "" if probe is None else format_percent(probe.chance, None)


def _to_json(probe: Probe | None) -> dict[str, float | int | None] | None:
    if probe is None:
        return None
    accuracy = probe.accuracy
    return {
        "accuracy": accuracy.mean,
        "error": accuracy.error,
        "chance": probe.chance,
        "images": accuracy.count,
        "left_out": probe.left_out,
    }


def map_features(
    runs: Mapping[str, OpenRun],
    *,
    images: int = 200,
    which: Which = "best",
    seed: int = 0,
    perplexity: float | None = None,
    device: torch.device | None = None,
    on_progress: OnProgress = ignore_progress,
) -> FeatureMaps:
    """Map the features of runs of one trial and the same training domains, all on the same images.

    Args:
        runs: runs by label.
        images: maximum number of images per domain, sampled from its holdout, which no run was trained on.
        which: model of each run, `best` or `last`.
        seed: seed for sampling the images, for t-SNE and for the folds.
        perplexity: about the number of neighbors of each point (default: 30, less for fewer than 91 images).
    """
    device = device or torch.device("cpu")
    refits = [label for label, run in runs.items() if not has_holdouts(run)]
    if refits:
        warnings.warn(
            f"{', '.join(refits)} trained on all images of the training domains, also on those that are mapped",
            stacklevel=2,
        )
    first = next(iter(runs.values()))
    chosen = sample_feature_images(next(filter(has_holdouts, runs.values()), first), images, seed)
    perplexity = _choose_perplexity(perplexity, sum(map(len, chosen.values())))
    dataset = first.dataset
    labels = torch.cat([dataset.domains[dataset.index(name)].labels[indices] for name, indices in chosen.items()])
    domains = torch.cat([torch.full_like(each, number) for number, each in enumerate(chosen.values())])
    groups = _group_images(dataset, chosen)
    tables, domain_probes, class_probes = [], {}, {}
    for number, (label, run) in enumerate(runs.items()):
        title = f"features of {label}, run {number + 1} of {len(runs)}"
        features, predicted = _compute_run_features(run, chosen, which, device, title, on_progress)
        on_progress("t-SNE and probes", number, len(runs))
        table = pl.DataFrame(
            {
                "run": label,
                "domain": [name for name, indices in chosen.items() for _ in indices],
                "role": [_get_role(run, name) for name, indices in chosen.items() for _ in indices],
                "image": torch.cat(list(chosen.values())).tolist(),
                "class": [dataset.classes[each] for each in labels.tolist()],
                "predicted": [dataset.classes[each] for each in predicted.tolist()],
            }
        )
        places = embed_features(features, perplexity=perplexity, seed=seed)
        tables.append(table.with_columns(x=pl.Series(places[:, 0]), y=pl.Series(places[:, 1])))
        domain_probes[label] = probe_features(features, domains, groups=groups, seed=seed)
        class_probes[label] = probe_features(features, labels, groups=groups, seed=seed)
        on_progress("t-SNE and probes", number + 1, len(runs))
    one_hot = nn.functional.one_hot(labels, len(dataset.classes)).float()
    return FeatureMaps(
        dataset.name,
        dataset.classes,
        pl.concat(tables),
        domain_probes,
        class_probes,
        probe_features(one_hot, domains, groups=groups, seed=seed),
        perplexity,
    )


def has_holdouts(run: OpenRun) -> bool:
    """Return whether a run left out images of all its training domains, which a refit does not."""
    return all(len(run.splits[name].holdout) for name in run.roles.train)


def sample_feature_images(run: OpenRun, count: int, seed: int = 0) -> dict[str, Tensor]:
    """Return the indices of up to `count` images per domain, sampled from its holdout, or if that is empty from all."""
    if count < 1:
        raise DomainwiseError(f"the number of images must be at least 1, got {count}")
    generator = torch.Generator().manual_seed(seed)
    chosen = {}
    for name, split in run.splits.items():
        pool = split.holdout if len(split.holdout) else split.main
        chosen[name] = pool[torch.randperm(len(pool), generator=generator)[:count]]
    return chosen


def _group_images(dataset: Dataset, chosen: Mapping[str, Tensor]) -> Tensor:
    """Return one number per image, the same for those that may show the same object in several domains.

    That is so where domains have the same labels in the same order, as the test domains of `silhouettes`: a regression
    that was fitted on an object in one domain would know its class in another.
    """
    groups = []
    for name, indices in chosen.items():
        labels = dataset.domains[dataset.index(name)].labels
        first = next(number for number, other in enumerate(dataset.domains) if other.labels.equal(labels))
        groups.append(indices * len(dataset.domains) + first)
    return torch.cat(groups)


def _choose_perplexity(perplexity: float | None, count: int) -> float:
    if count < 4:
        raise DomainwiseError(f"t-SNE needs at least 4 images, got {count}")
    if perplexity is None:
        return min(_PERPLEXITY, (count - 1) / 3)
    if not 1 <= perplexity < count:
        raise DomainwiseError(
            f"perplexity must be at least 1 and less than the number of images ({count}), got {perplexity:g}"
        )
    return perplexity


def _get_role(run: OpenRun, domain: str) -> str:
    roles = run.roles
    return "train" if domain in roles.train else "validation" if domain in roles.validation else "test"


def _compute_run_features(
    run: OpenRun,
    chosen: Mapping[str, Tensor],
    which: Which,
    device: torch.device,
    title: str,
    on_progress: OnProgress,
) -> tuple[Tensor, Tensor]:
    """Return the features (n, num_features) and the predicted classes (n,) of the chosen images."""
    network = run.model(which)
    if not isinstance(getattr(network, "featurizer", None), nn.Module):
        raise DomainwiseError(
            f"the network of the run in {run.folder.path} has no featurizer, whose output the features are; "
            "use a domainwise.networks.Network"
        )
    network = network.to(device)
    parts, done, total = [], 0, sum(map(len, chosen.values()))
    for name, indices in chosen.items():
        parts.append(compute_features(network, run.dataset.domains[run.dataset.index(name)], indices, device))
        done += len(indices)
        on_progress(title, done, total)
    features, predicted = (torch.cat(each) for each in zip(*parts, strict=True))
    if not features.isfinite().all():
        raise DomainwiseError(f"the run in {run.folder.path} has features that are not finite")
    return features, predicted


@torch.no_grad()
def compute_features(
    network: nn.Module, domain: Domain, indices: Tensor, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the featurizer's output (n, num_features) and the predicted classes (n,) of a domain's images."""
    features: list[Tensor] = []
    predicted: list[Tensor] = []
    # Recorded in the network's own pass, because some methods change what reaches the featurizer.
    hook = network.get_submodule("featurizer").register_forward_hook(
        lambda module, inputs, output: features.append(output.flatten(1).float().cpu())
    )
    try:
        with eval_mode(network):
            for x, _ in iterate_batches(domain, indices, device):
                predicted.append(network(x).argmax(1).cpu())
    finally:
        hook.remove()
    return torch.cat(features), torch.cat(predicted)


def embed_features(features: Tensor, *, perplexity: float = _PERPLEXITY, seed: int = 0) -> NDArray[np.float32]:
    """Return a t-SNE map of features (n, num_features), (n, 2), from their first principal components.

    The same seed gives the same map.
    """
    from sklearn.decomposition import PCA  # type: ignore[import-untyped]
    from sklearn.manifold import TSNE  # type: ignore[import-untyped]
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    table = features.double().numpy()
    spread = table.std(0)
    if not spread.any():
        raise DomainwiseError("the features are the same for all images, so there is nothing to map")
    # One thread: the order in which several add up numbers is left to chance, and t-SNE magnifies the difference.
    with threadpool_limits(1):
        reduced = PCA(min(_COMPONENTS, *table.shape), svd_solver="full").fit_transform(table)
        # The map does not depend on the scale, but t-SNE's squared distances overflow in single precision.
        reduced /= reduced[:, 0].std()
        start = np.zeros((len(table), 2))
        start[:, : reduced.shape[1]] = _START_SPREAD * reduced[:, :2]
        places: NDArray[np.float32] = TSNE(
            perplexity=perplexity, init=start.astype(np.float32), random_state=seed
        ).fit_transform(reduced)
    return places


def probe_features(features: Tensor, targets: Tensor, *, groups: Tensor | None = None, seed: int = 0) -> Probe | None:
    """Measure how well a logistic regression predicts `targets` (n,) from features (n, num_features).

    Args:
        groups: images of one group (n,) are in the same fold (default: every image is a group of its own).

    Returns:
        The accuracy in five-fold cross-validation; None if fewer than two values occur in five groups or more.
    """
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    from sklearn.model_selection import (  # type: ignore[import-untyped]
        StratifiedGroupKFold,
        StratifiedKFold,
        cross_val_predict,
    )
    from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
    from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]
    from threadpoolctl import threadpool_limits

    groups = torch.arange(len(targets)) if groups is None else groups
    counts = torch.stack((targets, groups)).unique(dim=1)[0].bincount()
    kept = (counts >= _FOLDS)[targets]
    if int((counts >= _FOLDS).sum()) < 2:
        return None
    x, y = features[kept].double().numpy(), targets[kept].numpy()
    is_grouped = len(groups.unique()) < len(groups)
    folds = (StratifiedGroupKFold if is_grouped else StratifiedKFold)(_FOLDS, shuffle=True, random_state=seed)
    with threadpool_limits(1):
        predicted = cross_val_predict(
            make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
            *(x, y),
            groups=groups[kept].numpy() if is_grouped else None,
            cv=folds,
        )
    accuracy = float(np.mean(predicted == y))
    error = float(np.sqrt(binomial_variance(accuracy, len(y))))
    return Probe(Estimate(accuracy, error, len(y)), float(np.bincount(y).max()) / len(y), int((~kept).sum()))
