"""Keeping batch-norm statistics, and every other buffer, out of the reach of an inner pass."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook


@contextmanager
def buffers_restored() -> Iterator[None]:
    """Whatever modules are called inside get their buffers back as they were.

    An attack sees the network only through a loss function, so it cannot be handed the modules. It
    notes them as they are called instead, in this thread only, before they can change anything.
    """
    thread = threading.get_ident()
    seen: set[nn.Module] = set()
    saved: list[tuple[nn.Module, str, Tensor, Tensor]] = []

    def remember(module: nn.Module, _: object) -> None:
        if threading.get_ident() != thread or module in seen:
            return
        for part in module.modules():
            if part not in seen:
                seen.add(part)
                named = part.named_buffers(recurse=False)
                saved.extend((part, name, buffer, buffer.clone()) for name, buffer in named)

    handle = register_module_forward_pre_hook(remember)
    try:
        yield
    finally:
        handle.remove()
        # The first copy of a buffer that several modules share is the true one, so it is put back last. Through
        # `data`, because a graph that was made before the attack still counts the versions of the buffers it used.
        for module, name, buffer, value in reversed(saved):
            buffer.data.copy_(value)
            module._buffers[name] = buffer
