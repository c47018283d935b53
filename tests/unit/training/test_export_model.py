"""Exported models give the probabilities of `predict_images` for image files of any size."""

import io
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from tiny_runs import DATA, tiny_run
from torch import Tensor, nn

from domainwise import DomainwiseError, RunConfig, export_model, load_model, train
from domainwise.data import Dataset, Domain, silhouettes
from domainwise.data.decoding import decode_image
from domainwise.networks import Network
from domainwise.storage.run_folder import RunFolder
from domainwise.training.export import PillowResize
from domainwise.training.prediction import predict_images

# Width and height: larger and smaller than the model's input, wide and tall, odd, one pixel, and of its very size.
SIZES = ((640, 480), (97, 301), (301, 97), (16, 16), (5, 7), (1, 40), (40, 1), (1, 1), (33, 16))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run(tmp_path_factory.mktemp("runs") / "run", steps=60, hparams={"lr": 0.003}).folder


@pytest.fixture(scope="module")
def files(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exported")
    export_model(run, onnx=folder / "model.onnx", pt2=folder / "model.pt2")
    return {"onnx": folder / "model.onnx", "pt2": folder / "model.pt2"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with a different picture of each size, one of them in gray and one with losses."""
    folder = tmp_path_factory.mktemp("photos")
    images = silhouettes(0, **DATA).domains[0].images
    for number, (width, height) in enumerate(SIZES):
        animal = Image.fromarray(images[number].permute(1, 2, 0).contiguous().numpy())
        image = animal.resize((width, height), Image.Resampling.BICUBIC)
        image = image.convert("L") if number == 4 else image
        image.save(folder / f"{number}.{'jpg' if number == 0 else 'png'}")
    return folder


def read_pixels(file: Path) -> np.ndarray[Any, Any]:
    """What anyone has to do who deploys an exported model: decode."""
    return np.asarray(Image.open(file).convert("RGB"))[None]


Predict = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


def open_onnx(file: Path) -> Predict:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return lambda images: np.asarray(session.run(["probabilities"], {"images": images})[0])


def open_pt2(file: Path) -> Predict:
    module = torch.export.load(file).module()
    return lambda images: np.asarray(module(torch.from_numpy(images.copy())).detach())


OPENERS = {"onnx": open_onnx, "pt2": open_pt2}


@pytest.fixture(scope="module")
def predictors(files: dict[str, Path]) -> dict[str, Predict]:
    return {kind: OPENERS[kind](file) for kind, file in files.items()}


@pytest.mark.parametrize("size", [1, 2, 7, 16, 28, 33, 64, 224])
def test_images_are_resized_to_the_bytes_of_pillow(size: int) -> None:
    draw = np.random.default_rng(size)
    sides = [1, 2, 3, size, 2 * size, 5 * size // 2 + 1, *draw.integers(1, 400, 4).tolist()]
    resize = PillowResize(size)
    for height in sides:
        for width in draw.choice(sides, 3).tolist():
            pixels = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
            # Contrast without which rounding and clipping would hardly be tested.
            pixels[draw.random((height, width)) < 0.3] = 255
            content = io.BytesIO()
            Image.fromarray(pixels).save(content, "PNG", compress_level=0)
            expected = np.frombuffer(decode_image(content.getvalue(), size).pixels or b"", np.uint8)
            resized = resize(torch.from_numpy(pixels)[None])[0].permute(1, 2, 0).numpy()
            np.testing.assert_array_equal(resized, expected.reshape(size, size, 3), err_msg=f"{width} x {height}")


def test_files_have_the_probabilities_of_predict(run: Path, predictors: dict[str, Predict], photos: Path) -> None:
    predictions = predict_images(run, [photos], device="cpu")
    assert len(predictions) == len(SIZES)
    expected = np.array([list(each.probabilities.values()) for each in predictions])
    assert np.ptp(expected[:, 0]) > 0.1, "the pictures must differ for the model"
    for each, row in zip(predictions, expected, strict=True):
        for kind, predict in predictors.items():
            np.testing.assert_allclose(predict(read_pixels(each.file)), row[None], atol=1e-5, err_msg=kind)


@pytest.mark.parametrize("kind", OPENERS)
def test_batches_have_one_row_per_image(kind: str, predictors: dict[str, Predict]) -> None:
    images = np.random.default_rng(1).integers(0, 256, (5, 20, 50, 3), dtype=np.uint8)
    predict = predictors[kind]
    together = predict(images)
    apart = np.concatenate([predict(image[None]) for image in images])
    assert together.shape == (5, 2)
    np.testing.assert_allclose(together, apart, atol=1e-6)


def test_files_say_what_they_are(files: dict[str, Path]) -> None:
    model = onnx.load(files["onnx"])
    facts = {each.key: each.value for each in model.metadata_props}
    assert json.loads(facts["classes"]) == ["cow", "camel"]
    assert facts["run"] == "run"
    assert facts["input"].startswith("uint8 images (batch, height, width, 3), RGB")
    (images,), (probabilities,) = model.graph.input, model.graph.output
    assert [each.dim_param or each.dim_value for each in images.type.tensor_type.shape.dim] == [
        *("batch", "height", "width", 3),
    ]
    assert [each.dim_param or each.dim_value for each in probabilities.type.tensor_type.shape.dim] == ["batch", 2]
    extra = {"classes.txt": "", "domainwise.txt": ""}
    torch.export.load(files["pt2"], extra_files=extra)
    assert json.loads(extra["classes.txt"]) == ["cow", "camel"]


@pytest.mark.parametrize("kind", OPENERS)
def test_files_contain_no_paths_of_this_machine(kind: str, files: dict[str, Path], run: Path) -> None:
    content = files[kind].read_bytes()
    for path in (Path(torch.__file__).parents[1], Path(__file__).parents[3], run.parent):
        assert str(path).encode() not in content


def test_a_second_export_gives_the_same_bytes_in_place_of_the_first(run: Path, files: dict[str, Path]) -> None:
    before = {kind: file.read_bytes() for kind, file in files.items()}
    for file in files.values():
        file.write_bytes(b"an older model")
    for result, (kind, file) in zip(export_model(run, **files), files.items(), strict=True):  # type: ignore[arg-type]
        assert file.read_bytes() == before[kind]
        assert (result.path, result.size) == (file, len(before[kind]))
        assert result.difference < 1e-5
        assert sorted(each.name for each in file.parent.iterdir()) == ["model.onnx", "model.pt2"]


def test_the_last_model_is_another_one(run: Path, predictors: dict[str, Predict], photos: Path, tmp_path: Path) -> None:
    other = RunFolder(shutil.copytree(run, tmp_path / "run"))
    state = other.read_weights("last")
    other.write_weights("last", {**state, "classifier.bias": state["classifier.bias"] + torch.tensor([2.0, 0.0])})
    export_model(other.path, pt2=tmp_path / "last.pt2", which="last")
    (prediction,) = predict_images(other.path, [photos / "1.png"], which="last", device="cpu")
    probabilities = open_pt2(tmp_path / "last.pt2")(read_pixels(photos / "1.png"))
    np.testing.assert_allclose(probabilities[0], list(prediction.probabilities.values()), atol=1e-5)
    assert np.abs(probabilities - predictors["pt2"](read_pixels(photos / "1.png"))).max() > 0.01


def channels(seed: int, count: int = 24, channels: int = 1) -> Dataset:
    generator = torch.Generator().manual_seed(seed)
    domains = [
        Domain(
            name,
            torch.randint(256, (count, channels, 12, 12), dtype=torch.uint8, generator=generator),
            torch.randint(3, (count,), generator=generator),
        )
        for name in ("a", "b", "c")
    ]
    return Dataset("channels", ("x", "y", "z"), tuple(domains), steps=2)


def train_on_channels(output: Path, count: int, **settings: Any) -> Path:
    config = RunConfig(
        dataset=channels,
        dataset_options={"channels": count},
        algorithm="erm",
        test_domains=("c",),
        batch_size=4,
        output=output,
        device="cpu",
        **settings,
    )
    return train(config).folder


def test_one_channel_is_the_mean_of_the_colors(tmp_path: Path, photos: Path) -> None:
    run = train_on_channels(tmp_path / "run", 1, network="mlp")
    files = {kind: tmp_path / f"model.{kind}" for kind in OPENERS}
    export_model(run, **files)  # type: ignore[arg-type]
    predictors = {kind: OPENERS[kind](file) for kind, file in files.items()}
    for each in predict_images(run, [photos], device="cpu"):
        expected = list(each.probabilities.values())
        for kind, predict in predictors.items():
            np.testing.assert_allclose(predict(read_pixels(each.file))[0], expected, atol=1e-5, err_msg=kind)


def test_other_channels_are_refused_as_by_predict(tmp_path: Path, photos: Path) -> None:
    run = train_on_channels(tmp_path / "run", 2)
    with pytest.raises(DomainwiseError) as by_predict:
        predict_images(run, [photos])
    with pytest.raises(DomainwiseError) as by_export:
        export_model(run, pt2=tmp_path / "model.pt2")
    assert str(by_export.value) == str(by_predict.value)
    assert "expected square images of 1 or 3 channels" in str(by_export.value)


TORCHVISION = (
    *("mobilenet_v2", "vit_b_16", "swin_t", "convnext_tiny", "efficientnet_b0", "densenet121", "googlenet"),
    *("squeezenet1_1", "shufflenet_v2_x0_5", "mnasnet0_5", "regnet_x_400mf", "vgg11"),
    *("alexnet", "inception_v3", "maxvit_t"),
)
TIMM = (
    *("resnet18", "vit_tiny_patch16_224", "deit_tiny_patch16_224", "vit_small_patch14_dinov2"),
    *("eva02_tiny_patch14_224", "swin_tiny_patch4_window7_224", "convnext_atto", "efficientnet_b0"),
    "mobilenetv3_small_050",
)
SLOW = ["resnet18", *TORCHVISION, *(f"timm:{name}" for name in TIMM)]
# Batch norm over single pixels makes regnet_x_400mf so sensitive at 32 pixels that PyTorch differs from itself by 1e-4.
IMAGE_SIZES = {"regnet_x_400mf": 64, "alexnet": 64, "inception_v3": 96, "maxvit_t": 224}


def spread_probabilities(run: Path, photos: Sequence[Path], size: int) -> None:
    """Change the weights so that probabilities differ between images.

    The features of many untrained networks are the same for all images, and any graph would agree with them.
    """
    pictures = [torch.tensor(np.asarray(Image.open(file).convert("RGB").resize((size, size)))) for file in photos]
    images = torch.stack(pictures).permute(0, 3, 1, 2) / 255
    model = load_model(run).requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
            module.train()
    model(torch.cat([images, torch.rand(16, 3, size, size, generator=torch.Generator().manual_seed(0))]))
    model.eval()
    classifier = model.get_submodule("classifier")
    assert isinstance(classifier, nn.Linear)
    logits = model(images)
    classifier.weight *= 2 / (logits[:, 0] - logits[:, 1]).std()
    classifier.bias -= model(images).mean(0)
    RunFolder(run).write_weights("best", model.state_dict())


@pytest.mark.parametrize(
    "network", ["timm:test_resnet", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_backbones_are_exported(network: str, tmp_path: Path, photos: Path) -> None:
    size = IMAGE_SIZES.get(network, 32)
    data = {"train_count": 16, "test_count": 8, "image_size": size, "shifts": (0,)}
    run = tiny_run(
        tmp_path / "run", network=network, weights="none", steps=1, batch_size=2, dataset_options=data
    ).folder
    spread_probabilities(run, [photos / f"{number}.png" for number in (1, 2, 3, 4)], size)
    (result,) = export_model(run, onnx=tmp_path / "model.onnx")
    assert result.difference < 1e-4
    predictions = predict_images(run, [photos], device="cpu")
    assert np.ptp([each.probabilities["cow"] for each in predictions]) > 0.3
    predict = open_onnx(tmp_path / "model.onnx")
    for each in predictions:
        np.testing.assert_allclose(predict(read_pixels(each.file))[0], list(each.probabilities.values()), atol=1e-4)


class Undecided(nn.Module):
    """A network that looks at its input to decide what to do, which no graph can contain."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) if x.sum() > 0 else -x.flatten(1)


class TwoFaced(nn.Module):
    """A network whose exported graph computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).flip(1) if torch.compiler.is_exporting() else x.flatten(1)


def build(featurizer: nn.Module, shape: Sequence[int], num_classes: int) -> Network:
    features = int(np.prod(shape))
    return Network(featurizer, nn.Linear(features, num_classes), input_shape=shape, num_features=features)


def undecided(shape: Sequence[int], num_classes: int, dropout: float = 0.0) -> Network:
    return build(Undecided(), shape, num_classes)


def two_faced(shape: Sequence[int], num_classes: int, dropout: float = 0.0) -> Network:
    return build(TwoFaced(), shape, num_classes)


def test_a_network_that_cannot_be_traced_is_an_error_of_one_line(tmp_path: Path) -> None:
    run = train_on_channels(tmp_path / "run", 3, network=undecided)
    with pytest.raises(DomainwiseError, match="used a custom network"):
        export_model(run, pt2=tmp_path / "model.pt2")
    with pytest.raises(DomainwiseError, match=r"^torch\.export could not trace the network: .+") as error:
        export_model(run, pt2=tmp_path / "model.pt2", network=undecided)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "model.pt2").exists()


def test_a_graph_that_computes_something_else_is_not_written(tmp_path: Path) -> None:
    run = train_on_channels(tmp_path / "run", 3, network=two_faced)
    for kind in OPENERS:
        file = tmp_path / f"model.{kind}"
        file.write_bytes(b"the model of last week")
        with pytest.raises(DomainwiseError, match=r"was not written: its probabilities differ .* by up to 0\.\d"):
            export_model(run, network=two_faced, **{kind: file})  # type: ignore[arg-type]
        assert file.read_bytes() == b"the model of last week"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.onnx", "model.pt2", "run"]


def test_logging_is_as_before(run: Path, tmp_path: Path) -> None:
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    export_model(run, pt2=tmp_path / "model.pt2")
    assert [logger.level for logger in loggers] == levels
