"""Device, precision, threads and random state of a run."""

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import get_args

import torch

from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.training.config import DeviceName
from domainwise.training.distributed import is_distributed
from domainwise.training.ranks import read_variable


def pick_device(name: str) -> torch.device:
    """Return the device by name; `auto` prefers CUDA, then MPS, then the CPU. Every process gets its own GPU."""
    if name not in get_args(DeviceName):
        raise unknown_choice("device", name, get_args(DeviceName))
    has_mps = torch.backends.mps.is_available() and not is_distributed()  # gloo cannot send MPS tensors
    is_available = {"cuda": torch.cuda.is_available(), "mps": has_mps, "cpu": True}
    available = [device for device in is_available if is_available[device]]
    if name == "auto":
        name = available[0]
    if name not in available:
        context = " for distributed training" if is_distributed() else ""
        raise DomainwiseError(
            f"device {name!r} is not available on this machine{context}; available: {', '.join(available)}"
        )
    if name != "cuda":
        return torch.device(name)
    return _local_gpu() if is_distributed() else torch.device(name, torch.cuda.current_device())


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context to run updates in; refuse a precision that would kill the process."""
    if precision == "fp32":
        return nullcontext()
    if precision == "fp16":
        if device.type != "cuda":
            raise DomainwiseError(f"precision 'fp16' needs a CUDA device, got {device.type}; use bf16 or fp32")
        return torch.autocast(device.type, torch.float16)
    if device.type == "cpu" and not _cpu_survives_bf16():
        raise DomainwiseError("precision 'bf16' crashes on this CPU (tested in a child process); use fp32")
    return torch.autocast(device.type, torch.bfloat16)


def _local_gpu() -> torch.device:
    """Return the GPU of this process among those that torchrun started on this machine."""
    processes, gpus = read_variable("LOCAL_WORLD_SIZE", 1), torch.cuda.device_count()
    if processes > gpus:
        raise DomainwiseError(
            f"{processes} processes need {processes} GPUs, but {gpus} are available; start fewer, or use cpu"
        )
    device = torch.device("cuda", read_variable("LOCAL_RANK", 0))
    torch.cuda.set_device(device)
    return device


def keep_freed_memory() -> None:
    """Let the C library reuse the memory of freed tensors instead of returning it to the system at every step.

    It affects the whole process. On the CPU it saves thousands of page faults per step.
    """
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in glibc's malloc.h
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            c_library = ctypes.CDLL(None)
            c_library.mallopt(mmap_threshold, 1 << 25)
            c_library.mallopt(trim_threshold, 1 << 30)


def _cpu_survives_bf16() -> bool:
    # Some machines advertise bf16 instructions but do not allow them; the signal that follows cannot be caught.
    attempt = """
import torch
network = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.Flatten(), torch.nn.Linear(16 * 900, 8))
with torch.autocast("cpu", torch.bfloat16):
    network(torch.rand(8, 3, 32, 32)).float().sum().backward()
"""
    return subprocess.run([sys.executable, "-c", attempt], capture_output=True).returncode == 0


@contextmanager
def seeded_torch(threads: int | None, seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch and set its thread count inside the block; restore the caller's afterwards."""
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


def get_random_state(device: torch.device) -> dict[str, torch.Tensor]:
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
