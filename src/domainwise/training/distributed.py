"""One run over several processes: which of them this is, its share of the work, and what all of them agree on.

`torchrun` starts the processes and tells each its rank. In a process by itself all of this does nothing.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count as counted

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.modules.batchnorm import _BatchNorm as AnyBatchNorm

from domainwise.algorithms import Algorithm
from domainwise.errors import DomainwiseError
from domainwise.perturbations.distributed import mean_over_ranks
from domainwise.seeds import seed_hash
from domainwise.training.config import RunConfig

_groups = counted()


@dataclass(frozen=True)
class Ranks:
    """This process among those that share a run."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes, logs and reports for all."""
        return self.rank == 0

    def share(self, rows: Tensor) -> Tensor:
        """This rank's part of the rows; together the ranks have each row once."""
        return rows if self.count == 1 else rows.tensor_split(self.count)[self.rank]

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """An error or Ctrl-C inside, on whichever rank, is raised on every rank; without one all leave together."""
        if self.count == 1:
            yield
            return
        error: BaseException | None = None
        try:
            yield
        except (DomainwiseError, OSError, KeyboardInterrupt) as caught:
            error = caught
        errors: list[BaseException | None] = [None] * self.count
        dist.all_gather_object(errors, error)
        for each in (error, *errors):
            if each is not None:
                raise each

    def sums(self, numbers: Sequence[int]) -> list[int]:
        """Each number summed over all ranks."""
        if self.count == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(total)
        return [int(number) for number in total]

    def first_says(self, flag: bool) -> bool:
        """The first rank's flag, on every rank."""
        return self.sums([int(flag and self.is_first)]) == [1]

    def means(self, values: Iterable[float]) -> list[float]:
        """Each value's mean over all ranks."""
        if self.count == 1:
            return list(values)
        total = torch.tensor(list(values), dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) for value in total / self.count]

    def average_(self, tensors: Iterable[Tensor]) -> None:
        """Replace what ranks have measured on their shares, such as batch norm's statistics, by its mean."""
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        # In double precision the mean of equal numbers is that number.
        means = mean_over_ranks([tensor.double() for tensor in floating])
        for tensor, mean in zip(floating, means, strict=True):
            tensor.copy_(mean)

    @contextmanager
    def own_draws(self, generator: torch.Generator, seed: int, step: int) -> Iterator[None]:
        """Draws inside follow from the step and the rank, so that one checkpoint is enough for all ranks."""
        if self.count == 1:
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


def notes_on_shares(algorithm: Algorithm, config: RunConfig, ranks: Ranks) -> list[str]:
    """In which ways training on shares of a batch is not training on the whole of it."""
    if ranks.count == 1:
        return []
    assert config.batch_size is not None
    share = f"its own {config.batch_size // ranks.count} of {config.batch_size} images a domain"
    notes = []
    if not algorithm.is_exact_in_shares:
        notes.append(f"{config.algorithm_name} looks at a batch as a whole: each of {ranks.count} processes at {share}")
    if any(isinstance(part, AnyBatchNorm) and part.training for part in algorithm.network.modules()):
        notes.append(f"batch norm is live: each of {ranks.count} processes normalizes by {share}")
    return notes


def is_one_of_several() -> bool:
    """Whether torchrun started this process beside others, or a process group already holds it."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """This process among its ranks, in a process group that ends with the block unless it was there before."""
    if not is_one_of_several():
        yield Ranks()
    elif dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size())
    else:
        store, rank, count = next(rendezvous("env://"))
        # A prefix of its own, because what an earlier group left in the store would mislead this one.
        store = PrefixStore(f"domainwise/{next(_groups)}", store)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=count)
        try:
            yield Ranks(rank, count)
        finally:
            dist.destroy_process_group()


@contextmanager
def stop_asked() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether Ctrl-C was pressed, however often.

    torchrun passes the signal on to processes that the terminal has already sent it to, so a second one means nothing.
    """
    pressed = False

    def note(*_: object) -> None:
        nonlocal pressed
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
