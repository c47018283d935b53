"""The paper's remark that LDAT needs less memory than MAT at the same time a step, measured."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from domainwise.algorithms import ALGORITHMS
from domainwise.networks import backbone, small_cnn
from domainwise.recipes.held_memory import peak_bytes
from domainwise.recipes.recipe import Claim
from domainwise.recipes.verdict import Judged, Verdict

DOMAINS, CLASSES, COUNT, RANK = 3, 7, 20, 10
# Two times that differ by less than this are called the same.
_SAME_TIME = 1.1


@dataclass(frozen=True)
class Cost:
    """Of a method's step.

    Args:
        kept: bytes of the perturbations between steps.
        peak: bytes held at once during a step, in what it makes.
        seconds: of a step, the best of several.
    """

    method: str
    kept: int
    peak: int
    seconds: float

    @property
    def total(self) -> int:
        """Both together; weights and their optimizer are the same for all methods, and not in it."""
        return self.kept + self.peak


def measured_costs(network: str, image_size: int, batch_size: int, rounds: int = 3) -> list[Cost]:
    """A step of ERM, MAT and LDAT on three domains of random images, one after the other in every round."""
    shape = (3, image_size, image_size)
    generator = torch.Generator().manual_seed(0)
    batches = [
        (
            torch.rand(batch_size, *shape, generator=generator).contiguous(memory_format=torch.channels_last),
            torch.randint(CLASSES, (batch_size,), generator=generator),
        )
        for _ in range(DOMAINS)
    ]
    hparams: dict[str, dict[str, Any]] = {"erm": {}, "mat": {"count": COUNT}, "ldat": {"rank": RANK}}
    build = small_cnn if network == "small_cnn" else partial(backbone, network)
    made = {}
    for method, values in hparams.items():
        torch.manual_seed(0)
        own = build(shape, CLASSES).to(memory_format=torch.channels_last)
        made[method] = ALGORITHMS[method](own, num_domains=DOMAINS, input_shape=shape, **values)
    best = dict.fromkeys(made, float("inf"))
    for round_ in range(rounds + 1):
        for method, algorithm in made.items():
            began = time.perf_counter()
            algorithm.update(batches)
            if round_:  # the first only warms up
                best[method] = min(best[method], time.perf_counter() - began)
    return [
        Cost(method, _kept(algorithm), peak_bytes(lambda each=algorithm: each.update(batches)), best[method])  # type: ignore[misc]
        for method, algorithm in made.items()
    ]


def _kept(algorithm: Any) -> int:
    perturbation = getattr(algorithm, "perturbation", None)
    return 0 if perturbation is None else sum(each.nbytes for each in perturbation.parameters())


def judged_costs(costs: Sequence[Cost]) -> list[Judged]:
    of = {cost.method: cost for cost in costs}
    mat, ldat = of["mat"], of["ldat"]
    less: Verdict = "holds" if ldat.total < mat.total else "does not hold"
    ratio = max(mat.seconds, ldat.seconds) / min(mat.seconds, ldat.seconds)
    same: Verdict = "holds" if ratio <= _SAME_TIME else "does not hold"
    return [
        Judged(
            Claim("LDAT needs less memory than MAT in training", "ldat", "mat"),
            less,
            f"{_megabytes(ldat.total)} against {_megabytes(mat.total)} at most at once "
            f"({ldat.total / mat.total - 1:+.1%}); "
            f"of that perturbations {_megabytes(ldat.kept)} against {_megabytes(mat.kept)}",
        ),
        Judged(
            Claim("LDAT and MAT take the same time", "ldat", "mat"),
            same,
            f"{1e3 * ldat.seconds:.0f} ms against {1e3 * mat.seconds:.0f} ms a step, the best of several",
        ),
    ]


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
