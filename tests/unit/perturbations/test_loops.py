"""Perturbations in other people's loops: their optimizers, gradient accumulation, compiled models and model outputs."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from perturbation_cases import assert_same_state
from perturbation_kinds import KEPT, ONE_PASS, SHAPE, build, state_of
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.perturbations.network import find_modules

X = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0, 1, 2])
DOMAIN = torch.tensor([0, 0, 1, 1, 1, 0])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))


def sample_losses(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return F.cross_entropy(model(x), Y, reduction="none")


class Contains(nn.Module):
    """A network with its perturbation as a part, as in a LightningModule."""

    def __init__(self, perturbation: nn.Module) -> None:
        super().__init__()
        self.network = network()
        self.perturbation = perturbation

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        return logits


class TestOptimizers:
    @pytest.mark.parametrize("kind", ONE_PASS)
    @pytest.mark.parametrize(
        "optimizer_class",
        [partial(torch.optim.SGD, lr=0.5, weight_decay=0.1, momentum=0.9), partial(torch.optim.AdamW, fused=True)],
        ids=["SGD", "AdamW"],
    )
    def test_one_over_all_parameters_does_not_move_the_perturbation(
        self, kind: str, optimizer_class: Callable[..., torch.optim.Optimizer]
    ) -> None:
        def train(parameters: Callable[[Contains], Iterator[nn.Parameter]]) -> Contains:
            module = Contains(build(kind, num_domains=2, epsilon=0.7))
            optimizer = optimizer_class(parameters(module))
            for _ in range(3):
                optimizer.zero_grad()
                F.cross_entropy(module(module.perturbation(X, DOMAIN)), Y).backward()
                optimizer.step()
                module.perturbation.ascend_()
            return module

        assert_same_state(train(lambda module: module.parameters()), train(lambda module: module.network.parameters()))

    @pytest.mark.parametrize("kind", KEPT)
    def test_no_parameter_asks_for_a_gradient(self, kind: str) -> None:
        perturbation = build(kind, num_domains=2)
        perturbation.attack(X, DOMAIN, partial(sample_losses, network()))
        assert not any(each.requires_grad or each.grad is not None for each in perturbation.parameters())

    @pytest.mark.parametrize("kind", ["multiple assigned", "multiple subspace"])
    def test_a_perturbation_inside_the_network_moves_as_one_outside(self, kind: str) -> None:
        inside = Contains(build(kind, num_domains=2))
        outside = build(kind, num_domains=2)
        for _ in range(3):
            x_adv = inside.perturbation.attack(X, DOMAIN, partial(sample_losses, inside))
            assert torch.equal(x_adv, outside.attack(X, DOMAIN, partial(sample_losses, inside.network)))
        assert_same_state(inside.perturbation, outside)


class TestAccumulation:
    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_gradients_of_several_passes_add_up(self, kind: str) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(40, 3)).double()
        whole, parts = (build(kind, num_domains=2, double=True, ascent="gradient") for _ in range(2))
        F.cross_entropy(model(whole(X.double(), DOMAIN)), Y, reduction="sum").backward()
        for rows in (slice(0, 2), slice(2, 6)):
            F.cross_entropy(model(parts(X[rows].double(), DOMAIN[rows])), Y[rows], reduction="sum").backward()
        before = copy.deepcopy(state_of(whole))
        for each in (whole, parts):
            each.ascend_()
        torch.testing.assert_close(state_of(parts), state_of(whole))
        assert any(not torch.equal(tensor, before[name]) for name, tensor in state_of(whole).items())

    def test_a_pass_before_a_move_to_another_type_is_forgotten(self) -> None:
        perturbation = build("universal", num_domains=2)
        perturbation(X, DOMAIN).sum().backward()
        perturbation.double()
        perturbation(X.double(), DOMAIN).sum().backward()
        perturbation.ascend_()
        assert perturbation.deltas.dtype == torch.float64

    def test_passes_without_gradients_leave_nothing_to_ascend(self) -> None:
        perturbation = build("universal", num_domains=2)
        with torch.no_grad():
            perturbation(X, DOMAIN)
        with pytest.raises(RuntimeError, match="found no gradients"):
            perturbation.ascend_()


class Loop:
    """A hand-written trainer with a compiled model as an attribute."""

    def __init__(self, model: Callable[[Tensor], Tensor]) -> None:
        self.model = model

    def losses(self, x: Tensor) -> Tensor:
        return sample_losses(self.model, x)


def compile_module(model: nn.Module, **options: Any) -> Callable[[Tensor], Tensor]:
    return torch.compile(model, **options)


def compile_in_place(model: nn.Module, **options: Any) -> Callable[[Tensor], Tensor]:
    model.compile(**options)
    return model


def compile_function(model: nn.Module, **options: Any) -> Callable[[Tensor], Tensor]:
    return torch.compile(lambda x: model(x), **options)


# The compiler itself reads `.grad` of every input that is not a leaf, and has advice about Python 3.13.0.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:Guards may run slower")
class TestCompiledModels:
    @pytest.fixture(autouse=True)
    def _reset(self) -> Iterator[None]:
        torch.compiler.reset()
        yield
        torch.compiler.reset()

    @pytest.mark.parametrize("compile_model", [compile_module, compile_in_place, compile_function])
    @pytest.mark.parametrize(("fullgraph", "is_called_first"), [(False, False), (True, True)])
    def test_attacks_are_those_of_the_eager_model(
        self, compile_model: Callable[..., Callable[[Tensor], Tensor]], fullgraph: bool, is_called_first: bool
    ) -> None:
        graphs = 0

        def count_graphs(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
            nonlocal graphs
            graphs += 1
            return module.forward

        eager, model = network(), network()
        compiled = compile_model(model, backend=count_graphs, fullgraph=fullgraph)
        if is_called_first:
            torch.testing.assert_close(compiled(X), eager(X))
        before = copy.deepcopy(dict(model.named_buffers()))
        perturbation, expected = (build("universal", num_domains=2) for _ in range(2))
        losses = Loop(compiled).losses
        for _ in range(3):
            x_adv = perturbation.attack(X, DOMAIN, losses)
            torch.testing.assert_close(x_adv, expected.attack(X, DOMAIN, partial(sample_losses, eager)))
        torch.testing.assert_close(dict(model.named_buffers()), before, rtol=0, atol=0)
        # One for inputs that need gradients, one for those that need none; no attack compiles the model again. (Older
        # versions of torch compile no containers in place.)
        assert graphs <= 1 + is_called_first

    @pytest.mark.parametrize("compile_model", [compile_module, compile_in_place, compile_function])
    @pytest.mark.parametrize(("fullgraph", "is_hidden"), [(True, False), (False, True)])
    @pytest.mark.filterwarnings("ignore:Using `torch.compile.module.` when there are global hooks")
    def test_many_attacks_on_a_model_in_a_container(
        self, compile_model: Callable[..., Callable[[Tensor], Tensor]], fullgraph: bool, is_hidden: bool
    ) -> None:
        graphs = 0

        def count_graphs(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
            nonlocal graphs
            graphs += 1
            return module.forward

        eager, model = network(), network()
        compiled = compile_model(model, backend=count_graphs, fullgraph=fullgraph)
        models = {"main": [Holder(Holder(Holder(compiled))) if is_hidden else compiled]}
        before = copy.deepcopy(dict(model.named_buffers()))
        perturbation, expected = (build("universal", num_domains=2) for _ in range(2))
        # Some libraries raise the limit when they are imported.
        with torch._dynamo.config.patch(recompile_limit=3):
            for _ in range(5):
                x_adv = perturbation.attack(X, DOMAIN, lambda x: sample_losses(models["main"][0], x))
                torch.testing.assert_close(x_adv, expected.attack(X, DOMAIN, partial(sample_losses, eager)))
        assert graphs == 1
        if not is_hidden or compile_model is compile_module:
            torch.testing.assert_close(dict(model.named_buffers()), before, rtol=0, atol=0)

    def test_an_attack_inside_compiled_code(self) -> None:
        def step(model: nn.Module, perturbation: Any, x: Tensor) -> Tensor:
            x_adv = perturbation.attack(2 * x - x, DOMAIN, lambda x: sample_losses(model, x))
            return F.cross_entropy(model(x_adv), Y)

        compiled = torch.compile(step, backend="eager")
        model, perturbation = network(), build("multiple assigned", num_domains=2)
        eager, expected = copy.deepcopy((model, perturbation))
        for _ in range(3):
            torch.testing.assert_close(compiled(model, perturbation, X), step(eager, expected, X))
        assert_same_state(perturbation, expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(dict(model.named_buffers()), dict(eager.named_buffers()))

    def test_error_for_an_attack_inside_a_full_graph(self) -> None:
        model, perturbation = network(), build("universal", num_domains=2)

        @torch.compile(backend="eager", fullgraph=True)
        def step(x: Tensor) -> Tensor:
            return perturbation.attack(x, DOMAIN, lambda x: sample_losses(model, x))

        # Older versions of torch do not show the reason, only the line.
        reason = r"attack\(\) cannot be part of a full graph; compile the model|torch.compiler.disable\(self._attack"
        with pytest.raises(RuntimeError, match=reason):
            step(X)

    @pytest.mark.parametrize("kind", ["universal", "multiple by domain, perturbation", "low-rank factors"])
    def test_a_full_graph_of_perturbation_and_model(self, kind: str) -> None:
        model, perturbation = network().eval(), build(kind, num_domains=2)
        compiled = torch.compile(lambda x, domain: model(perturbation(x, domain)), backend="eager", fullgraph=True)
        with torch.no_grad():
            torch.testing.assert_close(compiled(X, DOMAIN), model(perturbation(X, DOMAIN)))

    @pytest.mark.parametrize("kind", ["universal", "multiple by domain, perturbation"])
    def test_one_pass_through_compiled_code(self, kind: str) -> None:
        model = network()
        one, other = (build(kind, num_domains=2) for _ in range(2))
        compiled = torch.compile(lambda x: sample_losses(model, one(x, DOMAIN)), backend="eager")
        for _ in range(3):
            compiled(X).mean().backward()
            one.ascend_()
            sample_losses(model, other(X, DOMAIN)).mean().backward()
            other.ascend_()
        assert_same_state(one, other, rtol=1e-5, atol=1e-6)

    @pytest.mark.slow
    def test_attacks_with_the_default_compiler(self) -> None:
        eager, model = network(), network()
        compiled = torch.compile(model)
        perturbation, expected = (build("multiple assigned", num_domains=2) for _ in range(2))
        before = copy.deepcopy(dict(model.named_buffers()))
        for _ in range(2):
            x_adv = perturbation.attack(X, DOMAIN, lambda x: sample_losses(compiled, x))
            torch.testing.assert_close(x_adv, expected.attack(X, DOMAIN, partial(sample_losses, eager)))
        torch.testing.assert_close(dict(model.named_buffers()), before, rtol=0, atol=0)


global_model = network()


def call_global(x: Tensor) -> Tensor:
    return sample_losses(global_model, x)


class TestFindingModules:
    def test_in_closures_globals_bound_arguments_and_attributes(self) -> None:
        model = network()
        for function, expected in (
            (lambda x: sample_losses(model, x), model),
            (partial(sample_losses, model), model),
            (partial(sample_losses, x=X, model=model), model),
            (Loop(model).losses, model),
            (lambda x: Loop(model).losses(x), model),
            (call_global, global_model),
            (lambda x: call_global(x), global_model),
            (model.forward, model),
        ):
            assert find_modules(function) == ([expected], False)

    def test_a_variable_without_a_value_is_skipped(self) -> None:
        def losses(x: Tensor) -> Tensor:
            return sample_losses(late, x)

        assert find_modules(losses) == ([], False)
        late = network()
        assert find_modules(losses) == ([late], False)

    def test_functions_excluded_from_compilation_are_not_compiled(self) -> None:
        model = network()
        assert find_modules(torch.compiler.disable(lambda x: sample_losses(model, x))) == ([model], False)


class Holder:
    """An object that no search looks into, if it is itself in a container of its kind."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __call__(self, x: Tensor) -> Tensor:
        return self.content(x)


