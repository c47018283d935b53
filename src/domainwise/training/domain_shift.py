"""How far apart domains are: diversity shift and correlation shift (Ye et al., OoD-Bench, CVPR 2022, section 3).

Two domains have densities p and q of features z that tell them apart, and class probabilities p(y|z) and q(y|z). Where
only one of them has density (S) the domains are diverse; where both have (T) they may disagree about the classes:

    diversity = 1/2 int_S |p(z) - q(z)| dz          correlation = 1/2 int_T sqrt(p(z) q(z)) sum_y |p(y|z) - q(y|z)| dz

As in OoD-Bench, z comes from a network that is trained to predict the domain from image and class, and the densities
are kernel estimates from images that it was not trained on. docs/data_shift.md lists where the estimator differs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.data import Dataset, Domain
from domainwise.data.batches import iterate_batches
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError
from domainwise.networks import is_backbone, list_backbones
from domainwise.seeds import seed_hash
from domainwise.training.device import pick_device, seeded_torch
from domainwise.training.registry import find_network_builder

# A choice of words, not of OoD-Bench's: below the first a shift goes unmentioned, above the second it is the rule.
NOTABLE_SHIFT, LARGE_SHIFT = 0.1, 0.3
# Above, too little overlap is left to compare the classes.
_DISJOINT = 0.9
# Kernel estimates in more dimensions need more images than most domains have (docs/data_shift.md has the numbers).
_DIMENSIONS = 2
# Where one density is below this share of their sum it counts as zero, or below a smaller share if chance requires it.
_VANISHING = 0.02
# Largest diversity that two samples of one distribution may show, by the choice of that share.
_CHANCE_DIVERSITY = 0.01
_POINTS, _REDRAWS = 1000, 10
_COMPONENTS, _HIDDEN, _STEPS = 64, 32, 60
_GRID = 8
# A class is compared if every half of either side has two of its images.
_MIN_IMAGES = 4
# Fewer images per side than this, and the densities are rough.
_FEW_IMAGES = 50


@dataclass(frozen=True)
class DomainShift:
    """The shift between a domain and others, as means and standard deviations over repeats.

    Args:
        domain, others: the domain, and the domain or domains together that it is compared with.
        diversity, correlation: the two shifts, between 0 and 1.
        diversity_std, correlation_std: their standard deviations over repeats; None for a single one.
        accuracy: share of held-out images whose domain the network predicts, averaged over both sides; 0.5 is chance.
        images: number of images on either side.
    """

    domain: str
    others: tuple[str, ...]
    diversity: float
    diversity_std: float | None
    correlation: float
    correlation_std: float | None
    accuracy: float
    images: tuple[int, int]

    @property
    def meaning(self) -> str:
        """One sentence on what the two numbers say."""
        return describe_shift(self.diversity, self.correlation)


@dataclass(frozen=True)
class ShiftReport:
    """All shifts of a dataset.

    Args:
        features: what the images were reduced to.
        left_out: each domain against those that would be trained on: all others, or the dataset's training domains.
        pairs: every two domains.
        caveats: what limits the numbers, one sentence each.
    """

    dataset: str
    features: str
    repeats: int
    left_out: tuple[DomainShift, ...]
    pairs: tuple[DomainShift, ...]
    caveats: tuple[str, ...]

    @property
    def diversity(self) -> float:
        """Mean over the left-out domains."""
        return sum(each.diversity for each in self.left_out) / len(self.left_out)

    @property
    def correlation(self) -> float:
        """Mean over the left-out domains."""
        return sum(each.correlation for each in self.left_out) / len(self.left_out)

    @property
    def meaning(self) -> str:
        """One sentence on what the two means say."""
        return describe_shift(self.diversity, self.correlation)

    def as_dict(self) -> dict[str, Any]:
        """Return everything, with the meanings, as what JSON can hold."""

        def describe(shifts: Sequence[DomainShift]) -> list[dict[str, Any]]:
            return [asdict(each) | {"meaning": each.meaning} for each in shifts]

        means = {"diversity": self.diversity, "correlation": self.correlation, "meaning": self.meaning}
        return asdict(self) | means | {"left_out": describe(self.left_out), "pairs": describe(self.pairs)}


def describe_shift(diversity: float, correlation: float) -> str:
    """Return one sentence on what the two numbers say."""
    if diversity >= _DISJOINT:
        return "styles barely overlap, so whether labels follow the same rule cannot be measured"
    if max(diversity, correlation) < NOTABLE_SHIFT:
        return "no notable shift: styles are alike, labels follow the same rule"
    styles = "styles differ" if diversity >= NOTABLE_SHIFT else "styles are alike"
    if correlation < NOTABLE_SHIFT:
        return f"{styles}, labels follow the same rule"
    return f"{styles}, {'the same' if correlation >= LARGE_SHIFT else 'some'} features go with other labels"


def measure_domain_shift(
    dataset: Dataset,
    *,
    network: str | None = None,
    weights: str | Path | None = None,
    repeats: int = 3,
    seed: int = 0,
    max_images: int = 1000,
    device: str = "auto",
    on_progress: OnProgress = ignore_progress,
) -> ShiftReport:
    """Measure diversity and correlation shift of each domain against the others, and of every two domains.

    Args:
        network: backbone whose frozen features are used; by default the one that a weights file is named after.
        weights: its weights, a file or a published name. Without network and weights, the features are the mean and
            standard deviation of the pixels in each cell of a grid.
        repeats: repetitions with other splits, networks and sample points; the uncertainty is their spread.
        seed: seed of all of these.
        max_images: largest number of images used per domain, drawn at random.
        device: auto, cpu, cuda or mps.
        on_progress: called after each batch of images and each comparison.

    Raises:
        DomainwiseError: there are fewer than two domains, or two domains share no class.
    """
    if len(dataset.domains) < 2:
        raise DomainwiseError(f"dataset {dataset.name} has one domain; a shift needs at least two")
    for name, value in (("repeats", repeats), ("max_images", max_images)):
        if value < 1:
            raise DomainwiseError(f"{name} must be at least 1, got {value}")
    network = network or _name_network(weights)
    chosen = [_draw_images(domain, max_images, seed) for domain in dataset.domains]
    labels = [domain.labels[indices] for domain, indices in zip(dataset.domains, chosen, strict=True)]
    features = _reduce(_compute_features(dataset, chosen, network, weights, pick_device(device), on_progress))
    comparisons = list(_list_comparisons(dataset))
    shifts: list[DomainShift] = []
    caveats: list[str] = []
    # One thread: the matrices are small, and synchronizing threads takes longer than it saves.
    with seeded_torch(1, seed, torch.device("cpu")):
        for own, others in comparisons:
            sides = [own, *others]
            is_own = torch.arange(sum(len(labels[index]) for index in sides)) < len(labels[own])
            z, y = (torch.cat([values[index] for index in sides]) for values in (features, labels))
            seeds = [seed_hash("domain shift", seed, repeat, own, others) for repeat in range(repeats)]
            shifts.append(_compare(dataset, (own, others), (z, y, is_own), seeds, caveats))
            on_progress("measuring shifts", len(shifts), len(comparisons))
    if any(len(domain) > max_images for domain in dataset.domains):
        caveats.append(f"at most {max_images} images per domain were used")
    count = len(dataset.domains)
    name = _describe_features(network, weights)
    return ShiftReport(dataset.name, name, repeats, tuple(shifts[:count]), tuple(shifts[count:]), tuple(caveats))


def _compare(
    dataset: Dataset,
    domains: tuple[int, tuple[int, ...]],
    samples: tuple[Tensor, Tensor, Tensor],
    seeds: Sequence[int],
    caveats: list[str],
) -> DomainShift:
    """Measure one shift, once per seed, and add what limits it to the caveats.

    Args:
        domains: the domain and those that it is compared with.
        samples: features, (n, num_features), labels, (n,), and whether an image is of that domain, (n,).
    """
    features, labels, is_own = samples
    own, others = dataset.domain_names[domains[0]], tuple(dataset.domain_names[index] for index in domains[1])
    where = f"{own} and {', '.join(others)}"
    counts = _count_classes(labels, is_own, len(dataset.classes)).min(0).values
    if not (counts >= _MIN_IMAGES).any():
        raise DomainwiseError(f"{where} share no class with at least {_MIN_IMAGES} images on either side")
    kept = (counts >= _MIN_IMAGES)[labels]
    features, labels, is_own = features[kept], labels[kept], is_own[kept]
    if rare := [name for name, count in zip(dataset.classes, counts.tolist(), strict=True) if count < _MIN_IMAGES]:
        caveats.append(f"{where}: classes with fewer than {_MIN_IMAGES} images are left out: {', '.join(rare)}")
    images = int(is_own.sum()), int((~is_own).sum())
    if min(images) < _FEW_IMAGES:
        caveats.append(f"{where}: only {min(images)} images on one side; the numbers are rough")
    values = torch.tensor([_measure_once(features, labels, is_own, seed) for seed in seeds], dtype=torch.float64)
    diversity, correlation, accuracy = values.mean(0).tolist()
    spread = values.std(0).tolist() if len(seeds) > 1 else (None, None)
    # Corrected for chance, a mean can be slightly negative.
    return DomainShift(own, others, diversity, spread[0], max(0.0, correlation), spread[1], accuracy, images)


def _list_comparisons(dataset: Dataset) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each domain with those it would be left out of, then every two domains."""
    indices = range(len(dataset.domains))
    training = [index for index in indices if dataset.domains[index].role in (None, "train")]
    for own in indices:
        others = tuple(index for index in training if index != own)
        yield own, others or tuple(index for index in indices if index != own)
    for first, second in combinations(indices, 2):
        yield first, (second,)


