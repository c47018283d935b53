"""MixStyle: styles mixed channel by channel, with partners from lists of indices and the same draws."""

import copy

import numpy as np
import pytest
import torch
from styles_problem import check_updates, fresh, layered_network, measure_style
from tiny_problem import domains, linear_network
from torch import Tensor

from domainwise.algorithms import MixStyle
from domainwise.networks import build_backbone

ALPHA = 0.7


def draw_partners(sizes: tuple[int, ...], mix: str, generator: torch.Generator) -> list[int]:
    domain = [index for index, size in enumerate(sizes) for _ in range(size)]
    if mix == "random" or len(set(domain)) == 1:
        return torch.randperm(len(domain), generator=generator).tolist()
    others = [[index for index, each in enumerate(domain) if each != own] for own in domain]
    places = torch.rand(len(domain), generator=generator).tolist()
    return [each[int(place * len(each))] for each, place in zip(others, places, strict=True)]


def restyle(features: Tensor, sizes: tuple[int, ...], generator: torch.Generator, mix: str = "random") -> Tensor:
    seed = torch.randint(2**62, (), generator=generator).item()
    weights = np.random.default_rng(seed).beta(ALPHA, ALPHA, size=len(features)).tolist()
    partners = draw_partners(sizes, mix, generator)
    changed = []
    for image, w, partner in zip(features, weights, partners, strict=True):
        for plane, other in zip(image, features[partner], strict=True):
            mean, deviation = (each.detach() for each in measure_style(plane))
            other_mean, other_deviation = (each.detach() for each in measure_style(other))
            content = (plane - mean) / deviation
            changed.append(content * (w * deviation + (1 - w) * other_deviation) + w * mean + (1 - w) * other_mean)
    return torch.stack(changed).reshape(features.shape)


@pytest.mark.parametrize("mix", ["random", "crossdomain"])
@pytest.mark.parametrize("sizes", [(5, 2, 3), (5, 0, 3), (1, 1, 0), (0, 3, 0), (1, 0, 0)])
def test_updates_follow_the_textbook(sizes: tuple[int, ...], mix: str) -> None:
    algorithm = fresh(MixStyle, layered_network(), alpha=ALPHA, mix=mix)
    check_updates(algorithm, sizes, lambda *given: restyle(*given, mix), count=2, probability=0.5)


@pytest.mark.parametrize("stages", [1, 3, None])
def test_stages_are_counted_from_the_input(stages: int | None) -> None:
    algorithm = fresh(MixStyle, layered_network(), alpha=ALPHA, stages=stages, probability=0.8)
    check_updates(algorithm, (5, 2, 3), restyle, count=stages or 3, probability=0.8)


def test_without_maps_the_images_change() -> None:
    network = linear_network()
    algorithm = fresh(MixStyle, network, alpha=ALPHA, probability=1.0)
    before = copy.deepcopy(network)
    returned = algorithm.update(domains((5, 2, 3), 0))
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.cat(parts) for parts in zip(*domains((5, 2, 3), 0), strict=True))
    torch.rand((), generator=generator)  # decides whether the images change
    logits = before(restyle(x, (5, 2, 3), generator).clamp(0, 1))
    loss = sum(each.exp().sum().log() - each[label] for each, label in zip(logits, y, strict=True)) / len(y)
    assert returned == {"loss": pytest.approx(loss.item(), rel=1e-9)}


def test_partners_are_from_other_domains() -> None:
    algorithm = fresh(MixStyle, layered_network(), mix="crossdomain")
    domain = torch.tensor([0, 0, 1, 2, 2, 2])
    drawn = torch.stack([algorithm._draw_partners([2, 1, 3]) for _ in range(300)])
    assert (domain[drawn] != domain).all()
    for column, own in zip(drawn.T, domain, strict=True):
        others = (domain != own).nonzero().flatten()
        shares = torch.stack([(column == each).double().mean() for each in others])
        assert (shares - 1 / len(others)).abs().max() < 0.1


@pytest.mark.parametrize(
    ("hparams", "layers"),
    [
        ({}, ["layer1", "layer2"]),
        ({"stages": 3}, ["layer1", "layer2", "layer3"]),
        ({"stem": True}, ["maxpool", "layer1"]),
        ({"stages": None}, ["layer1", "layer2", "layer3"]),  # of 32 pixels, layer4 leaves one
    ],
)
def test_layers_of_a_resnet(hparams: dict[str, object], layers: list[str]) -> None:
    network = build_backbone("resnet18", (3, 32, 32), 3, dropout=0.0, batch_norm="frozen").float()
    algorithm = MixStyle(network, num_domains=1, **hparams)
    assert algorithm.layers == [f"model.{layer}" for layer in layers]


def test_half_precision() -> None:
    algorithm = fresh(MixStyle, layered_network().float(), probability=1.0)
    seen: list[torch.dtype] = []
    algorithm.network.featurizer[2].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        returned = algorithm.update([(x.float(), y) for x, y in domains((5, 2, 3), 0)])
    assert np.isfinite(returned["loss"])
    assert seen == [torch.bfloat16]


def test_a_compiled_network_changes_in_training_only() -> None:
    networks = layered_network(), layered_network()
    networks[1].featurizer.compile(backend="eager")
    x = domains((5,), 9)[0][0]
    algorithms = [fresh(MixStyle, network) for network in networks]
    for seed in range(4):
        first, second = (each.update(domains((5, 2, 3), seed)) for each in algorithms)
        assert first == pytest.approx(second, rel=1e-9)
        torch.testing.assert_close(*(each.predict(x) for each in algorithms))