class TestLossScaler:
    @pytest.mark.parametrize("ascent", ["gradient", "normalized"])
    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_steps_do_not_contain_the_scale(self, kind: str, ascent: str) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(40, 3))
        scaled, plain = (build(kind, num_domains=2, ascent=ascent, epsilon=3.0) for _ in range(2))
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(2):
            F.cross_entropy(model(plain(X, DOMAIN)), Y).backward()
            plain.ascend_()
            scaler.scale(F.cross_entropy(model(scaled(X, DOMAIN)), Y)).backward()
            scaler.step(optimizer)
            scaled.ascend_(scaler=scaler)
            scaler.update()
        torch.testing.assert_close(state_of(scaled), state_of(plain))

    def test_gradients_that_overflow_move_nothing(self) -> None:
        perturbation = build("universal", num_domains=2, ascent="gradient")
        before = state_of(perturbation)
        scaler = torch.amp.GradScaler("cpu", init_scale=1e38)
        scaler.scale((100 * perturbation(X, DOMAIN)).sum()).backward()
        perturbation.ascend_(scaler=scaler)
        torch.testing.assert_close(state_of(perturbation), before, rtol=0, atol=0)

    def test_a_disabled_scaler_changes_nothing(self) -> None:
        one, other = (build("universal", num_domains=2, ascent="gradient") for _ in range(2))
        for each in (one, other):
            each(X, DOMAIN).sum().backward()
        one.ascend_(scaler=torch.amp.GradScaler("cpu", enabled=False))
        other.ascend_()
        assert_same_state(one, other, rtol=0, atol=0)

    def test_error_for_a_number(self) -> None:
        perturbation = build("universal", num_domains=2)
        perturbation(X, DOMAIN).sum().backward()
        with pytest.raises(TypeError, match=r"^scaler must be a torch.amp.GradScaler or None, got float$"):
            perturbation.ascend_(scaler=1024.0)


class TestModelOutputs:
    def test_the_loss_function_chooses(self) -> None:
        model = network()
        outputs: dict[str, Callable[[Tensor], Any]] = {
            "dict": lambda x: {"logits": model(x), "features": x},
            "tuple": lambda x: (model(x), x),
        }
        expected = build("universal", num_domains=2).attack(X, DOMAIN, partial(sample_losses, model))
        for key, name in (("logits", "dict"), (0, "tuple")):
            x_adv = build("universal", num_domains=2).attack(
                X, DOMAIN, lambda x, key=key, name=name: sample_losses(lambda x: outputs[name](x)[key], x)
            )
            assert torch.equal(x_adv, expected)

    @pytest.mark.parametrize(
        ("losses", "name"), [({"loss": torch.zeros(6)}, "dict"), ((torch.zeros(6),), "tuple"), (0.5, "float")]
    )
    def test_error_for_a_loss_that_is_no_tensor(self, losses: Any, name: str) -> None:
        with pytest.raises(
            TypeError, match=rf"one loss per sample, shape \(6,\), got {name}; compute it from the model's logits"
        ):
            build("universal", num_domains=2).attack(X, DOMAIN, lambda x: losses)