def _draw_images(domain: Domain, max_images: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed_hash("domain shift", seed, domain.name))
    return torch.randperm(len(domain), generator=generator)[:max_images].sort().values


def _count_classes(labels: Tensor, is_own: Tensor, num_classes: int) -> Tensor:
    """Return the images per side and class, (2, num_classes)."""
    return torch.stack([labels[side].bincount(minlength=num_classes) for side in (is_own, ~is_own)])


def _name_network(weights: str | Path | None) -> str | None:
    """Return the backbone that a weights file is named after, as torchvision's files are."""
    if weights is None or str(weights) == "none":
        return None
    name = Path(weights).stem.split("-")[0]
    if name not in list_backbones():
        raise DomainwiseError(f"weights {weights} name no known network; pass the network with --network")
    return name


def _describe_features(network: str | None, weights: str | Path | None) -> str:
    if network is None:
        return f"mean and standard deviation of the pixels in a grid of {_GRID} x {_GRID} cells (no network)"
    if weights is None or str(weights) == "none":
        return f"frozen {network} with random weights"
    return f"frozen {network} with weights {Path(weights).name}"


def _compute_features(
    dataset: Dataset,
    chosen: Sequence[Tensor],
    network: str | None,
    weights: str | Path | None,
    device: torch.device,
    on_progress: OnProgress,
) -> list[Tensor]:
    """Return the features of the chosen images per domain, (n, num_features)."""
    featurizer: nn.Module = _PixelFeatures()
    if network is not None:
        builder = find_network_builder(network, weights, "frozen" if is_backbone(network) else None)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            featurizer = builder(dataset.image_shape, len(dataset.classes), 0.0).featurizer
    featurizer = featurizer.to(device).eval()
    done, total, features = 0, sum(map(len, chosen)), []
    for domain, indices in zip(dataset.domains, chosen, strict=True):
        rows = []
        for images, _ in iterate_batches(domain, indices, device):
            with torch.no_grad():
                rows.append(featurizer(images).float().cpu())
            done += len(images)
            on_progress("computing features", done, total)
        features.append(torch.cat(rows))
    return features


