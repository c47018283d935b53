"""The paper's remark that LDAT needs less memory than MAT at the same time a step, measured."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from domainwise.algorithms import ALGORITHMS
from domainwise.networks import build_backbone, small_cnn
from domainwise.reproduction.recipe import Claim
from domainwise.reproduction.verdict import Judged, Verdict

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
    build = small_cnn if network == "small_cnn" else partial(build_backbone, network)
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


def peak_bytes(step: Callable[[], object]) -> int:
    """The most that is held at once while `step` runs, beyond what was there before."""
    watch = HeldMemory()
    with watch:
        step()
    return watch.peak


class HeldMemory(TorchDispatchMode):
    """Follows the memory of all tensors that come out of operations inside, while anything still refers to it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.before: set[int] = set()
        self.held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak: int = 0
        self.largest: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            if tensor.untyped_storage()._cdata not in self.held:
                self.before.add(tensor.untyped_storage()._cdata)
        result = func(*args, **(kwargs or {}))
        self.held = {key: (alive, size) for key, (alive, size) in self.held.items() if not alive.expired()}
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            self.largest = max(self.largest, tensor.nbytes)
            if storage._cdata not in self.before:
                self.held[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, sum(size for _, size in self.held.values()))
        return result


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]
