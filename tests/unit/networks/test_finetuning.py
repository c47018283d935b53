"""Fine-tuning a network: what is frozen, how fast each stage learns, adapters, and recomputed activations."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from domainwise.algorithms import ARM, ERM, IGA, MAT, MLDG, MTL, NCDG, Algorithm
from domainwise.algorithms.adrmx import ADRMX
from domainwise.errors import DomainwiseError
from domainwise.networks import Network, build_backbone, small_cnn
from domainwise.networks.finetuning import (
    add_lora_,
    checkpoint_gradients_,
    compile_,
    count_parameters,
    decay_learning_rates_,
    explain_compilation,
    freeze_,
)
from domainwise.networks.stages import count_stages_above

VIT = "timm:test_vit"
DOCS = Path(__file__).parents[3] / "docs" / "backbones.md"
RECOMMENDED = re.findall(r"--backbone (timm:\S+\.\S+) --weights pretrained", DOCS.read_text())


@pytest.fixture(autouse=True)
def _quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.init, "trunc_normal_", lambda tensor, mean=0.0, std=1.0, **_: tensor.data.normal_(mean, std))


def images(count: int = 4, size: int = 32, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def build(name: str, size: int = 32) -> Network:
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    torch.manual_seed(0)
    return build_backbone(name, (3, size, size), 3, 0.1)


def batches() -> list[tuple[Tensor, Tensor]]:
    return [(images(seed=seed), torch.tensor([0, 1, 2, 0])) for seed in (1, 2)]


def update(network: nn.Module, method: type[Algorithm] = ERM) -> Algorithm:
    torch.manual_seed(3)
    algorithm = method(network, num_domains=2, lr=0.01, generator=torch.Generator().manual_seed(0)).train()
    algorithm.update(batches())
    return algorithm


def changed_parameters(network: nn.Module, before: dict[str, Tensor]) -> set[str]:
    return {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}


@pytest.mark.parametrize(
    ("patterns", "is_frozen"),
    [
        (["all"], lambda name: True),
        (["conv1", "bn1", "layer[12]"], lambda name: name.startswith(("conv1.", "bn1.", "layer1.", "layer2."))),
        (["layer*.bn?.*"], lambda name: name.startswith("layer") and ".bn" in name),
    ],
)
def test_frozen_layers_and_their_statistics_stay(patterns: list[str], is_frozen: Any) -> None:
    network = build("resnet18")
    freeze_(network, patterns)
    before = copy.deepcopy(network.state_dict())
    update(network)
    prefix = "featurizer.model."
    changed = {name.removeprefix(prefix) for name in changed_parameters(network, before) if name.startswith(prefix)}
    expected = {name.removeprefix(prefix) for name in before if name.startswith(prefix)}
    assert changed == {name for name in expected if not is_frozen(name)}
    assert {"classifier.weight", "classifier.bias"} <= changed_parameters(network, before)


def test_a_name_that_freezes_nothing_is_an_error_with_the_names() -> None:
    with pytest.raises(
        DomainwiseError, match=r"unknown part to freeze 'layer9'; did you mean 'layer\d'\?.*conv1, bn1, layer1"
    ):
        freeze_(build("resnet18"), ["layer9"])
    with pytest.raises(
        DomainwiseError, match=r"unknown part to freeze 'head'.*blocks \(blocks\.0 to blocks\.5\), norm"
    ):
        freeze_(build(VIT), ["head"])
    with pytest.raises(DomainwiseError, match="freeze needs a network with a featurizer"):
        freeze_(nn.Linear(3, 2), ["all"])


def learning_rates(network: nn.Module, algorithm: Algorithm) -> dict[str, float]:
    names = {parameter: name for name, parameter in network.named_parameters()}
    groups = algorithm.optimizer.param_groups
    return {names[parameter]: group["lr"] for group in groups for parameter in group["params"]}


def test_stages_of_a_resnet_learn_at_decaying_rates() -> None:
    network = build("resnet18")
    decay_learning_rates_(network, 0.5)
    algorithm = ERM(network, num_domains=2, lr=0.8)
    expected = {"conv1": 1 / 32, "bn1": 1 / 32, "layer1": 1 / 16, "layer2": 1 / 8, "layer3": 1 / 4, "layer4": 1 / 2}
    rates = learning_rates(network, algorithm)
    assert len(rates) == len(list(network.parameters()))
    for name, rate in rates.items():
        part = name.removeprefix("featurizer.model.").split(".")[0]
        assert rate == pytest.approx(0.8 * expected.get(part, 1.0)), name
    assert rates["classifier.weight"] == 0.8
    algorithm.lr_factor = 0.1
    algorithm.step_(algorithm.optimizer)
    scaled = learning_rates(network, algorithm)
    assert scaled == pytest.approx({name: 0.1 * rate for name, rate in rates.items()})


def test_blocks_of_a_transformer_learn_at_the_rates_of_timm() -> None:
    timm = pytest.importorskip("timm")
    from timm.optim import param_groups_layer_decay

    network = build("timm:vit_tiny_patch16_224")
    decay_learning_rates_(network, 0.75)
    rates = learning_rates(network, ERM(network, num_domains=2, lr=1.0))
    original = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3)
    names = {parameter: name for name, parameter in original.named_parameters()}
    expected = {
        names[parameter]: group["lr_scale"]
        for group in param_groups_layer_decay(original, layer_decay=0.75)
        for parameter in group["params"]
    }
    prefixes = {"featurizer.model.": "", "classifier.": "head."}
    ours = {}
    for name, rate in rates.items():
        prefix = next(each for each in prefixes if name.startswith(each))
        ours[prefixes[prefix] + name.removeprefix(prefix)] = rate
    assert ours == pytest.approx(expected)
    assert len(set(ours.values())) == 14


def test_a_copied_featurizer_has_the_same_rates() -> None:
    network = small_cnn((3, 32, 32), 3)
    decay_learning_rates_(network, 0.5)
    algorithm = ADRMX(network, num_domains=2, lr=1.0)
    by_parameter = {
        parameter: group["lr"] for group in algorithm.optimizer.param_groups for parameter in group["params"]
    }
    for featurizer in (algorithm.network.featurizer, algorithm.domain_featurizer):
        rates = [by_parameter[parameter] for parameter in featurizer.parameters()]
        assert rates == pytest.approx([1 / 8, 1 / 8, 1 / 4, 1 / 4, 1 / 2, 1 / 2])


class Misplaced(nn.Module):
    """Layers that are registered in another order than they are called, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(4))
        self.last = nn.Linear(4, 4)
        self.first = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(self.last(self.first(x + self.offset).relu()))
        return result


