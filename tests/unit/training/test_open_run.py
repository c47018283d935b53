"""`open_run` returns the data that a run was trained on."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from domainwise.data import Dataset, Domain, silhouettes, silhouettes_spurious
from domainwise.data.batches import iterate_batches
from domainwise.errors import DomainwiseError
from domainwise.storage.run_folder import RunFolder
from domainwise.training import RunConfig, train
from domainwise.training.loading import load_model, open_run

SMALL = {"train_count": 60, "test_count": 40, "shifts": [0, 8]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = RunConfig(
        algorithm="uat",
        steps=2,
        batch_size=8,
        trial_seed=3,
        dataset_options=SMALL,
        output=tmp_path_factory.mktemp("r") / "run",
    )
    return train(config).folder


def test_a_loaded_model_has_the_names_of_its_classes(run: Path) -> None:
    model = load_model(run)
    assert model.classes == ("cow", "camel")
    assert "classes" not in model.state_dict()


class OwnNetwork(nn.Module):
    """A network with a layer named `classes`."""

    def __init__(self, size: int, num_classes: int) -> None:
        super().__init__()
        self.num_features = size
        self.featurizer = nn.Flatten()
        self.classes = nn.Linear(size, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classes(self.featurizer(x))
        return logits


def build_own_network(input_shape: Sequence[int], num_classes: int, dropout: float) -> nn.Module:
    return OwnNetwork(math.prod(input_shape), num_classes)


def test_a_layer_of_that_name_stays(tmp_path: Path) -> None:
    options = {"train_count": 20, "test_count": 10, "image_size": 16}
    config = RunConfig(
        algorithm="erm", network=build_own_network, steps=1, batch_size=2, dataset_options=options, output=tmp_path
    )
    assert isinstance(load_model(train(config).folder, network=build_own_network).classes, nn.Linear)


def test_the_data_gives_the_recorded_accuracy(run: Path) -> None:
    opened = open_run(run)
    model = opened.model("last")
    domain = opened.dataset.domains[opened.dataset.index("shift_8")]
    with torch.no_grad():
        right = sum(
            int((model(x).argmax(1) == y).sum())
            for x, y in iterate_batches(domain, opened.splits["shift_8"].main, torch.device("cpu"))
        )
    recorded = opened.records[-1]["accuracy"]["shift_8"]["main"]
    assert right / len(opened.splits["shift_8"].main) == recorded
    assert opened.roles.train == ("style_0", "style_1")
    assert opened.roles.test == ("shift_0", "shift_8")
    assert opened.roles.assignment == "fixed"


def test_the_algorithm_has_its_perturbation(run: Path) -> None:
    norms = open_run(run).algorithm().perturbation.delta().flatten(1).norm(dim=1)  # type: ignore[union-attr,operator]
    assert norms.tolist() == pytest.approx(open_run(run).records[-1]["perturbation"]["norm"], abs=1e-6)


def larger(seed: int = 0, *, train_count: int, test_count: int, shifts: list[float]) -> Dataset:
    return silhouettes(seed, train_count=train_count + 10, test_count=test_count, shifts=shifts)


def test_other_data_is_an_error(run: Path) -> None:
    with pytest.raises(DomainwiseError, match="unknown option"):
        open_run(run, dataset=silhouettes_spurious)
    with pytest.raises(DomainwiseError, match=r"domain_sizes is \[56, 56\], expected \[48, 48\]"):
        open_run(run, dataset=larger)


def test_chance_is_the_accuracy_of_the_best_constant_prediction(tmp_path: Path) -> None:
    """Class 0 is 3 of 4 images in one training domain and 1 of 8 in the other; the test domain does not count."""
    labels = {"a": [0, 0, 0, 1] * 5, "b": [0, 1, 1, 1, 2, 2, 1, 1] * 5, "c": [2] * 20}
    domains = tuple(
        Domain(name, torch.zeros(len(each), 3, 8, 8, dtype=torch.uint8), torch.tensor(each))
        for name, each in labels.items()
    )

    def skewed(seed: int = 0) -> Dataset:
        return Dataset("skewed", ("x", "y", "z"), domains, network="small_cnn")

    config = RunConfig(skewed, "erm", test_domains=("c",), steps=1, batch_size=2, output=tmp_path / "run")
    folder = RunFolder(train(config).folder)
    chance = folder.read_config()["data"]["chance"]
    assert chance == pytest.approx((1 / 4 + 5 / 8) / 2)
    # A run from before it was stored is still the same run.
    stored = json.loads(folder.config_file.read_text())
    del stored["data"]["chance"]
    folder.config_file.write_text(json.dumps(stored))
    assert train(config).folder == folder.path


def test_custom_dataset_must_be_passed(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text((run / "config.json").read_text().replace('"silhouettes"', '"os:getcwd"'))
    with pytest.raises(DomainwiseError, match="pass it with --dataset"):
        open_run(other)


def test_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match="no run in"):
        open_run(tmp_path)
