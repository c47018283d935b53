"""A GPU that needs no GPU: tensors that compute on the CPU, and behave like those of a CUDA device otherwise.

`with FakeDevice() as gpu:` makes `cuda:0` exist. An operation on tensors of both devices raises a `DeviceMixError`, and
so does a draw on the GPU from a generator of the CPU. `gpu.waits` counts the operations for which the host would wait
for the device: reads, outputs whose size depends on values, as with boolean masks, and blocking copies. Numbers are
those of the CPU, so that the same code can be compared on both devices to the bit.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("cuda", 0)
# The host waits for their result, its size, or whether they succeeded.
_READS = {
    *("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"),
    *("equal", "_linalg_eigh", "_linalg_svd", "_linalg_check_errors"),
}
_COPIES = {"_to_copy", "copy_"}


class DeviceMixError(RuntimeError):
    """An operation got tensors of two devices."""


class FakeTensor(Tensor):
    """A tensor of the fake device, and the tensor on the CPU that has its values."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> "FakeTensor":
        # Autograd asks the device for streams. `meta` has none; a CUDA device without a driver raises an error.
        tensor: FakeTensor = Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=torch.device("meta"),
            requires_grad=host.requires_grad,
        )
        return tensor

    def __init__(self, host: Tensor) -> None:
        self.host = host.detach()

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.host.__reduce_ex__(protocol)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"FakeTensor({self.host})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise RuntimeError(f"{func} of a fake tensor outside of `with FakeDevice()`")


class FakeDevice(TorchDispatchMode):
    """Makes `cuda:0` exist inside the block.

    Attributes:
        waits: how often the host would have waited for the device, by operation and line of code.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: Counter[str] = Counter()
        self._patches = ExitStack()

    def __enter__(self) -> "FakeDevice":
        with ExitStack() as stack:
            stack.enter_context(_patch_torch())
            super().__enter__()  # type: ignore[no-untyped-call]
            self._patches = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patches.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        fakes = {id(each.host): each for each in tensors if isinstance(each, FakeTensor)}
        hosts = {id(each): each for each in tensors if not isinstance(each, FakeTensor)}
        # A fake tensor is on `meta` for C++, and on CUDA for Python.
        target = kwargs.get("device")
        is_fake = bool(fakes) if target is None else torch.device(target).type in ("cuda", "meta")
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        self._check_devices(name, fakes, hosts, kwargs.get("generator") if is_fake else None)
        if self._waits(name, args, kwargs, bool(fakes), is_fake):
            self.waits[f"{name} in {_find_line()}"] += 1
        args, kwargs = tree_map(_to_host, (args, kwargs))
        known = fakes | hosts

        def wrap(each: Any) -> Any:
            if not isinstance(each, Tensor):
                return each
            return known[id(each)] if id(each) in known else FakeTensor(each) if is_fake else each

        return tree_map(wrap, func(*args, **kwargs))

    def _check_devices(self, name: str, fakes: Any, hosts: dict[int, Tensor], generator: Any) -> None:
        # A number on the CPU is an argument of a kernel, unless it is to become part of a tensor.
        strays = [each for each in hosts.values() if each.ndim or name in ("cat", "stack")]
        if fakes and strays and name not in _COPIES:
            shapes = ", ".join(str(tuple(each.shape)) for each in strays)
            raise DeviceMixError(f"{name} in {_find_line()} has tensors on {DEVICE} and on the CPU: of shape {shapes}")
        if generator is not None and generator.device.type == "cpu":
            raise DeviceMixError(f"{name} in {_find_line()} draws on {DEVICE} from a generator of the CPU")

    def _waits(self, name: str, args: Any, kwargs: dict[str, Any], has_fakes: bool, is_fake: bool) -> bool:
        if name == "_to_copy":
            is_source_fake = isinstance(args[0], FakeTensor)
            return is_source_fake != is_fake and not (is_fake and kwargs.get("non_blocking", False))
        if name == "copy_":
            is_target_fake, is_source_fake = (isinstance(each, FakeTensor) for each in args[:2])
            is_free = is_target_fake and (kwargs.get("non_blocking", False) or args[2:] == (True,))
            return is_source_fake != is_target_fake and not is_free
        if name in ("index", "index_put", "index_put_"):
            masks = [each for each in args[1] if each is not None and each.dtype in (torch.bool, torch.uint8)]
            is_filled = name != "index" and args[2].numel() == 1  # which is a masked fill
            return bool(masks) and not is_filled and has_fakes
        if name == "repeat_interleave":
            return has_fakes and kwargs.get("output_size") is None
        return has_fakes and name in _READS


def _to_host(each: Any) -> Any:
    return each.host if isinstance(each, FakeTensor) else each


def _find_line() -> str:
    """Return the file and line outside of torch that an operation comes from."""
    frames = [(Path(frame.f_code.co_filename), line) for frame, line in traceback.walk_stack(None)]
    callers = [(path, line) for path, line in frames if "torch" not in path.parts and path != Path(__file__)]
    path, line = (callers or frames)[0]
    return f"{path.name}:{line}"


@contextmanager
def _patch_torch() -> Iterator[None]:
    """Let torch accept `cuda:0` without a driver, and send every operation through the dispatcher."""
    state = torch.get_rng_state
    replacements: dict[str, Callable[..., Any]] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_rng_state": lambda device=None: state(),
        "set_rng_state": lambda value, device=None: None,
    }
    future = torch.__future__
    was_lifting, was_swapping = torch._C._only_lift_cpu_tensors(), future.get_swap_module_params_on_conversion()
    with ExitStack() as stack:
        if not torch.cuda.is_available():
            for name, function in replacements.items():
                stack.enter_context(patch.object(torch.cuda, name, function))
        for name in ("_cuda_graph_capture_health_check", "_accelerator_graph_capture_health_check"):
            if hasattr(torch.optim.Optimizer, name):  # by version
                stack.enter_context(patch.object(torch.optim.Optimizer, name, lambda optimizer: None))
        stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=) then is a copy to the device
        future.set_swap_module_params_on_conversion(True)  # so that parameters become fake tensors
        try:
            yield
        finally:
            torch._C._set_only_lift_cpu_tensors(was_lifting)
            future.set_swap_module_params_on_conversion(was_swapping)
