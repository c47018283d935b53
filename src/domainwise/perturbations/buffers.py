"""Keeping batch-norm statistics, and every other buffer, out of the reach of an inner pass."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
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
    saved: list[tuple[Tensor, Tensor]] = []

    def remember(module: nn.Module, _: object) -> None:
        if threading.get_ident() != thread or module in seen:
            return
        for part in module.modules():
            if part not in seen:
                seen.add(part)
                saved.extend((buffer, buffer.clone()) for buffer in part.buffers(recurse=False))

    handle = register_module_forward_pre_hook(remember)
    try:
        yield
    finally:
        handle.remove()
        with torch.no_grad():
            for buffer, value in saved:
                buffer.copy_(value)
