"""`domainwise.testing.check_algorithm` accepts a sound method, and says what is wrong with each unsound one."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms import ERM, Algorithm
from domainwise.algorithms.base import Batches, concatenate_batches
from domainwise.testing import check_algorithm


class Sound(Algorithm):
    """Written out, with draws of its own."""

    def update(self, batches: Batches) -> dict[str, float]:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        loss = F.cross_entropy(self.network(x + self.draw(x)), y)
        self.descend_(loss)
        return {"loss": loss.item()}

    def draw(self, x: Tensor) -> Tensor:
        return 0.1 * torch.rand(x.shape, generator=self.generator).to(x.device)


class Unmeasured(Sound):
    def update(self, batches: Batches) -> dict[str, float]:
        return {"total": super().update(batches)["loss"]}


class Tensors(Sound):
    def update(self, batches: Batches) -> dict[str, Any]:
        return {name: torch.tensor(value) for name, value in super().update(batches).items()}


class Idle(Sound):
    def descend_(self, loss: Tensor, *optimizers: Any) -> None: ...


class MeanOfNothing(Sound):
    def update(self, batches: Batches) -> dict[str, float]:
        return {**super().update(batches), "first": batches[0][0].mean().item()}


class Forgetful(Sound):
    """Keeps what it needs in a plain attribute."""

    calls = 0

    def draw(self, x: Tensor) -> Tensor:
        self.calls += 1
        return 0.1 * self.calls * x


class Unseeded(Sound):
    def draw(self, x: Tensor) -> Tensor:
        fresh = torch.Generator()
        fresh.seed()
        return torch.rand(x.shape, generator=fresh)


class LoudPredict(Sound):
    def predict(self, x: Tensor) -> Tensor:
        torch.rand(1)
        return super().predict(x)


class InPlace(Sound):
    def update(self, batches: Batches) -> dict[str, float]:
        batches[0][0].mul_(0.5)
        return super().update(batches)


class OwnStep(Sound):
    def descend_(self, loss: Tensor, *optimizers: Any) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class OnTheCPU(Sound):
    """Leaves one tensor there."""

    def draw(self, x: Tensor) -> Tensor:
        return 0.1 * torch.rand(x.shape, generator=self.generator)


class Leaking(Sound):
    def descend_(self, loss: Tensor, *optimizers: Any) -> None:
        super().descend_(loss)
        self.history = [*getattr(self, "history", []), loss]


@pytest.mark.parametrize("method", [Sound, ERM])
def test_a_sound_method_passes(method: type[Algorithm]) -> None:
    check_algorithm(method)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Unmeasured, r"must return the cross-entropy as 'loss', got \['total'\]"),
        (Tensors, "must return plain floats, got Tensor for 'loss'"),
        (Idle, "did not move all parameters"),
        (MeanOfNothing, r"batches of \[0, 6\] images: update\(\) returned .*nan"),
        (Forgetful, r"the losses differ; keep state in parameters, buffers"),
        (Unseeded, "the losses differ|two runs with one seed differ"),
        (LoudPredict, r"predict\(\) draws random numbers"),
        (InPlace, r"update\(\) changes its batch"),
        (OwnStep, "an optimizer steps by itself; use descend_"),
        (OnTheCPU, r"add in test_checks.py:\d+ has tensors on cuda:0 and on the CPU: of shape \(9, 3, 12, 12\)"),
        (Leaking, "the number of tensors grows with every update"),
    ],
)
def test_an_unsound_method_is_told_what_is_wrong(method: type[Algorithm], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_algorithm(method)
