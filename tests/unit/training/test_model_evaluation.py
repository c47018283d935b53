"""Accuracy on new data, against a computation by hand."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from domainwise.errors import DomainwiseError
from domainwise.training import RunConfig, evaluate_models, load_model, train
from domainwise.training.metrics import Predictions, compute_metrics
from domainwise.training.model_evaluation import Count
from easy_images import write_easy_images

pytestmark = pytest.mark.filterwarnings("ignore:domain 'dawn' of .* has no image of class 'green'")
NEW = ("dusk", "dawn")
FEW = {"train_count": 10, "test_count": 4}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOMAINWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    config = RunConfig(
        write_easy_images(folder / "colors", count=10),
        algorithm="erm",
        network="small_cnn",
        augment=False,
        test_domains=("light",),
        dataset_options={"image_size": 16},
        steps=4,
        batch_size=4,
        device="cpu",
        threads=1,
        output=folder / "run",
    )
    return train(config).folder


def write_images(folder: Path, counts: dict[str, int], seed: int) -> None:
    """Write random images that no model classifies perfectly."""
    generator = np.random.default_rng(seed)
    for label, count in counts.items():
        (folder / label).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(generator.integers(0, 256, (16, 16, 3), np.uint8)).save(folder / label / f"{number}.png")


@pytest.fixture(scope="module")
def new_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new")
    write_images(folder / "dusk", {"green": 5, "red": 7}, seed=0)
    write_images(folder / "dawn", {"red": 6}, seed=1)
    return folder


def count_by_hand(run: Path, folder: Path, which: Any = "best") -> dict[str, tuple[int, int]]:
    """Return correct and all images by class."""
    model = load_model(run, which)
    counts = {}
    for place in sorted(folder.iterdir()):
        pixels = np.stack([np.asarray(Image.open(file)) for file in sorted(place.iterdir())])
        with torch.no_grad():
            predicted = model(torch.tensor(pixels).permute(0, 3, 1, 2) / 255).argmax(1)
        counts[place.name] = sum(model.classes[index] == place.name for index in predicted), len(pixels)
    return counts


@pytest.mark.parametrize("which", ["best", "last"])
def test_counts_by_domain_and_class_equal_those_by_hand(run: Path, new_data: Path, which: Any) -> None:
    (result,) = evaluate_models([run], new_data, which=which, device="cpu")
    by_hand = {name: count_by_hand(run, new_data / name, which) for name in NEW}
    assert {
        domain: {label: (count.correct, count.images) for label, count in classes.items()}
        for domain, classes in result.counts.items()
    } == by_hand
    assert 0 < result.total.correct < result.total.images == 18
    assert result.by_domain["dawn"] == Count(*by_hand["dawn"]["red"])
    assert result.by_class["red"].correct == by_hand["dawn"]["red"][0] + by_hand["dusk"]["red"][0]
    assert (result.run, result.which, result.trained_on, result.ignored) == (str(run), which, (), {})
    plain = result.as_dict()
    assert plain["accuracy"] == sum(right for each in by_hand.values() for right, _ in each.values()) / 18
    assert plain["domains"]["dusk"]["classes"]["green"]["images"] == 5
    assert plain["classes"]["red"]["images"] == 13


def test_the_standard_error_is_binomial() -> None:
    # At (30 + 1) / (40 + 2).
    assert Count(30, 40).error == pytest.approx((31 / 42 * 11 / 42 / 40) ** 0.5)
    assert 0 < Count(40, 40).error < Count(4, 4).error


def test_a_single_folder_of_classes_and_a_csv_file(run: Path, new_data: Path, tmp_path: Path) -> None:
    (whole,) = evaluate_models([run], new_data, domains=["dusk"], device="cpu")
    (single,) = evaluate_models([run], new_data / "dusk", device="cpu")
    assert single.counts == whole.counts
    assert (single.dataset, whole.dataset) == ("dusk", new_data.name)
    rows = [f"{file},{file.parent.name},dusk" for file in sorted((new_data / "dusk").rglob("*.png"))]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label,domain", *rows]))
    (listed,) = evaluate_models([run], tmp_path / "labels.csv", device="cpu")
    assert listed.counts == whole.counts


def test_classes_are_matched_by_name(run: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "data" / "noon", {"blue": 3, "red": 4}, seed=2)
    message = (
        "does not have the classes blue of data, only green, red; rename them, or leave out their images with "
        "--ignore-unknown-classes"
    )
    with pytest.raises(DomainwiseError, match=message):
        evaluate_models([run], tmp_path / "data", device="cpu")
    (result,) = evaluate_models([run], tmp_path / "data", ignore_unknown_classes=True, device="cpu")
    assert result.ignored == {"blue": 3}
    right, images = count_by_hand(run, tmp_path / "data" / "noon")["red"]
    assert result.counts == {"noon": {"red": Count(right, images)}}
    write_images(tmp_path / "other" / "noon", {"blue": 3, "brown": 3}, seed=2)
    with pytest.raises(DomainwiseError, match="has none of the classes of other, only green, red"):
        evaluate_models([run], tmp_path / "other", ignore_unknown_classes=True, device="cpu")


def test_runs_below_a_folder_and_domains_that_a_run_was_trained_on(run: Path) -> None:
    done: list[tuple[int, int]] = []
    (result,) = evaluate_models(
        [run.parent],
        run.parent / "colors",
        device="cpu",
        on_progress=lambda task, count, total: done.append((count, total)) if "evaluating" in task else None,
    )
    assert result.run == str(run)
    assert result.trained_on == ("dark", "dim")
    assert done[-1] == (60, 60)


def test_a_model_of_one_channel_sees_the_mean_of_three(tmp_path: Path, new_data: Path) -> None:
    config = RunConfig(
        gray_data, algorithm="erm", network="small_cnn", test_domains=("b",), steps=1, batch_size=2, output=tmp_path
    )
    run = train(config).folder
    (result,) = evaluate_models([run], new_data / "dusk", device="cpu")
    model = load_model(run)
    pixels = [np.asarray(Image.open(file)) for file in sorted((new_data / "dusk" / "red").iterdir())]
    gray = (torch.tensor(np.stack(pixels)).permute(0, 3, 1, 2) / 255).mean(1, keepdim=True)
    with torch.no_grad():
        assert result.by_class["red"].correct == int((model(gray).argmax(1) == 1).sum())


def gray_data(seed: int) -> Any:
    from domainwise.data import Dataset, Domain

    images, labels = torch.zeros(10, 1, 16, 16, dtype=torch.uint8), torch.arange(10) % 2
    return Dataset("gray", ("green", "red"), (Domain("a", images, labels), Domain("b", images, labels)))


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        ("{new}", {"domains": ["dusc"]}, "unknown domain of .* 'dusc'; did you mean 'dusk'"),
        ("{new}/nothing", {}, "nothing not found; expected a folder of images"),
        ("{new}", {"which": "newest"}, "unknown model of a run 'newest'"),
        ("silhouettes", {"options": FEW}, "does not have the classes cow, camel of silhouettes, only green, red"),
        (
            "silhouettes",
            {"options": {"image_size": 32, **FEW}},
            "inputs of shape .*16, 16.*, and silhouettes has .*32, 32",
        ),
    ],
)
def test_errors(run: Path, new_data: Path, dataset: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        evaluate_models([run], dataset.format(new=new_data), device="cpu", **options)


def test_each_of_several_runs_is_evaluated_once(run: Path, new_data: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "copy")
    first, second = evaluate_models([run, tmp_path / "copy", run.parent], new_data, which="last", device="cpu")
    assert (first.run, second.run) == (str(run), str(tmp_path / "copy"))
    assert first.counts == second.counts
    (tmp_path / "copy" / "best.safetensors").unlink()
    with pytest.raises(DomainwiseError, match=r"no run in .* has best\.safetensors yet"):
        evaluate_models([tmp_path], new_data, device="cpu")


@pytest.fixture(scope="module")
def imagenet_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "shufflenet.pth"
    model = torchvision.models.shufflenet_v2_x0_5()
    # Statistics and a last layer that let predictions depend on the image.
    for part in model.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = 1.0
    with torch.no_grad():
        model(torch.randn(8, 3, 224, 224))
        model.fc.weight.mul_(50)
    torch.save(model.state_dict(), file)
    return file


@pytest.fixture(scope="module")
def imagenet_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 30 x 50 pixels at root/domain/WordNet id."""
    root, generator = tmp_path_factory.mktemp("variant"), np.random.default_rng(0)
    for domain in ("art", "photo"):
        for kind in ("n01440764", "n01443537", "n01484850"):
            (root / domain / kind).mkdir(parents=True)
            for number in range(4):
                image = Image.fromarray(generator.integers(0, 256, (6, 10, 3), np.uint8)).resize((50, 30))
                image.save(root / domain / kind / f"{number}.png")
    return root


