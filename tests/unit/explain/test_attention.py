"""Attention on the object: per image, per domain and per run, against values computed by hand."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from domainwise.data import Domain
from domainwise.errors import DomainwiseError
from domainwise.explain.attention import (
    Attention,
    compute_object_share,
    measure_attention,
    measure_object_attention,
    tabulate_attention,
)
from domainwise.explain.gradcam import compute_gradcam
from domainwise.networks import small_cnn
from domainwise.selection.statistics import Estimate
from domainwise.training import RunConfig, train
from domainwise.training.loading import open_run

CPU = torch.device("cpu")


def test_the_share_of_an_image() -> None:
    maps = torch.tensor([[[1.0, 0.5], [0.0, 0.5]], [[0.0, 0.0], [0.0, 0.0]], [[0.25, 0.0], [1.0, 0.0]]])
    masks = torch.tensor([[[True, False], [True, True]], [[True, True], [True, True]], [[False, True], [False, True]]])
    shares = compute_object_share(maps, masks)
    assert shares[[0, 2]].tolist() == pytest.approx([1.5 / 2, 0])
    assert math.isnan(shares[1].item())


class Bright(nn.Module):
    """A network whose map is the brightness of the image, evidence for one class and against the other."""

    def __init__(self) -> None:
        super().__init__()
        self.gray = nn.Conv2d(3, 1, 1, bias=False)
        nn.init.constant_(self.gray.weight, 1 / 3)

    def forward(self, x: Tensor) -> Tensor:
        bright = self.gray(x).mean((1, 2, 3))
        return torch.stack((bright, -bright), 1)


def build_bright_domain(masks: bool = True) -> Domain:
    """Return three 4 x 4 images: black, bright on the object only, and bright everywhere."""
    images = torch.zeros(3, 3, 4, 4, dtype=torch.uint8)
    on_object = torch.zeros(3, 4, 4, dtype=torch.bool)
    on_object[:, :2, :2] = True
    on_object[2, :, 2:] = True
    images[1, :, :2, :2] = 255
    images[2] = 255
    return Domain("bright", images, torch.tensor([0, 0, 1]), masks=on_object if masks else None)


def test_the_attention_on_a_domain() -> None:
    measured = measure_object_attention(Bright(), build_bright_domain(), torch.tensor([2, 0, 1]), CPU)
    # The black image has no heat; objects cover a quarter and three quarters of the others.
    assert measured == Attention(pytest.approx((1 + 0.75) / 2), pytest.approx((0.25 + 0.75) / 2), images=2, blank=1)


def test_indices_select_the_images() -> None:
    assert measure_object_attention(Bright(), build_bright_domain(), torch.tensor([1]), CPU).share == pytest.approx(1)
    only_black = measure_object_attention(Bright(), build_bright_domain(), torch.tensor([0]), CPU)
    assert (only_black.images, only_black.blank) == (0, 1)
    assert math.isnan(only_black.share)


def test_the_true_class_may_have_no_heat() -> None:
    measured = measure_object_attention(Bright(), build_bright_domain(), torch.tensor([1, 2]), CPU, target="true")
    assert (measured.images, measured.blank) == (1, 1)
    assert measured.share == pytest.approx(1)


def test_a_domain_without_masks_raises_an_error() -> None:
    with pytest.raises(DomainwiseError, match=r"^domain 'bright' has no object masks"):
        measure_object_attention(Bright(), build_bright_domain(masks=False), torch.tensor([1]), CPU)


def test_batches_give_the_mean_over_all_images() -> None:
    torch.manual_seed(0)
    images = torch.randint(256, (150, 3, 64, 64), dtype=torch.uint8)
    masks = torch.rand(150, 64, 64) < 0.3
    domain, network = (
        Domain("noise", images, torch.zeros(150, dtype=torch.int64), masks=masks),
        small_cnn((3, 64, 64), 2),
    )
    indices, reported = torch.randperm(150)[:110], []
    measured = measure_object_attention(
        network, domain, indices, CPU, on_progress=lambda what, done, total: reported.append((done, total))
    )
    maps = compute_gradcam(network, images[indices].float() / 255)
    shares = [
        (heat[mask].sum() / heat.sum()).item() for heat, mask in zip(maps, masks[indices], strict=True) if heat.any()
    ]
    assert measured.images == len(shares)
    assert measured.share == pytest.approx(sum(shares) / len(shares), rel=1e-4)
    assert len(reported) > 1
    assert reported[-1] == (110, 110)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"train_count": 60, "test_count": 40, "shifts": [0, 8]}
    output = tmp_path_factory.mktemp("runs") / "run"
    return train(
        RunConfig(algorithm="erm", steps=2, batch_size=8, dataset_options=options, output=output, device="cpu")
    ).folder


def test_a_run_is_measured_on_the_main_part_of_each_test_domain(run: Path) -> None:
    opened = open_run(run)
    measured = measure_attention(opened, CPU, which="last")
    assert list(measured) == ["shift_0", "shift_8"]
    domain = opened.dataset.domains[opened.dataset.index("shift_8")]
    assert measured["shift_8"] == measure_object_attention(
        opened.model("last"), domain, opened.splits["shift_8"].main, CPU
    )
    assert measured["shift_8"].images + measured["shift_8"].blank == 32


def attend(share: float, coverage: float = 0.2, images: int = 10, blank: int = 0) -> Attention:
    return Attention(share, coverage, images, blank)


def test_the_table_averages_over_runs() -> None:
    table = tabulate_attention(
        {
            "erm": [
                {"near": attend(0.2)},
                {"near": attend(0.4, blank=3), "far": attend(0.5, coverage=0.3)},
            ],
            "mat": [{"far": attend(0.6, coverage=0.1)}],
        }
    )
    assert table.domains == ("near", "far")
    # Standard deviation .1 over two runs.
    assert table.rows["erm"]["near"] == Estimate(pytest.approx(0.3), pytest.approx(0.1), 2)
    assert table.rows["erm"]["far"] == Estimate(0.5, None, 1)
    assert table.coverage == pytest.approx({"near": 0.2, "far": 0.2})
    assert table.blank == {"erm": (3, 33), "mat": (0, 10)}
    assert table.format_rows() == [
        ["erm", "30.0 ± 10.0", "50.0"],
        ["mat", "", "60.0"],
        ["uniform attention", "20.0", "20.0"],
    ]


def test_a_run_without_heat_is_left_out_of_the_mean() -> None:
    blank = attend(math.nan, coverage=math.nan, images=0, blank=10)
    table = tabulate_attention({"erm": [{"near": blank}, {"near": attend(0.4)}]})
    assert table.format_rows()[0] == ["erm", "40.0"]
    assert table.blank == {"erm": (10, 20)}
