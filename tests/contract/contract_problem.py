"""Networks, batches and methods for the contract tests."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import ALGORITHMS, Algorithm
from domainwise.networks import Network

SHAPE = (3, 12, 12)
FAMILY = ["at", "uat", "mat", "ldat"]
# Settings with which a perturbation is kept per domain, as simultaneous training needs it.
PER_DOMAIN = [
    ("uat", {}),
    ("mat", {"weights": "domain"}),
    ("ldat", {"solver": "projected"}),
    ("ldat", {"solver": "factors"}),
]
BY_GRADIENT = [("mat", {"weights": weights}) for weights in ("assigned", "soft", "subspace")]
NEEDS_TWO = [
    *("vrex", "groupdro", "mixup", "mldg", "mmd", "coral", "dann", "andmask", "fishr", "eqrm", "rdm"),
    *("cad", "condcad", "causirlcoral", "causirlmmd", "cdann", "transfer", "adrmx", "fish", "sandmask"),
    *("iga", "trm"),
]
# ERM++ trains the classifier alone at first, which its own tests cover.
FROM_THE_START = {"ermplusplus": {"head_steps": -1}}
Batches = list[tuple[Tensor, Tensor]]


def plain_network() -> Network:
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 16), nn.ReLU())
    return Network(featurizer, nn.Linear(16, 3), input_shape=SHAPE, num_features=16)


def random_network() -> Network:
    """A network with dropout, which draws from torch's global generator, and batch-norm statistics."""
    featurizer = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5)
    )
    return Network(featurizer, nn.Linear(4 * 36, 3), input_shape=SHAPE, num_features=4 * 36)


def build(name: str, network: nn.Module, *, num_domains: int = 2, seed: int = 0, **hparams: object) -> Algorithm:
    generator = torch.Generator().manual_seed(seed)
    sizes = [40 + 10 * index for index in range(num_domains)]
    settings = {"num_domains": num_domains, "generator": generator, "domain_sizes": sizes, "lr": 1e-2}
    settings |= {**FROM_THE_START.get(name, {}), **hparams}
    return ALGORITHMS[name](network, **settings)


def fresh(name: str, make: Callable[[], nn.Module] = plain_network, *, seed: int = 0, **hparams: object) -> Algorithm:
    torch.manual_seed(seed)
    return build(name, make(), seed=seed, **hparams)


def random_batches(*counts: int, seed: int = 1) -> Batches:
    random = torch.Generator().manual_seed(seed)
    return [(torch.rand(n, *SHAPE, generator=random), torch.randint(3, (n,), generator=random)) for n in counts]


def separable_batches(seed: int, *counts: int) -> Batches:
    """The class is the index of the bright channel."""
    batches = []
    for x, y in random_batches(*counts, seed=seed):
        bright = F.one_hot(y, 3)[:, :, None, None]
        batches.append((0.4 * x + 0.5 * bright, y))
    return batches


def assert_same_state(first: object, second: object) -> None:
    """Compare nested dictionaries and lists of tensors exactly."""
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same_state(first[key], second[key])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for one, two in zip(first, second, strict=True):
            assert_same_state(one, two)
    elif isinstance(first, Tensor):
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    else:
        assert first == second
