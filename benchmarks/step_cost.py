"""Cost of one training step: time and peak memory of each method relative to ERM, measured in one process.

Methods take turns, one step per round, and the fastest round counts, so other load on the machine affects all methods
equally. If a forward pass costs 1, a full backward pass 2 and a backward pass to the input alone 1, the lower bound is
5/3 of ERM for the two-pass schedule and 1 for the simultaneous one.

    python benchmarks/step_cost.py
    python benchmarks/step_cost.py --rounds 20 --image-size 64 --batch-size 16
    python benchmarks/step_cost.py --rounds 2 --image-size 224 --batch-size 16
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import resnet18

from domainwise import MultiplePerturbation
from domainwise.algorithms import ALGORITHMS
from domainwise.data.augmentation import augment_batch
from domainwise.data.strong_augmentation import augment_strongly
from domainwise.reproduction.memory import MemoryTracker, measure_peak_bytes
from domainwise.training.device import keep_freed_memory

DOMAINS, CLASSES, COUNT, RANK = 3, 7, 20, 10
Batches = list[tuple[Tensor, Tensor]]
Step = Callable[[Batches], object]
FILTER = {"prior": "filter", "clean_share": 0.0}
WORST = {**FILTER, "adversary": "worst_of"}
SHARED = {"attack_share": 0.25, "clean_share": 0.0}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "ERM": ("erm", {}),
    "UAT, two passes": ("uat", {}),
    "UAT, a quarter attacked": ("uat", {"attack_share": 0.25}),
    "UAT, simultaneous": ("uat", {"schedule": "simultaneous"}),
    "MAT assigned, two passes": ("mat", {"count": COUNT}),
    "MAT subspace, two passes": ("mat", {"count": COUNT, "weights": "subspace"}),
    "MAT of the paper, two passes": ("mat", {"count": COUNT, "weights": "domain"}),
    "MAT of the paper, simultaneous": ("mat", {"count": COUNT, "weights": "domain", "schedule": "simultaneous"}),
    "LDAT, two passes": ("ldat", {"rank": RANK}),
    "LDAT, a quarter attacked": ("ldat", {"rank": RANK, "attack_share": 0.25}),
    "LDAT, simultaneous": ("ldat", {"rank": RANK, "schedule": "simultaneous"}),
    "LDAT of the paper, two passes": ("ldat", {"rank": RANK, "solver": "factors"}),
    "AT, one step": ("at", {}),
    "AT of rank 10, one step": ("at", {"rank": RANK}),
    "filter per image, gradient": ("at", FILTER),
    "filter per image, worst of 3": ("at", WORST),
    "filter per image, worst of 3, half clean": ("at", {**WORST, "clean_share": 0.5}),
    "filter per image, random": ("at", {**FILTER, "adversary": "random"}),
    "tone per domain, a quarter attacked": ("uat", {**SHARED, "prior": "tone"}),
    "spectrum per domain, a quarter attacked": ("uat", {**SHARED, "prior": "spectrum"}),
    "features per image, gradient": ("at", {"prior": "features", "clean_share": 0.0}),
    "RandConv": ("randconv", {}),
    "MixStyle": ("mixstyle", {}),
    "DSU": ("dsu", {}),
}
AUGMENTATIONS = {"ERM, augmented": augment_batch, "ERM, strong augmentation": augment_strongly}
TEXTBOOK = "MAT, textbook loop"


def main() -> None:
    options = read_options(__doc__, rounds=6)
    batches = make_batches(options.batch_size, options.image_size)
    steps, states = make_steps(options.image_size)
    seconds = measure_seconds(steps, batches, options.rounds)
    peaks = {name: states[name] + measure_peak_bytes(partial(step, batches)) for name, step in steps.items()}
    image_bytes = sum(x.nbytes for x, _ in batches)
    print(
        f"\nresnet18, {DOMAINS} x {options.batch_size} images of {options.image_size} px, k {COUNT}, rank {RANK}, "
        f"{options.threads} threads, best of {options.rounds}, torch {torch.__version__}\n"
    )
    print("| method | ms per step | x ERM | peak MB | above ERM, MB |")
    print("|---|---:|---:|---:|---:|")
    for name in steps:
        ratio, extra = seconds[name] / seconds["ERM"], peaks[name] - peaks["ERM"]
        print(f"| {name} | {seconds[name] * 1e3:.0f} | {ratio:.2f} | {peaks[name] / 1e6:.0f} | {extra / 1e6:.1f} |")
    perturbations = DOMAINS * COUNT * batches[0][0][0].nbytes
    print(
        f"\nMAT's perturbations are {perturbations / 1e6:.1f} MB, two batches of images {2 * image_bytes / 1e6:.1f} MB."
    )
    largest, naive = measure_largest_tensor(image_size=224, batch_size=64)
    print(f"MAT's attack at 224 px, batch {DOMAINS} x 64: the largest tensor is {largest / 1e6:.0f} MB;")
    print(f"a (b, k, C, H, W) tensor for one domain would be {naive / 1e6:.0f} MB.")


def read_options(description: str | None, rounds: int) -> argparse.Namespace:
    """Parse the command line and set the number of threads."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=32, help="batch size per domain")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    return options