class _PixelFeatures(nn.Module):
    """Maps images to the mean and standard deviation of each channel in each cell of a grid."""

    def forward(self, x: Tensor) -> Tensor:
        size = min(_GRID, x.shape[2]), min(_GRID, x.shape[3])
        mean = F.adaptive_avg_pool2d(x, size)
        variance = F.adaptive_avg_pool2d(x * x, size) - mean * mean
        return torch.cat([mean, variance.clamp(min=0).sqrt()], dim=1).flatten(1)


def _reduce(features: Sequence[Tensor]) -> list[Tensor]:
    """Standardize features and keep their principal components, with an average variance of one.

    They are computed from all domains together, without labels.
    """
    table = torch.cat(list(features)).double()
    table = (table - table.mean(0)) / table.std(0).clamp(min=1e-6)
    values, vectors = torch.linalg.eigh(table.T @ table / len(table))
    kept = vectors[:, -_COMPONENTS:]
    scale = float(values[-_COMPONENTS:].clamp(min=0).mean().sqrt()) or 1.0
    reduced = (table @ kept / scale).float()
    return list(reduced.split([len(each) for each in features]))


def _measure_once(features: Tensor, labels: Tensor, is_own: Tensor, seed: int) -> tuple[float, float, float]:
    """Return diversity, correlation and accuracy; each half of the images is measured after training on the other."""
    generator = torch.Generator().manual_seed(seed)
    first = _draw_half(labels, is_own, generator)
    values = []
    for half in (first, ~first):
        z, accuracy = _train_and_embed(features, labels, is_own, half, generator)
        values.append((*estimate_shift(z, labels[~half], is_own[~half], generator), accuracy))
    diversity, correlation, accuracy = (sum(pair) / 2 for pair in zip(*values, strict=True))
    return diversity, correlation, accuracy


