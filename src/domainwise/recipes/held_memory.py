"""How much memory a step holds at once in the tensors that it makes, on any device."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


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
