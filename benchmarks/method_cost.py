"""Cost of one update of every method relative to ERM, measured in one process.

Methods take turns, and the fastest round counts, so other load on the machine affects all methods equally. If a method
alternates between kinds of updates, the mean over one of each kind counts.

    python benchmarks/method_cost.py
    python benchmarks/method_cost.py --rounds 10 --image-size 64 --batch-size 16
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from torchvision.models import resnet18

from domainwise.algorithms import ALGORITHMS, Algorithm
from domainwise.algorithms.sharpness import Sharpness
from domainwise.averaging import SMA
from domainwise.networks import Network
from step_cost import CLASSES, DOMAINS, Batches, Step, make_batches, measure_seconds, read_options

# All updates of the discriminator and one of the network.
UPDATES = {"dann": 2, "cdann": 2, "adrmx": 3}
COPYING = "gut, while making copies"
# ERM++'s updates of the whole network.
HPARAMS: dict[str, dict[str, Any]] = {"ermplusplus": {"head_steps": -1}}


def main() -> None:
    options = read_options(__doc__, rounds=5)
    batches = make_batches(options.batch_size, options.image_size)
    steps: dict[str, Step] = {
        name: partial(update, build(name, options.image_size, **HPARAMS.get(name, {})), UPDATES.get(name, 1))
        for name in ALGORITHMS
    }
    averaged = build("erm", options.image_size)
    steps["erm, sma"] = partial(update_average, averaged, SMA(averaged.network, start=1))
    steps["mat, sam"] = partial(update, build("mat", options.image_size, sharpness=Sharpness()), 1)
    # Here every update belongs to a round.
    steps[COPYING] = partial(update, build("gut", options.image_size, round_every=1, rounds=10**9, pool=10**9), 1)
    seconds = measure_seconds(steps, batches, options.rounds)
    print(
        f"\nresnet18, {DOMAINS} x {options.batch_size} images of {options.image_size} px, {options.threads} threads, "
        f"best of {options.rounds}, torch {torch.__version__}\n"
    )
    print("| method | ms per update | x ERM |\n|---|---:|---:|")
    means = {name: seconds[name] / UPDATES.get(name, 1) for name in steps}
    for name, time in means.items():
        print(f"| {name} | {time * 1e3:.0f} | {time / means['erm']:.2f} |")


def build(name: str, image_size: int, **hparams: Any) -> Algorithm:
    torch.manual_seed(0)
    body = resnet18()
    num_features, body.fc = body.fc.in_features, nn.Identity()
    shape = (3, image_size, image_size)
    network = Network(body, nn.Linear(num_features, CLASSES), input_shape=shape, num_features=num_features)
    network.to(memory_format=torch.channels_last)
    return ALGORITHMS[name](network, num_domains=DOMAINS, domain_sizes=[1000] * DOMAINS, **hparams)


def update(algorithm: Algorithm, times: int, batches: Batches) -> None:
    for _ in range(times):
        algorithm.update(batches)


def update_average(algorithm: Algorithm, average: SMA, batches: Batches) -> None:
    algorithm.update(batches)
    average.update_(algorithm.network)


if __name__ == "__main__":
    main()
