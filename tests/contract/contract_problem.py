"""Networks, batches and methods for the contract tests."""

from collections.abc import Callable

from torch import nn
from torch.nn import functional as F

from domainwise import testing
from domainwise.algorithms import ALGORITHMS, Algorithm
from domainwise.testing import Batches, plain_network, random_batches

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


def build(name: str, network: nn.Module, **settings: object) -> Algorithm:
    return testing.build(ALGORITHMS[name], network, **{**FROM_THE_START.get(name, {}), **settings})


def fresh(name: str, make: Callable[[], nn.Module] = plain_network, **settings: object) -> Algorithm:
    return testing.build_fresh(ALGORITHMS[name], make, **{**FROM_THE_START.get(name, {}), **settings})


def separable_batches(seed: int, *counts: int) -> Batches:
    """The class is the index of the bright channel."""
    batches = []
    for x, y in random_batches(*counts, seed=seed):
        bright = F.one_hot(y, 3)[:, :, None, None]
        batches.append((0.4 * x + 0.5 * bright, y))
    return batches