@pytest.mark.parametrize("is_restricted", [False, True])
def test_published_classifiers_equal_torchvisions_own_pipeline(
    imagenet_weights: Path, imagenet_folder: Path, is_restricted: bool
) -> None:
    name = "shufflenet_v2_x0_5"
    (result,) = evaluate_models(
        [f"torchvision:{name}"],
        imagenet_folder,
        weights=imagenet_weights,
        only_dataset_classes=is_restricted,
        metrics=("ece", "confusion"),
        device="cpu",
    )
    model = torchvision.models.get_model(name)
    model.load_state_dict(torch.load(imagenet_weights, weights_only=True))
    prepare = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    files = sorted((imagenet_folder / "photo").rglob("*.png"))
    # The first three classes of ImageNet have these ids.
    truth = torch.arange(3).repeat_interleave(4)
    with torch.no_grad():
        logits = model.eval()(torch.stack([prepare(Image.open(file)) for file in files]))
    logits = logits[:, :3] if is_restricted else logits
    confidence, predicted = logits.softmax(1).max(1)
    assert len(predicted.unique()) > 1
    expected = torch.zeros(1000, 1000, dtype=torch.int64).index_put((truth, predicted), torch.ones(12).long(), True)
    assert result.metrics["photo"]["confusion"] == expected.tolist()
    assert result.by_domain["photo"] == Count(int((predicted == truth).sum()), 12)
    by_hand = compute_metrics(["ece"], Predictions(truth, predicted, confidence), 1000)["ece"]
    assert result.metrics["photo"]["ece"] == pytest.approx(by_hand, abs=1e-3)
    assert (result.which, result.extra_classes) == (None, 0 if is_restricted else 997)


