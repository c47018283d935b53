"""Where a run computes, and in which precision."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import torch

from domainwise.errors import DomainwiseError
from domainwise.training.distributed import is_one_of_several


def pick_device(name: str) -> torch.device:
    """The device asked for; `auto` takes CUDA, then Apple's GPU, then the CPU. Several processes have one each."""
    has_mps = torch.backends.mps.is_available() and not is_one_of_several()  # its tensors cannot be sent to others
    available = {"cuda": torch.cuda.is_available(), "mps": has_mps, "cpu": True}
    if name == "auto":
        name = next(device for device, is_there in available.items() if is_there)
    if not available[name]:
        there = ", ".join(device for device, is_there in available.items() if is_there)
        several = " for several processes" if is_one_of_several() else ""
        raise DomainwiseError(f"device {name!r} is not available on this machine{several}; available: {there}")
    return _own_gpu() if name == "cuda" and is_one_of_several() else torch.device(name)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """What to run updates in, for a precision; refuses one that would kill the process."""
    if precision == "fp32":
        return nullcontext()
    if device.type == "cpu" and not _cpu_survives_bf16():
        raise DomainwiseError("precision 'bf16' ends the process on this CPU (tried in another one); use fp32")
    return torch.autocast(device.type, torch.bfloat16)


def _own_gpu() -> torch.device:
    """The GPU of this process among those that torchrun started on this machine."""
    processes, there = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if processes > there:
        raise DomainwiseError(f"{processes} processes need a GPU each, and {there} are there; start fewer, or use cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def keep_freed_memory() -> None:
    """Let the C library reuse the memory of freed tensors instead of giving it back to the system at every step.

    For a process of one's own: it saves thousands of page faults a step on the CPU, and costs nothing elsewhere.
    """
    trim_threshold, mmap_threshold = -1, -3  # names in glibc's malloc.h
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            c_library = ctypes.CDLL(None)
            c_library.mallopt(mmap_threshold, 1 << 25)
            c_library.mallopt(trim_threshold, 1 << 30)


def _cpu_survives_bf16() -> bool:
    # Some machines advertise bf16 instructions that they then refuse, with a signal that cannot be caught.
    attempt = """
import torch
network = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.Flatten(), torch.nn.Linear(16 * 900, 8))
with torch.autocast("cpu", torch.bfloat16):
    network(torch.rand(8, 3, 32, 32)).float().sum().backward()
"""
    return subprocess.run([sys.executable, "-c", attempt], capture_output=True).returncode == 0


@contextmanager
def torch_settings(threads: int | None, seed: int, device: torch.device) -> Iterator[None]:
    """The run's own seed and thread count; the caller's are back afterwards."""
    before = torch.get_num_threads()
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        if threads is not None:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state()
    if device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def set_random_state(device: torch.device, states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
    if device.type == "mps" and "mps" in states:
        torch.mps.set_rng_state(states["mps"])