def _draw_half(labels: Tensor, is_own: Tensor, generator: torch.Generator) -> Tensor:
    """Return a mask of half of the images of each class on either side."""
    half = torch.zeros(len(labels), dtype=torch.bool)
    for group in (2 * labels + is_own).unique():
        members = (2 * labels + is_own == group).nonzero()[:, 0]
        half[members[torch.randperm(len(members), generator=generator)[: len(members) // 2]]] = True
    return half


def _train_and_embed(
    features: Tensor, labels: Tensor, is_own: Tensor, half: Tensor, generator: torch.Generator
) -> tuple[Tensor, float]:
    """Train on one half of the images to predict the side; return z of the other half, (n, d), and the accuracy there.

    The logit is the inner product of z and a vector that depends on the class, as in OoD-Bench: z contains what tells
    the sides apart, given the class.
    """
    num_classes = int(labels.max()) + 1
    width = features.shape[1]

    def draw(*shape: int, scale: float) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator)).requires_grad_()

    first, second = draw(width, _HIDDEN, scale=width**-0.5), draw(_HIDDEN, _DIMENSIONS, scale=_HIDDEN**-0.5)
    shift, common = draw(_HIDDEN, scale=0.0), draw(_DIMENSIONS, scale=1.0)
    by_class, bias = draw(num_classes, _DIMENSIONS, scale=0.1), draw(1, scale=0.0)

    def embed(x: Tensor) -> Tensor:
        return (x @ first + shift).relu() @ second

    def score(z: Tensor, y: Tensor) -> Tensor:
        return (z * (common + by_class[y])).sum(1) + bias

    sample_weights = _balance(labels[half], is_own[half]).sum(0)
    x, y, side = features[half], labels[half], is_own[half].float()
    optimizer = torch.optim.AdamW([first, second, shift, common, by_class, bias], lr=0.01, weight_decay=0.1)
    for _ in range(_STEPS):
        losses = F.binary_cross_entropy_with_logits(score(embed(x), y), side, reduction="none")
        optimizer.zero_grad()
        (losses * sample_weights).sum().backward()
        optimizer.step()
    with torch.no_grad():
        z = embed(features[~half])
        is_right = (score(z, labels[~half]) > 0) == is_own[~half]
    return z, float((_balance(labels[~half], is_own[~half]) @ is_right.float()).mean())


def estimate_shift(z: Tensor, labels: Tensor, is_own: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """Estimate diversity and correlation shift between two samples of features and labels.

    Classes are weighted so that both sides have the same class frequencies: a difference of these is no shift here.
    The correlation is corrected for chance and can be slightly negative.

    Args:
        z: features, (n, d).
        labels: classes, (n,); each occurs on both sides.
        is_own: which side each sample belongs to, (n,).
        generator: draws the points at which the densities are evaluated, and samples without any shift.
    """
    weights = _balance(labels, is_own)
    z = _whiten(z, weights)
    # Scott's rule, with one bandwidth for both sides: otherwise they would be smoothed differently.
    size = float((1 / weights.square().sum(1)).min())
    bandwidth = size ** (-1 / (z.shape[1] + 4))
    # Points from the mixture of both densities, by which the integrands are divided, keep these between 0 and 1.
    drawn = torch.cat([torch.multinomial(side, _POINTS // 2, True, generator=generator) for side in weights])
    noise = torch.randn(_POINTS, z.shape[1], generator=generator, dtype=z.dtype)
    kernel = _evaluate_kernel(z[drawn] + bandwidth * noise, z, bandwidth)
    p, q = (kernel @ weights.T).T
    mixture = (p + q) / 2
    threshold = _calibrate_threshold(kernel, mixture, labels, is_own, generator)
    is_shared = torch.minimum(p, q) > threshold * (p + q)
    diversity = float(((p - q).abs() / (2 * mixture) * ~is_shared).mean())
    overlap = ((p * q).sqrt() / mixture)[is_shared]
    kernel = kernel[is_shared]

    def compare_classes(classes: Tensor) -> float:
        of_p, of_q = (
            kernel @ (classes * side[:, None]) / density[is_shared, None]
            for side, density in zip(weights, (p, q), strict=True)
        )
        return float((overlap * (of_p - of_q).abs().sum(1) / 2).sum() / _POINTS)

    one_hot = F.one_hot(labels).float()
    correlation, largest = compare_classes(one_hot), float(overlap.sum() / _POINTS)
    chance = sum(map(compare_classes, _redraw_classes(z, one_hot, weights, bandwidth, generator))) / _REDRAWS
    corrected = largest * (correlation - chance) / max(largest - chance, 1e-12)
    return diversity, max(-largest, min(largest, corrected))


def _balance(labels: Tensor, is_own: Tensor) -> Tensor:
    """Return the weights of the samples on either side, (2, n): rows sum to one, with the same class frequencies."""
    counts = _count_classes(labels, is_own, int(labels.max()) + 1).double()
    frequencies = counts.min(0).values / counts.min(0).values.sum()
    sides = torch.stack([is_own, ~is_own])
    return (sides * (frequencies / counts.clamp(min=1))[:, labels]).float()


def _whiten(z: Tensor, weights: Tensor) -> Tensor:
    """Scale z so that its covariance within the sides is the identity."""
    z, weights = z.double(), weights.double()
    covariance = torch.zeros(z.shape[1], z.shape[1], dtype=z.dtype)
    for side in weights:
        centered = z - side @ z
        covariance += (centered * side[:, None]).T @ centered / len(weights)
    values, vectors = torch.linalg.eigh(covariance)
    scales = values.clamp(min=1e-6 * float(values.max()) + 1e-12).sqrt()
    whitened: Tensor = z @ vectors / scales
    return whitened.float()


def _evaluate_kernel(points: Tensor, centers: Tensor, bandwidth: float) -> Tensor:
    """Return the Gaussian kernel without its constant, which cancels everywhere, (points, centers)."""
    # Without matrix products, whose rounding errors are as large as small distances.
    distances = torch.cdist(points, centers, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.square_().div_(-2 * bandwidth**2).exp_()


def _calibrate_threshold(
    kernel: Tensor, mixture: Tensor, labels: Tensor, is_own: Tensor, generator: torch.Generator
) -> float:
    """Return the share of p + q below which p or q counts as zero.

    Exchanging samples of the same class between the sides removes any shift. The threshold is the largest at which the
    diversity of such sides is at most `_CHANCE_DIVERSITY`, up to `_VANISHING`.
    """
    shares, values = [], []
    for _ in range(_REDRAWS):
        mixed = torch.empty_like(is_own)
        for label in labels.unique():
            members = (labels == label).nonzero()[:, 0]
            mixed[members] = is_own[members[torch.randperm(len(members), generator=generator)]]
        p, q = (kernel @ _balance(labels, mixed).T).T
        shares.append(torch.minimum(p, q) / (p + q))
        values.append((p - q).abs() / (2 * mixture))
    share, order = torch.cat(shares).sort()
    diversity = torch.cat(values)[order].cumsum(0) / len(order)
    position = int((diversity <= _CHANCE_DIVERSITY).sum())
    return min(_VANISHING, float(share[position])) if position < len(share) else _VANISHING


def _redraw_classes(
    z: Tensor, one_hot: Tensor, weights: Tensor, bandwidth: float, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield classes as they could be if both sides followed the same rule: drawn from those of the neighbours."""
    neighbours = _evaluate_kernel(z, z, bandwidth).fill_diagonal_(0)
    # A sample without neighbours keeps its class.
    probabilities = neighbours @ (one_hot * weights.sum(0)[:, None]) + 1e-12 * one_hot
    for _ in range(_REDRAWS):
        drawn = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        yield F.one_hot(drawn, one_hot.shape[1]).float()