def test_runs_can_be_restricted_to_the_classes_of_the_data(run: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "new", {"red": 20, "blue": 1}, seed=2)
    free, restricted = (
        evaluate_models(
            [run], tmp_path / "new", ignore_unknown_classes=True, only_dataset_classes=is_restricted, device="cpu"
        )[0]
        for is_restricted in (False, True)
    )
    assert free.total.correct < restricted.total.correct == 20


def test_errors_of_published_classifiers(run: Path, imagenet_weights: Path, new_data: Path) -> None:
    name = "torchvision:shufflenet_v2_x0_5"
    with pytest.raises(DomainwiseError, match=r"does not have the classes green, red of .*n01592084 \(\+980 more\)"):
        evaluate_models([name], new_data, weights=imagenet_weights, device="cpu")
    with pytest.raises(DomainwiseError, match="silhouettes is not made of image files: a published classifier has"):
        evaluate_models([name], "silhouettes", weights=imagenet_weights, device="cpu")
    with pytest.raises(DomainwiseError, match="cannot have an image_size here"):
        evaluate_models([name], new_data, weights=imagenet_weights, options={"image_size": 32}, device="cpu")
    with pytest.raises(DomainwiseError, match="weights apply to torchvision: and timm: models only"):
        evaluate_models([run], new_data, weights=imagenet_weights, device="cpu")
