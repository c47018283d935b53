"""On a GPU: no tensor stays on the CPU, and the host does not wait for the device. The GPU is a fake one."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from contract_problem import FROM_THE_START
from test_state import CASES
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise import RunConfig, train
from domainwise.algorithms import ALGORITHMS, ERM
from domainwise.algorithms.base import Batches, Measurements
from domainwise.averaging import AVERAGES, build_average
from domainwise.data.augmentation import augment_batch
from domainwise.data.strong_augmentation import augment_strongly
from domainwise.explain.gradcam import compute_gradcam, find_target_layer
from domainwise.fake_device import DEVICE, DeviceMixError, FakeDevice
from domainwise.perturbations import (
    LowRankPerturbation,
    MultiplePerturbation,
    Perturbation,
    SampleWisePerturbation,
    UniversalPerturbation,
)
from domainwise.testing import SHAPE, check_device, random_batches, random_network

# How often one update may wait for the device, and why it must.
METHOD_WAITS = {
    "adrmx": (1, "pairs are drawn on the host by the samples' labels"),
    "cad": (1, "samples without a neighbour are left out, so sizes depend on the labels"),
    "condcad": (1, "as CAD"),
    "eqrm": (2, "the losses of the domains are bisected on the host in double precision; their gradient goes back"),
    "gut": (2, "copies of images and their labels are kept in main memory"),
    "ldat": (1, "torch checks on the host that the eigenvectors have converged"),
}
SETTING_WAITS = {
    ("ldat", "solver", "factors"): (0, "it has no eigenvectors"),
    ("at", "rank", 2): (2, "eigenvectors, of the start and of the step"),
    ("mat", "weights", "subspace"): (4, "per domain, its own gradients and their eigenvectors"),
}


def allowed_waits(name: str, hparams: dict[str, Any]) -> int:
    settings = [SETTING_WAITS[name, *item] for item in hparams.items() if (name, *item) in SETTING_WAITS]
    count, _ = settings[0] if settings else METHOD_WAITS.get(name, (0, ""))
    return count


@pytest.mark.parametrize(("name", "hparams"), CASES)
def test_every_method_runs_on_a_gpu_without_waiting_for_it(name: str, hparams: dict[str, Any]) -> None:
    hparams = {**FROM_THE_START.get(name, {}), **hparams}
    check_device(ALGORITHMS[name], allowed_waits(name, hparams), **hparams)


PERTURBATIONS: list[tuple[type[Perturbation], dict[str, Any], int]] = [
    (UniversalPerturbation, {}, 0),
    (UniversalPerturbation, {"norm": "linf", "mean": [0.5] * 3, "std": [0.2] * 3, "loss_cap": 1.0}, 0),
    (UniversalPerturbation, {"bounds": (torch.zeros(3, 1, 1), torch.ones(3, 1, 1)), "reduction": "sum"}, 0),
    (SampleWisePerturbation, {}, 0),
    (SampleWisePerturbation, {"start": "cube", "norm": "linf"}, 0),
    # Of each domain, whether it has samples, and which: read, written, and the gradient's.
    (SampleWisePerturbation, {"over": "domain"}, 8),
    (SampleWisePerturbation, {"rank": 2}, 2),
    (LowRankPerturbation, {"rank": 3}, 1),
    (LowRankPerturbation, {"rank": 3, "solver": "factors"}, 0),
    *((MultiplePerturbation, {"weights": each}, 0) for each in ("assigned", "soft", "domain", "sample")),
    (MultiplePerturbation, {"weights": "subspace"}, 4),
]


@pytest.mark.parametrize(("kind", "settings", "max_waits"), PERTURBATIONS)
def test_every_perturbation_runs_on_a_gpu(kind: type[Perturbation], settings: dict[str, Any], max_waits: int) -> None:
    def perturb(device: torch.device, waits: Callable[[], int]) -> tuple[list[Tensor], int]:
        perturbation = kind(
            SHAPE, epsilon=0.5, num_domains=2, generator=torch.Generator().manual_seed(0), **settings
        ).to(device)
        perturbation.trust_inputs_()
        ((x, y),) = random_batches(7)
        x, y, domain = x.to(device), y.to(device), torch.tensor([0, 0, 0, 0, 1, 1, 1]).to(device)
        before = waits()
        perturbed = [perturbation.attack(x, domain, lambda x: (x.mean((2, 3)) * F.one_hot(y, 3)).sum(1))]
        attacked = waits() - before
        if perturbation.is_kept:
            perturbed.append(perturbation(x, domain))
            perturbed[-1].square().sum().backward()
            perturbation.ascend_()
            perturbed.append(perturbation.delta())
        return [each.detach().cpu() for each in perturbed], attacked

    expected, _ = perturb(torch.device("cpu"), lambda: 0)
    with FakeDevice() as gpu:
        perturbed, waits = perturb(DEVICE, gpu.waits.total)
    assert waits <= max_waits, gpu.waits
    torch.testing.assert_close(perturbed, expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("augment", [augment_batch, augment_strongly])
def test_augmentation_runs_on_a_gpu_without_waiting_for_it(
    dtype: torch.dtype, channels: int, augment: Callable[[Tensor, torch.Generator], Tensor]
) -> None:
    images = torch.randint(256, (60, channels, 20, 20), generator=torch.Generator().manual_seed(0))
    images = images.to(dtype) if dtype == torch.uint8 else images / 255
    expected = augment(images, torch.Generator().manual_seed(0))
    with FakeDevice() as gpu:
        on_device = images.to(DEVICE)
        gpu.waits.clear()
        views = augment(on_device, torch.Generator().manual_seed(0))
        assert not gpu.waits
        views = views.cpu()
    # On the CPU, bytes are resized by another kernel, which rounds to bytes.
    difference = (views - expected).abs()
    if augment is augment_strongly and dtype == torch.uint8:
        difference = difference.quantile(0.98)  # a byte may be the other side of a threshold
    assert difference.max() < (0.02 if dtype == torch.uint8 else 1e-6)


@pytest.mark.parametrize("name", AVERAGES)
@pytest.mark.parametrize("is_moved", [True, False])
def test_averages_of_weights_run_on_a_gpu_without_waiting_for_it(name: str, is_moved: bool) -> None:
    def average(device: torch.device, waits: Callable[[], int]) -> tuple[dict[str, Tensor], int]:
        torch.manual_seed(0)
        network = random_network()
        averaged = None if is_moved else build_average(name, network.to(device))
        averaged = averaged or build_average(name, network).to(device)
        network.to(device)
        before = waits()
        for _ in range(3):
            for tensor in (*network.parameters(), *network.buffers()):
                tensor.detach().add_(1)
            averaged.update_(network, lambda: 1.0)
        taken = waits() - before
        return {key: each.cpu() for key, each in averaged.averaged_network().state_dict().items()}, taken

    expected, _ = average(torch.device("cpu"), lambda: 0)
    with FakeDevice() as gpu:
        weights, waits = average(DEVICE, gpu.waits.total)
    assert waits == 0, gpu.waits
    torch.testing.assert_close(weights, expected)


def test_gradcam_runs_on_a_gpu() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    ((x, y),) = random_batches(5)
    expected = [compute_gradcam(network, x), compute_gradcam(network, x, y, "0")]
    with FakeDevice() as gpu:
        network.to(DEVICE)
        on_device, layer = x.to(DEVICE), find_target_layer(network, SHAPE)
        gpu.waits.clear()
        maps = [compute_gradcam(network, on_device, layer=layer)]
        assert not gpu.waits
        # Classes may come from the CPU.
        maps.append(compute_gradcam(network, on_device, y, "0"))
        maps = [each.cpu() for each in maps]
    torch.testing.assert_close(maps, expected)


SMALL: dict[str, Any] = {
    "dataset_options": {"image_size": 16, "train_count": 60, "test_count": 20, "shifts": (0, 8)},
    "record_every": 12,
    "batch_size": 8,
    "threads": 1,
}


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "erm", "steps": 25},
        {"algorithm": "mat", "steps": 12, "augment": True, "attack_radius": 0.5, "average": "sma"},
        {"algorithm": "erm", "steps": 12, "attack_radius": 0.5, "metrics": ("macro_f1", "ece", "confusion")},
        {"algorithm": "erm", "steps": 12, "lr_schedule": "plateau", "probe_steps": 2, "sam": True},
    ],
    ids=lambda settings: str(settings["algorithm"]),
)
def test_a_run_waits_for_the_gpu_only_to_record_and_every_tenth_update(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """Batches, updates and averages in the loop of the trainer; evaluation, weights and the checkpoint at records."""
    config = {**SMALL, **settings}
    expected = train(RunConfig(**config, device="cpu", output=tmp_path / "cpu")).records
    waits: list[int] = []
    with FakeDevice() as gpu:

        def note(step: int, loss: float) -> None:
            waits.append(gpu.waits.total())

        result = train(RunConfig(**config, device="cuda", output=tmp_path / "gpu"), on_step=note)
    steps = range(2, config["steps"] + 1)
    waiting = [step for step, (before, after) in zip(steps, pairwise(waits), strict=True) if after > before]
    # The 13th update is recorded, which is done after the call for it.
    assert waiting == [step for step in steps if step in (10, 13, 14, 20, config["steps"])]
    for record, other in zip(result.records, expected, strict=True):
        assert record["step"] == other["step"]
        assert record["loss"] == pytest.approx(other["loss"], rel=1e-2 if "augment" in settings else 1e-5)


def test_a_run_that_diverges_on_a_gpu_names_the_update(tmp_path: Path) -> None:
    config = {**SMALL, "algorithm": "erm", "steps": 40, "hparams": {"lr": 1e30}}
    errors = []
    with pytest.raises(ValueError, match="training diverged") as error:
        train(RunConfig(**config, device="cpu", output=tmp_path / "cpu"))
    errors.append(str(error.value))
    with FakeDevice(), pytest.raises(ValueError, match="training diverged") as error:
        train(RunConfig(**config, device="cuda", output=tmp_path / "gpu"))
    errors.append(str(error.value))
    assert errors[0] == errors[1]


class Reading(ERM):
    """Reads the loss in every update."""

    def update(self, batches: Batches) -> Measurements:
        return Measurements(**super().update(batches))


def test_a_read_in_the_update_fails_the_check_if_none_is_allowed() -> None:
    check_device(Reading)
    with pytest.raises(AssertionError, match=r"waits 1 times for the device, more than 0: _to_copy in base.py:\d+"):
        check_device(Reading, max_waits=0)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x.cpu().numpy(),
        lambda x: bool((x > 0).all()),
        lambda x: x[x > 0],
        lambda x: x.masked_fill(x > 0, 1.0).unique(),
        lambda x: (x > 0).nonzero(),
        lambda x: torch.tensor([1.0], device=x.device),
        lambda x: torch.ones(3).to(x),
        lambda x: x.copy_(torch.ones(3)),
        lambda x: torch.linalg.eigh(x.outer(x)),
    ],
)
def test_the_fake_gpu_counts_what_waits(use: Callable[[Tensor], object]) -> None:
    with FakeDevice() as gpu:
        x = torch.arange(3.0, device=DEVICE)
        assert not gpu.waits
        use(x)
        assert gpu.waits.total() == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.stack([x.sum(), torch.tensor(1.0)]),
        lambda x: x[torch.tensor([0, 1])],
        lambda x: torch.rand(3, generator=torch.Generator(), device=x.device),
        lambda x: x.normal_(generator=torch.Generator()),
        lambda x: nn.Linear(3, 1)(x),
    ],
)
def test_the_fake_gpu_refuses_tensors_of_two_devices(use: Callable[[Tensor], object]) -> None:
    with FakeDevice(), pytest.raises(DeviceMixError):
        use(torch.arange(3.0, device=DEVICE))


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x * torch.tensor(2.0),
        lambda x: torch.where(x > 0, x, 0.0).masked_fill(x > 1, 2.0),
        lambda x: x.index_select(0, torch.arange(2, device=x.device)),
        lambda x: torch.ones(3).to(x.device, non_blocking=True),
        lambda x: torch.zeros_like(x).scatter_(0, x.argsort(), 1.0),
    ],
)
def test_the_fake_gpu_allows_what_a_gpu_does_without_waiting(use: Callable[[Tensor], Tensor]) -> None:
    with FakeDevice() as gpu:
        result = use(torch.arange(3.0, device=DEVICE))
        assert not gpu.waits
        assert result.device == DEVICE
        with pytest.raises(RuntimeError):
            result.numpy()
