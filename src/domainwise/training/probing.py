"""Linear probing: fit the classifier on frozen features before training (LP-FT, Kumar et al. 2022)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import eval_mode
from domainwise.data import Dataset
from domainwise.data.batches import iterate_batches
from domainwise.data.dataset import Split
from domainwise.errors import DomainwiseError

BATCH_SIZE = 32


def fit_classifier_(
    network: nn.Module,
    dataset: Dataset,
    splits: dict[str, Split],
    train_domains: tuple[str, ...],
    *,
    steps: int,
    lr: float,
    seed: int,
    device: torch.device,
) -> None:
    """Fit the network's classifier by `steps` of Adam on batches of 32 images per training domain.

    Features are computed once, without augmentation or dropout, so a probe costs about one epoch of forward passes.
    Nothing depends on the method or its hyperparameters: runs that share their start also share the fitted classifier.
    """
    classifier = getattr(network, "classifier", None)
    if not isinstance(classifier, nn.Linear) or classifier.in_features != getattr(network, "num_features", None):
        raise DomainwiseError("probe_steps needs a network with a linear classifier on top of its features")
    domains = [_compute_features(network, dataset, name, splits[name].main, device) for name in train_domains]
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(classifier.parameters(), lr=lr)
    for _ in range(steps):
        chosen = [torch.randint(len(y), (BATCH_SIZE,), generator=generator) for _, y in domains]
        features = torch.cat([each[indices] for (each, _), indices in zip(domains, chosen, strict=True)])
        labels = torch.cat([each[indices] for (_, each), indices in zip(domains, chosen, strict=True)])
        optimizer.zero_grad()
        F.cross_entropy(classifier(features.to(device)), labels.to(device)).backward()
        optimizer.step()
    optimizer.zero_grad()


@torch.no_grad()
def _compute_features(
    network: nn.Module, dataset: Dataset, name: str, indices: Tensor, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return what the classifier sees of a domain's images, and their labels."""
    features: list[Tensor] = []
    labels: list[Tensor] = []
    # Some methods put a layer between the featurizer and the classifier.
    hook = network.classifier.register_forward_pre_hook(  # type: ignore[union-attr]
        lambda _, inputs: features.append(inputs[0].cpu())
    )
    with eval_mode(network):
        for x, y in iterate_batches(dataset.domains[dataset.index(name)], indices, device):
            network(x)
            labels.append(y.cpu())
    hook.remove()
    return torch.cat(features), torch.cat(labels)
