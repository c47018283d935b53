"""torchattacks and foolbox: their attacks on the model of a run, and our perturbations as their attacks."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from attacked_network import SHAPE, count_correct, train_network
from domainwise import LowRankPerturbation, Perturbation, SampleWisePerturbation, UniversalPerturbation
from domainwise.fake_device import DEVICE, FakeDevice
from domainwise.training import RunConfig, train
from domainwise.training.loading import load_model, open_run

EPSILON = 12 / 255
LIBRARIES = ("torchattacks", "foolbox")


def perturb(kind: type[Perturbation], **settings: Any) -> Perturbation:
    generator = torch.Generator().manual_seed(0)
    shared: dict[str, Any] = {"epsilon": EPSILON, "norm": "linf", "ascent": "sign", "step_size": EPSILON / 4}
    return kind(SHAPE, generator=generator, **{**shared, **settings})


def attack_with(library: str, perturbation: Perturbation, *, steps: int = 1, is_fitted: bool = True) -> torch.Tensor:
    """Fit the perturbation on half of the images in the library, and return all images as it perturbs them."""
    pytest.importorskip(library)
    network, x, y = train_network()
    batches = [(x[:50], y[:50])] * (5 if is_fitted else 0)
    if library == "torchattacks":
        from domainwise.integrations.torchattacks import PerturbationAttack

        x_adv: torch.Tensor = PerturbationAttack(network, perturbation, steps=steps).fit(batches)(x, y)
        return x_adv
    import foolbox

    from domainwise.integrations.foolbox import PerturbationAttack as FoolboxAttack

    model = foolbox.PyTorchModel(network, bounds=(0, 1), device="cpu")
    attack = FoolboxAttack(perturbation, steps=steps).fit(model, batches)
    raw, clipped, is_adversarial = attack(model, x, y, epsilons=perturbation.epsilon)
    assert torch.allclose(raw, clipped, atol=1e-6)
    assert int(is_adversarial.sum()) == len(x) - count_correct(network, clipped, y)
    return raw


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [(UniversalPerturbation, {}), (LowRankPerturbation, {"rank": 2, "norm": "l2", "ascent": "normalized"})],
)
def test_a_kept_perturbation_is_fitted_and_added(
    library: str, kind: type[Perturbation], settings: dict[str, Any]
) -> None:
    network, x, y = train_network()
    expected = perturb(kind, **settings)
    for _ in range(5):
        expected.attack(x[:50], 0, lambda x: nn.functional.cross_entropy(network(x), y[:50], reduction="none"))
    x_adv = attack_with(library, perturb(kind, **settings))
    assert torch.allclose(x_adv, (x + expected.delta()).clamp(0, 1), atol=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_universal_perturbation_costs_accuracy_on_new_images(library: str) -> None:
    network, _, y = train_network()
    random, fitted = (
        attack_with(library, perturb(UniversalPerturbation), is_fitted=is_fitted) for is_fitted in (False, True)
    )
    assert count_correct(network, fitted[50:], y[50:]) < count_correct(network, random[50:], y[50:])
    assert not network.training


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_sample_wise_perturbation_is_computed_for_each_batch(library: str) -> None:
    network, x, y = train_network()
    x_adv = attack_with(library, perturb(SampleWisePerturbation), steps=20, is_fitted=False)
    expected = perturb(SampleWisePerturbation).attack(
        x, 0, lambda x: nn.functional.cross_entropy(network(x), y, reduction="none"), 20
    )
    assert torch.equal(x_adv, expected)


def test_a_perturbation_follows_the_model_to_another_device() -> None:
    pytest.importorskip("torchattacks")
    from domainwise.integrations.torchattacks import PerturbationAttack

    network, x, y = train_network()
    attack = PerturbationAttack(network, perturb(UniversalPerturbation)).fit([(x, y)])
    expected = attack(x, y)
    with FakeDevice():
        attack.set_model(copy.deepcopy(network).to(DEVICE))
        attack.set_device(DEVICE)
        x_adv = attack(x.to(DEVICE), y.to(DEVICE)).cpu()
    assert torch.equal(x_adv, expected)


def test_wrong_arguments_raise_an_error() -> None:
    pytest.importorskip("torchattacks")
    foolbox = pytest.importorskip("foolbox")
    from domainwise.integrations.foolbox import PerturbationAttack as FoolboxAttack
    from domainwise.integrations.torchattacks import PerturbationAttack

    network, x, y = train_network()
    with pytest.raises(TypeError, match="perturbation must be a Perturbation"):
        PerturbationAttack(network, network)  # type: ignore[arg-type]
    model = foolbox.PyTorchModel(network, bounds=(0, 1), device="cpu")
    with pytest.raises(ValueError, match="needs the criterion Misclassification"):
        FoolboxAttack(perturb(UniversalPerturbation))(
            model, x, foolbox.criteria.TargetedMisclassification(y), epsilons=EPSILON
        )


def test_torchattacks_works_on_the_model_of_a_run(tmp_path: Path) -> None:
    """A model of a run maps images in [0, 1] to logits, and normalizes by itself."""
    torchattacks = pytest.importorskip("torchattacks")
    options = {"train_count": 60, "test_count": 40, "shifts": [0, 8]}
    run = train(RunConfig(steps=20, batch_size=16, dataset_options=options, output=tmp_path / "erm", device="cpu"))
    model, domain = load_model(run.folder), open_run(run.folder).dataset.domains[0]
    x, y = domain.images[:40].float() / 255, domain.labels[:40]
    x_adv = torchattacks.PGD(model, eps=4 / 255, alpha=1 / 255, steps=5)(x, y)
    assert (x_adv - x).abs().amax() <= 4 / 255 + 1e-6
    with torch.no_grad():
        before, after = (nn.functional.cross_entropy(model(images), y) for images in (x, x_adv))
    assert after > before
