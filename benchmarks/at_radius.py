"""Does AT fail at larger radii, or does it only fail to get started? Tests a lower lr and a radius warm-up.

With the demo's settings AT stays at chance for radii of .5 and above. Here the same runs use a lower learning rate, and
a radius that grows linearly from 0 over the first half of training.

    python benchmarks/at_radius.py
    python benchmarks/at_radius.py --radii 0.5 1 --lrs 0.001 --seeds 1
"""

import argparse
import statistics
from itertools import product

import torch
from torch import nn

from domainwise.algorithms import AT
from domainwise.data import Domain, silhouettes
from domainwise.data.batches import draw_batches, iterate_batches
from domainwise.data.dataset import split_indices
from domainwise.networks import small_cnn
from domainwise.reproduction.demo import STEPS
from domainwise.training.device import keep_freed_memory

DEVICE = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--radii", type=float, nargs="+", default=[0.5])
    parser.add_argument("--lrs", type=float, nargs="+", default=[1e-3, 3e-4])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    print("| radius | lr | warm-up | loss | holdout | shift 12 | seeds above .9 holdout |")
    print("|---|---|---|---:|---:|---:|---:|")
    for radius, lr, has_warmup in product(options.radii, options.lrs, (False, True)):
        outcomes = [train_once(radius, lr, has_warmup, seed, options.steps) for seed in range(options.seeds)]
        loss, holdout, shifted = (statistics.fmean(column) for column in zip(*outcomes, strict=True))
        learned = sum(held > 0.9 for _, held, _ in outcomes)
        how = "yes" if has_warmup else "no"
        print(
            f"| {radius:g} | {lr:g} | {how} | {loss:.3f} | {holdout:.3f} | {shifted:.3f} | {learned}/{options.seeds} |",
            flush=True,
        )


def train_once(radius: float, lr: float, has_warmup: bool, seed: int, steps: int) -> tuple[float, float, float]:
    """Return the training loss of the last tenth, and the accuracy on the holdout and at shift 12."""
    dataset = silhouettes(seed, shifts=(12,))
    train, test = dataset.domains[:2], dataset.domains[2]
    splits = [
        split_indices(len(domain), seed, index, dataset.holdout_fraction)
        for index, domain in enumerate(dataset.domains)
    ]
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    network = small_cnn(dataset.image_shape, 2).to(memory_format=torch.channels_last)
    algorithm = AT(network, num_domains=2, lr=lr, epsilon=radius, step_size=radius, start="zero")
    losses = []
    for step in range(steps):
        if has_warmup:
            now = radius * min(1.0, 2 * (step + 1) / steps)
            algorithm.perturbation.epsilon = algorithm.perturbation.step_size = now
        domains = [(domain, part.main) for domain, part in zip(train, splits, strict=False)]
        batches = draw_batches(domains, 64, generator, DEVICE)
        losses.append(algorithm.update(batches)["loss"])
    network.eval()
    holdout = statistics.fmean(
        accuracy(network, domain, part.holdout) for domain, part in zip(train, splits, strict=False)
    )
    return statistics.fmean(losses[-steps // 10 :]), holdout, accuracy(network, test, splits[2].main)


def accuracy(network: nn.Module, domain: Domain, indices: torch.Tensor) -> float:
    with torch.no_grad():
        right = sum(int((network(x).argmax(1) == y).sum()) for x, y in iterate_batches(domain, indices, DEVICE))
    return right / len(indices)


if __name__ == "__main__":
    main()