def make_batches(batch_size: int, image_size: int) -> Batches:
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.rand(batch_size, 3, image_size, image_size, generator=generator).contiguous(
                memory_format=torch.channels_last
            ),
            torch.randint(CLASSES, (batch_size,), generator=generator),
        )
        for _ in range(DOMAINS)
    ]


def make_steps(image_size: int) -> tuple[dict[str, Step], dict[str, int]]:
    """Return the step of each method, and its state in bytes: parameters, optimizer and perturbations."""
    steps: dict[str, Step] = {}
    states: dict[str, int] = {}
    for name, (key, hparams) in METHODS.items():
        torch.manual_seed(0)
        network = resnet18(num_classes=CLASSES).to(memory_format=torch.channels_last)
        shape = (3, image_size, image_size)
        algorithm = ALGORITHMS[key](network, num_domains=DOMAINS, input_shape=shape, **hparams)
        steps[name] = algorithm.update
        # Adam keeps two values per weight.
        states[name] = _count_bytes(algorithm) + 2 * sum(p.nbytes for p in network.parameters())
    for name, augment in AUGMENTATIONS.items():
        steps[name] = partial(_update_augmented, steps["ERM"], augment)
        states[name] = states["ERM"]
    textbook = TextbookMAT(image_size)
    steps[TEXTBOOK] = textbook.update
    states[TEXTBOOK] = states["MAT of the paper, two passes"]
    return steps, states


def _update_augmented(update: Step, augment: Callable[[Tensor], Tensor], batches: Batches) -> object:
    # Images of datasets are bytes.
    return update([(augment((255 * x).byte()), y) for x, y in batches])


def measure_seconds(steps: dict[str, Step], batches: Batches, rounds: int) -> dict[str, float]:
    best = dict.fromkeys(steps, float("inf"))
    for round_number in range(rounds + 1):
        for name, step in steps.items():
            started = time.perf_counter()
            step(batches)
            if round_number:  # the first round only warms up
                best[name] = min(best[name], time.perf_counter() - started)
        print(f"round {round_number}/{rounds}", end="\r", flush=True)
    return best


def measure_largest_tensor(image_size: int, batch_size: int) -> tuple[int, int]:
    """Return the size of the largest tensor created in MAT's attack, and of the one that it avoids, in bytes."""
    perturbation = MultiplePerturbation(
        (3, image_size, image_size), num_domains=DOMAINS, count=COUNT, epsilon=0.1, step_size=0.1
    )
    network = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(3 * (image_size // 16) ** 2, CLASSES))
    x, y = (torch.cat(part) for part in zip(*make_batches(batch_size, image_size), strict=True))
    domain = torch.arange(DOMAINS).repeat_interleave(batch_size)
    with MemoryTracker() as watch:
        perturbation.attack(x, domain, lambda x: F.cross_entropy(network(x), y, reduction="none"))
    return watch.largest, batch_size * COUNT * x[0].nbytes


class TextbookMAT:
    """Naive Algorithm 1: a loop over domains, and a full backward pass for the inner step."""

    def __init__(self, image_size: int, epsilon: float = 0.1, step_size: float = 0.1, eta: float = 0.001) -> None:
        torch.manual_seed(0)
        self.network = resnet18(num_classes=CLASSES)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=5e-5)
        self.epsilon, self.step_size, self.eta = epsilon, step_size, eta
        self.deltas = [self.project(torch.randn(COUNT, 3, image_size, image_size)) for _ in range(DOMAINS)]
        self.logits = [torch.randn(COUNT) for _ in range(DOMAINS)]

    def project(self, delta: Tensor) -> Tensor:
        norms = delta.flatten(1).norm(dim=1).clamp(min=self.epsilon)
        return delta * (self.epsilon / norms).reshape(-1, 1, 1, 1)

    def loss(self, x: Tensor, y: Tensor, delta: Tensor, logits: Tensor) -> Tensor:
        mix = (logits.softmax(0).reshape(-1, 1, 1, 1) * delta).sum(0)
        return F.cross_entropy(self.network((x + mix).clamp(0, 1)), y)

    def update(self, batches: Batches) -> None:
        for index, (x, y) in enumerate(batches):
            delta = self.deltas[index].requires_grad_()
            logits = self.logits[index].requires_grad_()
            self.loss(x.contiguous(), y, delta, logits).backward()
            assert delta.grad is not None
            assert logits.grad is not None
            with torch.no_grad():
                step = self.step_size * delta.grad / delta.grad.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
                self.deltas[index] = self.project(delta + step)
                self.logits[index] = logits + self.eta * logits.grad
        self.optimizer.zero_grad()
        for index, (x, y) in enumerate(batches):
            (self.loss(x.contiguous(), y, self.deltas[index], self.logits[index]) / len(batches)).backward()
        self.optimizer.step()


def _count_bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


if __name__ == "__main__":
    main()