def test_stages_are_counted_in_the_order_of_calls() -> None:
    featurizer = Misplaced().train()
    counts = count_stages_above(featurizer, torch.zeros(2, 4))
    assert {name.split(".")[0]: count for name, count in counts.items()} == {
        "offset": 2,
        "last": 1,
        "first": 2,
        "norm": 1,
    }
    assert all(module.training for module in featurizer.modules())


def test_adapters_change_nothing_at_first_and_alone_are_trained() -> None:
    pytest.importorskip("peft")
    network = build(VIT).eval()
    plain = copy.deepcopy(network)
    add_lora_(network, 2)
    x = images(2)
    with torch.no_grad():
        assert torch.equal(network(x), plain(x))
    total, trained = count_parameters(network)
    assert trained < 0.2 * total
    before = copy.deepcopy(network.state_dict())
    update(network)
    changed = changed_parameters(network, before)
    # A is multiplied by B, which starts as 0, so it has no gradient yet.
    assert changed == {each for each in before if "lora_B" in each or each.startswith("classifier.")}
    adapted = [each for each in before if "lora_B" in each]
    assert len(adapted) == 2 * 6
    network.eval()
    with torch.no_grad():
        logits = network(x)
        plain.classifier.load_state_dict(network.classifier.state_dict())
        assert (logits - plain(x)).abs().max() > 1e-4


def test_batch_norm_next_to_adapters_keeps_its_statistics() -> None:
    pytest.importorskip("peft")
    network = build("mobilenet_v3_small")
    add_lora_(network, 2, ["classifier.0"])
    before = copy.deepcopy(network.state_dict())
    update(network)
    assert all("lora_B" in name or name.startswith("classifier.") for name in changed_parameters(network, before))


def test_adapters_on_named_layers() -> None:
    pytest.importorskip("peft")
    network = build(VIT)
    add_lora_(network, 2, ["blocks.*.mlp", "blocks.0.attn.qkv"])
    adapted = [name for name in network.state_dict() if "lora_A" in name]
    assert len(adapted) == 2 * 6 + 1
    network = build(VIT)
    add_lora_(network, 2, ["all"])
    assert sum("lora_A" in name for name in network.state_dict()) == 4 * 6
    with pytest.raises(DomainwiseError, match=r"unknown linear layer 'blocks\.0\.attn\.qqv'; did you mean"):
        add_lora_(build(VIT), 2, ["blocks.0.attn.qqv"])
    with pytest.raises(
        DomainwiseError, match="LoRA adapts the linear layers of attention, and this network has none that it can adapt"
    ):
        add_lora_(build("resnet18"), 2)


