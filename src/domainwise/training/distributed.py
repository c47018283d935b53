"""One run over several processes, started by `torchrun`. In a single process all of this does nothing."""

import math
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count as counted
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.modules.batchnorm import _BatchNorm as AnyBatchNorm

from domainwise.algorithms import Algorithm
from domainwise.errors import DomainwiseError, ProcessLost
from domainwise.perturbations.distributed import mean_over_ranks
from domainwise.seeds import seed_hash
from domainwise.training.config import RunConfig
from domainwise.training.ranks import check_master, read_world_size

T = TypeVar("T")
_groups = counted()
_TORCH = Path(dist.__file__).parent


@dataclass(frozen=True)
class World:
    """The rank of this process, and the number of processes that share the run."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes, logs and reports for all of them."""
        return self.rank == 0

    def shard(self, rows: Tensor) -> Tensor:
        """Return the rows of this rank; every row belongs to one rank."""
        return rows if self.size == 1 else rows.tensor_split(self.size)[self.rank]

    @contextmanager
    def synchronize_errors(self) -> Iterator[None]:
        """Raise an error or Ctrl-C that happens inside on any rank on every rank; otherwise leave together."""
        if self.size == 1:
            yield
            return
        error: BaseException | None = None
        try:
            yield
        except (DomainwiseError, OSError, KeyboardInterrupt) as caught:
            error = caught
        errors: list[BaseException | None] = [None] * self.size
        dist.all_gather_object(errors, error)
        for each in (error, *errors):
            if each is not None:
                raise each

    def sum_integers(self, numbers: Sequence[int]) -> list[int]:
        """Sum each number over all ranks."""
        if self.size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(total)
        return [int(number) for number in total]

    def gather(self, own: T) -> list[T]:
        """Return what each rank has, in their order."""
        everyone = [own] * self.size
        if self.size > 1:
            dist.all_gather_object(everyone, own)
        return everyone

    def broadcast_flag(self, flag: bool) -> bool:
        """Return the main rank's flag on every rank."""
        return self.sum_integers([int(flag and self.is_main)]) == [1]

    def mean_floats(self, values: Iterable[float]) -> list[float]:
        """Average each value over all ranks."""
        if self.size == 1:
            return list(values)
        own = torch.tensor(list(values), dtype=torch.float64)
        parts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(parts, own)
        # Rounded once, so that a mean depends neither on the order of the ranks nor on what it is sent with.
        return [math.fsum(each) / self.size for each in zip(*(part.tolist() for part in parts), strict=True)]

    def average_(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors that ranks measured on their shards, such as batch norm statistics, by their mean."""
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        # In double precision, the mean of equal numbers is exactly that number.
        means = mean_over_ranks([tensor.double() for tensor in floating])
        for tensor, mean in zip(floating, means, strict=True):
            tensor.copy_(mean)

    @contextmanager
    def seed_per_rank(self, generator: torch.Generator, seed: int, step: int) -> Iterator[None]:
        """Seed the random draws inside by step and rank, so that one checkpoint serves all ranks."""
        if self.size == 1:
            yield
            return
        before = generator.get_state()
        own = seed_hash(seed, step, self.rank)
        generator.manual_seed(own)
        torch.manual_seed(own)
        try:
            yield
        finally:
            generator.set_state(before)


def sharding_caveats(algorithm: Algorithm, config: RunConfig, world: World) -> list[str]:
    """Return the ways in which training on shards of a batch differs from training on all of it."""
    if world.size == 1:
        return []
    assert config.batch_size is not None
    shard = f"its own {config.batch_size // world.size} of {config.batch_size} images per domain"
    caveats = []
    if not algorithm.is_exact_over_ranks:
        caveats.append(
            f"{config.algorithm_name} compares the samples of a batch: each of {world.size} processes uses {shard}"
        )
    if any(isinstance(part, AnyBatchNorm) and part.training for part in algorithm.network.modules()):
        caveats.append(f"batch norm is live: each of {world.size} processes normalizes over {shard}")
    return caveats


def is_distributed() -> bool:
    """Return whether torchrun started several processes, or a process group already exists."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return read_world_size() > 1


@contextmanager
def join_process_group(device: torch.device) -> Iterator[World]:
    """Join the process group, and leave it after the block unless it existed before."""
    if not is_distributed():
        yield World()
    elif dist.is_initialized():
        yield World(dist.get_rank(), dist.get_world_size())
    else:
        check_master()
        store, rank, count = next(rendezvous("env://"))
        # A new prefix, because keys that an earlier group left in the store would mislead this one.
        store = PrefixStore(f"domainwise/{next(_groups)}", store)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        with _name_lost_processes(rank, count):
            dist.init_process_group(backend, store=store, rank=rank, world_size=count)
            try:
                yield World(rank, count)
            finally:
                dist.destroy_process_group()


@contextmanager
def _name_lost_processes(rank: int, count: int) -> Iterator[None]:
    """Turn an error of torch.distributed into one line: it comes when the connection to another process is closed."""
    try:
        yield
    except RuntimeError as error:
        if not any(Path(frame.filename).is_relative_to(_TORCH) for frame in traceback.extract_tb(error.__traceback__)):
            raise
        raise ProcessLost(
            f"process {rank} of {count} lost its connection to another, which has ended; rerun the same command to "
            "resume"
        ) from error


@contextmanager
def watch_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether to save and stop: after Ctrl-C, SIGTERM or SIGHUP, however often.

    torchrun forwards signals to processes that already got them from the terminal, so a second one means nothing. It
    sends SIGTERM to all if one has ended; they then find out themselves, and say so.
    """
    is_interrupted = False

    def note(*_: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True

    numbers = (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP"))  # Windows has no SIGHUP
    watched = [each for each in numbers if each is not None and signal.getsignal(each) != signal.SIG_IGN]
    before = {each: signal.signal(each, note) for each in watched}
    try:
        yield lambda: is_interrupted
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
