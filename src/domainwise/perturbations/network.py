"""The network that an attack finds through a loss function, and leaves as it was: buffers, and the state of DDP."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

# Larger containers in the variables of a loss function are data, not models.
_LARGEST_CONTAINER = 100


@contextmanager
def leave_modules_unchanged(loss_fn: Callable[..., Any], kept: type[nn.Module]) -> Iterator[None]:
    """Restore the buffers of all modules that `loss_fn` calls inside, and keep DDP from expecting weight gradients.

    `attack` sees the network only through a loss function, so it does not know the modules. A hook therefore saves
    each module when it is first called, in this thread only, before its buffers can change. Compiled code would be
    compiled anew around such a hook, so compiled modules are looked up in the loss function instead.

    Args:
        kept: Modules of this class keep their changes: perturbations in the network, which the attack moves.
    """
    modules, is_compiled = find_modules(loss_fn)
    recorder = _Recorder(kept)
    try:
        if is_compiled:
            for module in modules:
                recorder.save(module)
            yield
        else:
            with _call_before_modules(recorder.save):
                yield
    finally:
        recorder.restore()


@dataclass
class _Save:
    """An object that attacks change, and how to restore it after the last of them."""

    owner: object
    restore: Callable[[], object]
    attacks: int = 0


class _Recorder:
    """What one attack has saved. Attacks of several threads on one network share what they save.

    The first one saves what was there before any of them; the last one restores it.
    """

    _lock = threading.Lock()
    _saves: dict[int, _Save] = {}

    def __init__(self, kept: type[nn.Module]) -> None:
        self.kept = kept
        self.seen: set[nn.Module] = set()
        self.saved: list[int] = []

    def save(self, module: nn.Module) -> None:
        if module in self.seen:
            return
        self.seen.add(module)
        if isinstance(module, self.kept):
            return
        buffers = [buffer for buffer in module._buffers.values() if buffer is not None]
        if any(map(is_lazy, buffers)):
            raise ValueError(
                f"loss_fn must not call {type(module).__name__} before its buffers have a shape; call the model once "
                "before the first attack"
            )
        with self._lock:
            self._hold(module, save_module)
            for buffer in buffers:
                self._hold(buffer, save_buffer)
        for child in module.children():
            self.save(child)

    def restore(self) -> None:
        with self._lock:
            ended: list[_Save] = []
            # Of views of the same memory, the first copy is the original.
            for key in reversed(self.saved):
                save = self._saves[key]
                save.attacks -= 1
                if save.attacks == 0:
                    ended.append(self._saves.pop(key))
            for save in ended:
                save.restore()

    def _hold(self, owner: Any, save: Callable[[Any], Callable[[], object]]) -> None:
        key = id(owner)
        if key not in self._saves:
            self._saves[key] = _Save(owner, save(owner))
        self._saves[key].attacks += 1
        self.saved.append(key)


def save_buffer(buffer: Tensor) -> Callable[[], object]:
    value = buffer.clone()
    # Through `data`, because a graph built before the attack still checks the versions of its buffers.
    return lambda: buffer.data.copy_(value)


def save_module(module: nn.Module) -> Callable[[], object]:
    """Save which buffers a module has. A wrapper of DDP only calls its network until it is restored."""
    buffers = dict(module._buffers)
    wrapper = module if isinstance(module, DistributedDataParallel) else None
    if wrapper is not None:
        was_bypassed = wrapper._use_python_reducer
        # Then there are no weight gradients to reduce, and no buffers to share.
        wrapper._use_python_reducer = True

    def restore() -> None:
        module._non_persistent_buffers_set -= module._buffers.keys() - buffers.keys()
        module._buffers.clear()
        module._buffers.update(buffers)
        if wrapper is not None:
            wrapper._use_python_reducer = was_bypassed

    return restore


class _Calls(threading.local):
    """What this thread calls with each module before the module runs."""

    functions: tuple[Callable[[nn.Module], None], ...] = ()


class _Hook:
    """One hook of all modules, as long as any thread needs it.

    It always has the same place among the hooks, and the same function: compiled code depends on both, and would
    otherwise be compiled again for every attack.
    """

    name = "domainwise.attack"
    lock = threading.Lock()
    users = 0
    places: dict[Any, Callable[..., Any]] = {}
    calls = _Calls()


@contextmanager
def _call_before_modules(function: Callable[[nn.Module], None]) -> Iterator[None]:
    """Call the function with each module that this thread calls inside, just before."""
    with _Hook.lock:
        if _Hook.users == 0:
            handle = register_module_forward_pre_hook(_run_hook)
            _Hook.places = handle.hooks_dict_ref() or {}  # never empty: it has this hook
            _Hook.places[_Hook.name] = _Hook.places.pop(handle.id)
        _Hook.users += 1
    functions = _Hook.calls.functions
    _Hook.calls.functions = (*functions, function)
    try:
        yield
    finally:
        _Hook.calls.functions = functions
        with _Hook.lock:
            _Hook.users -= 1
            if _Hook.users == 0:
                del _Hook.places[_Hook.name]


def _run_hook(module: nn.Module, _: object) -> None:
    if not torch.compiler.is_compiling():
        for function in _Hook.calls.functions:
            function(module)


def find_modules(function: Callable[..., Any], depth: int = 6) -> tuple[list[nn.Module], bool]:
    """Return the modules that a function refers to, and whether it, or one of them, is compiled.

    Looks at its closure, the globals that it names, its bound arguments, the attributes of its object and small
    containers, and does the same with the functions that it finds there, up to `depth` times.
    """
    modules: dict[nn.Module, None] = {}
    is_compiled = False
    visited: set[int] = set()
    values: list[Any] = [function]
    for _ in range(depth):
        found: list[Any] = []
        for value in values:
            if id(value) in visited:
                continue
            visited.add(id(value))
            if isinstance(value, nn.Module):
                modules[value] = None
                parts = value.modules()
                is_compiled |= any("_orig_mod" in m._modules or m._compiled_call_impl is not None for m in parts)
            elif isinstance(value, partial):
                found += [value.func, *value.args, *value.keywords.values()]
            elif isinstance(value, MethodType):
                found += [value.__self__, value.__func__]
            elif isinstance(value, FunctionType):
                own = vars(value)
                if "_torchdynamo_orig_callable" in own:
                    is_compiled |= not own.get("_torchdynamo_disable", False)
                    found.append(own["_torchdynamo_orig_callable"])
                for cell in value.__closure__ or ():
                    with suppress(ValueError):  # a variable that has no value yet
                        found.append(cell.cell_contents)
                found += [value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__]
            elif isinstance(value, (list, tuple, set, frozenset, dict)):
                if len(value) <= _LARGEST_CONTAINER:
                    found += value.values() if isinstance(value, dict) else value
            elif not isinstance(value, (type, ModuleType)):
                found += _find_parts(getattr(value, "__dict__", {}).values())
        values = found
    return list(modules), is_compiled


def _find_parts(attributes: Iterable[Any]) -> list[Any]:
    kinds = (nn.Module, partial, MethodType, FunctionType, list, tuple, dict)
    return [each for each in attributes if isinstance(each, kinds)]