def test_adapters_that_would_have_no_effect_are_an_error() -> None:
    pytest.importorskip("peft")
    with pytest.raises(DomainwiseError, match=r"LoRA has no effect on features\.1\.0\.attn\.qkv \(\+23 more\)"):
        add_lora_(build("swin_t"), 2)


@pytest.mark.parametrize("name", ["resnet18", VIT])
def test_recomputed_activations_give_the_same_update(name: str) -> None:
    """Live batch norm and dropout included."""
    plain, saving = build(name), build(name)
    checkpoint_gradients_(saving)
    kept = [count_kept_numbers(network) for network in (plain, saving)]
    assert kept[1] < 0.6 * kept[0]
    states = [update(network).network.state_dict() for network in (plain, saving)]
    assert not changed_parameters(saving, states[0])
    assert states[0].keys() == states[1].keys()


def count_kept_numbers(network: Network) -> int:
    """Return how many numbers a forward pass keeps for the backward pass."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    copied = copy.deepcopy(network)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        copied.featurizer(images())
    weights = {parameter.data_ptr() for parameter in copied.parameters()}
    return sum(count for pointer, count in kept.items() if pointer not in weights)


@pytest.mark.parametrize("method", [MLDG, ARM])
def test_methods_that_replace_weights_or_hook_layers_can_recompute(method: type[Algorithm]) -> None:
    plain, saving = build("resnet18"), build("resnet18")
    checkpoint_gradients_(saving)
    expected = update(plain, method).network.state_dict()
    assert not changed_parameters(update(saving, method).network, expected)


def test_other_weights_are_differentiated_at_these_weights() -> None:
    gradients = []
    for is_saving in (False, True):
        network = build("resnet18").eval()
        if is_saving:
            checkpoint_gradients_(network)
        weights = {name: (2 * each).detach().requires_grad_() for name, each in network.named_parameters()}
        loss = functional_call(network, weights, (images(),)).square().sum()
        gradients.append(torch.autograd.grad(loss, list(weights.values())))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("is_saving", [False, True])
def test_second_derivatives_of_a_transformer(is_saving: bool) -> None:
    network = build(VIT)
    if is_saving:
        checkpoint_gradients_(network)
    before = copy.deepcopy(network.state_dict())
    update(network, IGA)
    assert changed_parameters(network, before) == set(before)


@pytest.fixture
def _quick_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace the network and its gradients without generating code."""
    torch.compiler.reset()
    compile_module = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda module: compile_module(module, backend="aot_eager"))


@pytest.mark.usefixtures("_quick_compiler")
@pytest.mark.parametrize("method", [ERM, MTL])
def test_the_featurizer_is_compiled_whatever_the_method_puts_around_it(method: type[Algorithm]) -> None:
    algorithm = method(small_cnn((3, 32, 32), 3), num_domains=2).train()
    compile_(algorithm.network)
    counters = torch._dynamo.utils.counters
    counters.clear()
    algorithm.update(batches())
    assert counters["frames"] == {"total": 1, "ok": 1}


@pytest.mark.usefixtures("_quick_compiler")
@pytest.mark.parametrize("method", [IGA, NCDG])
def test_second_derivatives_of_compiled_code_are_an_error(method: type[Algorithm]) -> None:
    algorithm = method(small_cnn((3, 32, 32), 3).to(memory_format=torch.channels_last), num_domains=2).train()
    compile_(algorithm.network)
    with (
        pytest.raises(DomainwiseError, match=r"the network could not be compiled: .*; train without --compile"),
        explain_compilation(),
    ):
        algorithm.update(batches())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if "base" in name else name for name in RECOMMENDED]
)
def test_backbones_that_the_docs_recommend(name: str) -> None:
    size = 2 * int(re.findall(r"patch(\d+)", name)[0])
    network = build(name, size)
    decay_learning_rates_(network, 0.75)
    rates = {*learning_rates(network, ERM(network, num_domains=2)).values()}
    assert len(rates) == 1 + 12 + 1  # the embedding, the blocks, the classifier

    pytest.importorskip("peft")
    add_lora_(network, 2)
    checkpoint_gradients_(network)
    before = copy.deepcopy(network.state_dict())
    algorithm = MAT(network, num_domains=2, lr=0.01, generator=torch.Generator().manual_seed(0)).train()
    algorithm.update([(images(2, size, seed), torch.tensor([0, 1])) for seed in (1, 2)])
    assert all(torch.isfinite(value).all() for value in network.state_dict().values())
    changed = changed_parameters(network, before)
    assert sum("lora_B" in each for each in changed) >= 12
    assert all("lora_" in each or each.startswith("classifier") for each in changed)


def test_the_docs_recommend_vit_clip_and_dino() -> None:
    assert all(any(kind in name for name in RECOMMENDED) for kind in ("in21k", "clip", "dinov2", "dinov3"))
