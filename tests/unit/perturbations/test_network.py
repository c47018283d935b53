"""An attack leaves the network unchanged."""

import copy
import threading
from typing import Any

import pytest
import torch
from perturbation_cases import assert_same_state
from perturbation_kinds import (
    KINDS,
    SHAPE,
    build,
    wavy_loss,
)
from torch import Tensor, nn


class CountsCalls(nn.Module):
    """Counts its calls in two buffers: one is changed in place, one is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("in_place", torch.zeros(1))
        self.register_buffer("replaced", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.in_place.add_(1)
        self.replaced = self.replaced + 1
        return x


class CountsCallsInPlace(nn.Module):
    def __init__(self, calls: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1) if calls is None else calls)

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x


class ChangesItsPart(nn.Module):
    """Writes to the buffer of a part without calling it, like a memory bank."""

    def __init__(self) -> None:
        super().__init__()
        self.part = CountsCallsInPlace()

    def forward(self, x: Tensor) -> Tensor:
        self.part.calls.add_(1)
        return x


class CreatesBuffers(nn.Module):
    """Fills a buffer that was None, and registers others, when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("empty", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.empty is None:
            self.empty = x.detach().mean(0)
            self.register_buffer("late", torch.ones(1))
            self.register_buffer("late_and_not_saved", torch.ones(1), persistent=False)
        return x - self.empty


def network(counter: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.Sequential(nn.ReLU(), counter or CountsCallsInPlace()),
        nn.Conv2d(3, 2, 3),
        nn.BatchNorm2d(2),
        nn.Flatten(),
        nn.Linear(12, 3),
    )


def look_of(model: nn.Module) -> dict[str, Any]:
    """Return everything about a network that an attack must not change, as plain values."""
    return {
        "parameters": {name: tensor.tolist() for name, tensor in model.named_parameters()},
        "identities": [id(tensor) for tensor in model.parameters()],
        "gradients": {n: None if p.grad is None else p.grad.tolist() for n, p in model.named_parameters()},
        "requires_grad": [tensor.requires_grad for tensor in model.parameters()],
        "buffers": {name: tensor.tolist() for name, tensor in model.named_buffers()},
        "modes": {name: part.training for name, part in model.named_modules()},
    }


class TestNetwork:
    x = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(1))
    domain = torch.tensor([0, 1, 1, 0, 1, 1])
    labels = torch.tensor([0, 1, 2, 0, 1, 2])

    def loss(self, model: nn.Module, x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), self.labels, reduction="none")

    @pytest.mark.parametrize(
        ("kind", "gradients", "mode"),
        [
            *((kind, "some filled", "partly eval") for kind in KINDS),
            *(("universal", "some filled", mode) for mode in ("train", "eval")),
            *(
                ("universal", gradients, mode)
                for gradients in ("none", "filled")
                for mode in ("train", "eval", "partly eval")
            ),
        ],
    )
    def test_attack_leaves_the_network_alone(self, kind: str, gradients: str, mode: str) -> None:
        model = network().train(mode != "eval")
        if mode == "partly eval":
            model[1].eval()
            model[2][0].eval()
        if gradients != "none":
            self.loss(model, self.x).mean().backward()
        if gradients == "some filled":
            model[0].weight.grad = None
        before = look_of(model)
        build(kind, num_domains=2).attack(self.x, self.domain, lambda x: self.loss(model, x), steps=2)
        assert look_of(model) == before

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_failing_loss_leaves_the_network_alone(self, kind: str) -> None:
        model = network().train()
        model[4].eval()
        before = look_of(model)
        calls: list[float] = []

        def failing_loss(x: Tensor) -> Tensor:
            losses = self.loss(model, x)
            calls.append(model[2][1].calls.item())
            if len(calls) == 2:
                raise ArithmeticError("the loss failed")
            return losses

        with pytest.raises(ArithmeticError, match="the loss failed"):
            build(kind, num_domains=2).attack(self.x, self.domain, failing_loss, steps=3)
        assert len(calls) == 2
        assert look_of(model) == before

    def test_the_network_is_in_its_own_mode_during_the_attack(self) -> None:
        model = network().train()
        model[1].eval()
        modes: list[dict[str, bool]] = []

        def loss(x: Tensor) -> Tensor:
            modes.append(look_of(model)["modes"])
            return self.loss(model, x)

        before = look_of(model)["modes"]
        build("universal", num_domains=2).attack(self.x, self.domain, loss, steps=2)
        assert modes == [before, before]

    def test_a_buffer_that_the_network_replaces_is_restored(self) -> None:
        model = network(CountsCalls()).train()
        model(self.x)
        build("universal", num_domains=2).attack(self.x, self.domain, lambda x: self.loss(model, x), steps=2)
        counter = model[2][1]
        assert counter.in_place.item() == 1
        assert counter.replaced.item() == 1

    def test_a_buffer_of_a_part_that_is_never_called_is_restored(self) -> None:
        model = ChangesItsPart()
        build("universal").attack(self.x, None, lambda x: model(x).flatten(1).sum(1))
        assert model.part.calls.item() == 0
        model(self.x)
        assert model.part.calls.item() == 1

    def test_a_buffer_that_two_modules_share_is_restored(self) -> None:
        calls = torch.zeros(1)
        first, second = CountsCallsInPlace(calls), CountsCallsInPlace(calls)
        perturbation = build("universal")
        perturbation.attack(self.x, None, lambda x: second(first(x)).flatten(1).sum(1))
        assert calls.item() == 0

    def test_buffers_that_the_network_creates_are_removed(self) -> None:
        model = CreatesBuffers()
        build("universal").attack(self.x, None, lambda x: model(x).flatten(1).sum(1), steps=2)
        assert dict(model._buffers) == {"empty": None}
        assert model.state_dict() == {}
        model(self.x)
        assert set(model.state_dict()) == {"empty", "late"}

    def test_buffers_without_a_shape_are_an_error(self) -> None:
        model = nn.Sequential(nn.LazyBatchNorm2d(), nn.Flatten())
        with pytest.raises(ValueError, match=r"loss_fn must not call LazyBatchNorm2d .*; call the model once"):
            build("universal").attack(self.x, None, lambda x: model(x).sum(1))
        model(self.x)
        build("universal").attack(self.x, None, lambda x: model(x).sum(1))
        assert model[0].num_batches_tracked.item() == 1

    @pytest.mark.parametrize("first_to_end", [0, 1])
    def test_two_threads_that_attack_one_network_leave_it_alone(self, first_to_end: int) -> None:
        model = network().train()
        before, expected = look_of(model), build("universal", num_domains=2)
        x_adv = expected.attack(self.x, self.domain, lambda x: self.loss(model, x), steps=2)
        has_started, has_ended, both_have_called = (
            threading.Event(),
            threading.Event(),
            threading.Barrier(2, timeout=30),
        )
        perturbed: dict[int, Tensor] = {}

        def attack(thread: int) -> None:
            calls = 0

            def loss(x: Tensor) -> Tensor:
                nonlocal calls
                losses = self.loss(model, x)
                calls += 1
                has_started.set()
                if calls == 1:
                    both_have_called.wait()
                elif thread != first_to_end:
                    assert has_ended.wait(30)
                return losses

            # The second thread finds a network that the first one has already changed.
            assert thread == 0 or has_started.wait(30)
            perturbed[thread] = build("universal", num_domains=2).attack(self.x, self.domain, loss, steps=2)
            if thread == first_to_end:
                has_ended.set()

        threads = [threading.Thread(target=attack, args=(thread,)) for thread in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert look_of(model) == before
        assert all(torch.equal(perturbed[thread], x_adv) for thread in range(2))

    @pytest.mark.parametrize("mode", ["train", "eval"])
    def test_a_clean_loss_from_before_the_attack_still_has_its_gradient(self, mode: str) -> None:
        model = network().train(mode == "train")
        twin = copy.deepcopy(model)
        self.loss(twin, self.x).mean().backward()
        clean = self.loss(model, self.x).mean()
        build("universal", num_domains=2).attack(self.x, self.domain, lambda x: self.loss(model, x))
        clean.backward()
        for tensor, expected in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(tensor.grad, expected.grad)

    @pytest.mark.parametrize("kind", KINDS)
    def test_attack_leaves_its_inputs_and_the_perturbations_gradients_alone(self, kind: str) -> None:
        perturbation = build(kind, num_domains=2)
        x = self.x.clone().requires_grad_()
        perturbed = perturbation.attack(x, self.domain, wavy_loss(self.x))
        assert not perturbed.requires_grad
        assert x.grad is None
        assert torch.equal(x.detach(), self.x)
        assert all(tensor.grad is None for tensor in perturbation.parameters())

    @pytest.mark.parametrize("kind", KINDS)
    def test_attack_works_where_gradients_are_off(self, kind: str) -> None:
        perturbation = build(kind, num_domains=2)
        twin = copy.deepcopy(perturbation)
        with torch.no_grad():
            perturbed = perturbation.attack(self.x, self.domain, wavy_loss(self.x))
            assert not torch.is_grad_enabled()
        assert torch.equal(perturbed, twin.attack(self.x, self.domain, wavy_loss(self.x)))
        assert_same_state(perturbation, twin, rtol=0, atol=0)
