"""Memory and time of a training step: the paper's remark that LDAT needs less memory than MAT in the same time."""

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
from domainwise.reproduction.comparison import ClaimVerdict

DOMAINS, CLASSES, COUNT, RANK = 3, 7, 20, 10
# Times count as equal up to this ratio.
_MAX_TIME_RATIO = 1.1


@dataclass(frozen=True)
class StepCost:
    """Memory and time of a training step.

    Args:
        perturbations: bytes of the perturbations, which persist between steps.
        peak: largest number of bytes held at once by tensors that a step creates.
        seconds: time of a step, the best of several.
    """

    method: str
    perturbations: int
    peak: int
    seconds: float

    @property
    def total(self) -> int:
        """Both together, without weights and optimizer state, which are the same for all methods."""
        return self.perturbations + self.peak


def measure_step_costs(network: str, image_size: int, batch_size: int, rounds: int = 3) -> list[StepCost]:
    """Measure a step of ERM, MAT and LDAT on three domains of random images; the methods take turns every round."""
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
    build_network = small_cnn if network == "small_cnn" else partial(build_backbone, network)
    algorithms = {}
    for method, values in hparams.items():
        torch.manual_seed(0)
        model = build_network(shape, CLASSES).to(memory_format=torch.channels_last)
        algorithms[method] = ALGORITHMS[method](model, num_domains=DOMAINS, input_shape=shape, **values)
    seconds = dict.fromkeys(algorithms, float("inf"))
    for round_ in range(rounds + 1):
        for method, algorithm in algorithms.items():
            start = time.perf_counter()
            algorithm.update(batches)
            if round_:  # the first round warms up
                seconds[method] = min(seconds[method], time.perf_counter() - start)
    return [
        StepCost(
            method,
            _count_perturbation_bytes(algorithm),
            measure_peak_bytes(partial(algorithm.update, batches)),
            seconds[method],
        )
        for method, algorithm in algorithms.items()
    ]


def _count_perturbation_bytes(algorithm: Any) -> int:
    perturbation = getattr(algorithm, "perturbation", None)
    return 0 if perturbation is None else sum(each.nbytes for each in perturbation.parameters())


def judge_step_costs(costs: Sequence[StepCost]) -> list[ClaimVerdict]:
    """Return the verdicts on the paper's two claims about the cost of LDAT and MAT."""
    by_method = {cost.method: cost for cost in costs}
    mat, ldat = by_method["mat"], by_method["ldat"]
    ratio = max(mat.seconds, ldat.seconds) / min(mat.seconds, ldat.seconds)
    return [
        ClaimVerdict(
            "LDAT needs less memory than MAT in training",
            "holds" if ldat.total < mat.total else "does not hold",
            f"peak {_format_megabytes(ldat.total)} against {_format_megabytes(mat.total)} "
            f"({ldat.total / mat.total - 1:+.1%}), of which perturbations "
            f"{_format_megabytes(ldat.perturbations)} against {_format_megabytes(mat.perturbations)}",
        ),
        ClaimVerdict(
            "LDAT and MAT take the same time",
            "holds" if ratio <= _MAX_TIME_RATIO else "does not hold",
            f"{1e3 * ldat.seconds:.0f} ms against {1e3 * mat.seconds:.0f} ms per step, the best of several",
        ),
    ]


def _format_megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def measure_peak_bytes(step: Callable[[], object]) -> int:
    """Return the largest number of bytes held at once while `step` runs, in addition to what existed before."""
    tracker = MemoryTracker()
    with tracker:
        step()
    return tracker.peak


class MemoryTracker(TorchDispatchMode):
    """Tracks the memory of all tensors that operations return, for as long as anything refers to it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.before: set[int] = set()
        self.held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak: int = 0
        self.largest: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _list_tensors((args, kwargs)):
            if tensor.untyped_storage()._cdata not in self.held:
                self.before.add(tensor.untyped_storage()._cdata)
        result = func(*args, **(kwargs or {}))
        self.held = {key: (reference, size) for key, (reference, size) in self.held.items() if not reference.expired()}
        for tensor in _list_tensors(result):
            storage = tensor.untyped_storage()
            self.largest = max(self.largest, tensor.nbytes)
            if storage._cdata not in self.before:
                self.held[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, sum(size for _, size in self.held.values()))
        return result


def _list_tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]
