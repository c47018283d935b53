"""Backbones equal the published models except for the head and the dropout before it, which are ours."""

import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torchvision
from torch import Tensor, nn

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import eval_mode
from domainwise.errors import DomainwiseError
from domainwise.networks import Network, build_backbone, is_backbone, list_backbones
from domainwise.networks.backbones import load_published_classifier

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
# Name, image size, name of torchvision's head, and number of features.
LINEAR = [
    ("resnet18", 32, "fc", 512),
    ("mobilenet_v2", 32, "classifier.1", 1280),
    ("mobilenet_v3_small", 32, "classifier.3", 1024),
    ("shufflenet_v2_x0_5", 32, "fc", 1024),
    ("mnasnet0_5", 32, "classifier.1", 1280),
    ("efficientnet_b0", 32, "classifier.1", 1280),
    ("regnet_y_400mf", 32, "fc", 440),
    ("densenet121", 32, "classifier", 1024),
    ("convnext_tiny", 32, "classifier.2", 768),
    ("googlenet", 32, "fc", 1024),
    ("inception_v3", 80, "fc", 2048),
]
# Where torchvision's defaults differ from the settings of the published weights.
SETTINGS: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": True, "transform_input": True, "init_weights": False},
    "inception_v3": {"aux_logits": True, "transform_input": True, "init_weights": False},
}


@pytest.fixture(autouse=True)
def _quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the exact initialization of large layers, which does not matter here and takes seconds."""
    monkeypatch.setattr(nn.init, "trunc_normal_", lambda tensor, mean=0.0, std=1.0, **_: tensor.data.normal_(mean, std))


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def normalized(x: Tensor) -> Tensor:
    return (x - MEAN[:, None, None]) / STD[:, None, None]


def build(name: str, size: int = 32, num_classes: int = 4, dropout: float = 0.0, **settings: Any) -> Network:
    torch.manual_seed(0)
    return build_backbone(name, (3, size, size), num_classes, dropout, **settings)


def original(name: str, size: int) -> nn.Module:
    """Return torchvision's model, with batch-norm statistics of the images."""
    torch.manual_seed(1)
    return update_statistics(torchvision.models.get_model(name, weights=None, **SETTINGS.get(name, {})), size)


def update_statistics(model: nn.Module, size: int) -> nn.Module:
    """Set batch-norm statistics as training would; without them, little of an image reaches the last layer."""
    model.eval()
    for part in batch_norms(model):
        part.momentum = 1.0
        part.train()
    with torch.no_grad():
        model(normalized(images(8, 3, size, size, seed=2)))
    return model.eval()


def batch_norms(module: nn.Module) -> list[nn.BatchNorm2d]:
    return [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]


def statistics(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.named_buffers() if "running" in name or "batches" in name}


@pytest.mark.parametrize(("name", "size", "head", "num_features"), LINEAR)
def test_logits_equal_those_of_the_original_with_the_same_weights(
    name: str, size: int, head: str, num_features: int, tmp_path: Path
) -> None:
    theirs = original(name, size)
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    ours = build(name, size, 1000, dropout=0.3, weights=str(tmp_path / "weights.pth")).eval()
    ours.classifier.load_state_dict(theirs.get_submodule(head).state_dict())
    x = images(2, 3, size, size)
    with torch.no_grad():
        expected = theirs(normalized(x))
        logits = ours(x)
        features = ours.featurizer(x)
    assert features.shape == (2, num_features)
    assert ours.num_features == num_features
    assert not torch.allclose(expected[0], expected[1], rtol=0, atol=0.01 * expected.abs().max().item())
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def test_the_convolutional_head_of_squeezenet_is_removed(tmp_path: Path) -> None:
    theirs = original("squeezenet1_1", 32)
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    ours = build("squeezenet1_1", weights=str(tmp_path / "weights.pth")).eval()
    x = images(2, 3, 32, 32)
    with torch.no_grad():
        expected = theirs.get_submodule("features")(normalized(x)).mean((2, 3))
        torch.testing.assert_close(ours.featurizer(x), expected, rtol=1e-4, atol=1e-6)
    assert ours.num_features == 512
    assert "featurizer.model.classifier.1.weight" not in ours.state_dict()


def small_transformer(name: str, *, weights: None, image_size: int) -> nn.Module:
    """Stand-in for `torchvision.models.get_model`: a vision transformer a thousandth of the size."""
    assert (name, weights) == ("vit_b_32", None)
    model: nn.Module = torchvision.models.VisionTransformer(image_size, 32, 2, 2, 16, 32, num_classes=3)
    with torch.no_grad():
        model.get_parameter("heads.head.weight").normal_()  # zeros otherwise
    return model


def test_vision_transformers_adapt_to_the_image_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision.models, "get_model", small_transformer)
    theirs = small_transformer("vit_b_32", weights=None, image_size=64).eval()
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    same = build("vit_b_32", 64, 3, weights=str(tmp_path / "weights.pth")).eval()
    same.classifier.load_state_dict(theirs.get_submodule("heads.head").state_dict())
    x = images(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(same(x), theirs(normalized(x)), rtol=1e-4, atol=1e-4)
    assert same.num_features == 16
    # Position embeddings are also resized if the weights come from one of our runs.
    safetensors.torch.save_file(same.state_dict(), tmp_path / "best.safetensors")
    given = theirs.get_parameter("encoder.pos_embedding")
    for file in ("weights.pth", "best.safetensors"):
        larger = build("vit_b_32", 96, 3, weights=str(tmp_path / file))
        embedding = larger.featurizer.get_parameter("model.encoder.pos_embedding")
        assert embedding.shape == (1, 10, 16)
        # Those of the class token and of the grid's corners stay the same.
        torch.testing.assert_close(embedding[:, [0, 1, 3, 7, 9]], given)
        assert larger(images(1, 3, 96, 96)).shape == (1, 3)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "mobilenet_v3_small", "squeezenet1_1", "googlenet"])
def test_our_dropout_replaces_the_last_one(name: str) -> None:
    network = build(name, dropout=0.5, batch_norm="frozen")
    dropouts = [part for part in network.modules() if isinstance(part, nn.Dropout)]
    assert len(dropouts) == 1
    assert dropouts[0].p == 0.5
    x = images(16, 3, 32, 32)
    with torch.no_grad():
        whole = network.eval().featurizer(x)
        dropped = network.train().featurizer(x)
    # Values that are not dropped are scaled by 1 / (1 - .5).
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * whole[kept], rtol=1e-4, atol=1e-4 * whole.abs().max().item())
    assert kept[whole != 0].float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_inner_dropout_is_kept() -> None:
    network = build("alexnet", 64)
    rates = {name: part.p for name, part in network.named_modules() if isinstance(part, nn.Dropout)}
    assert rates == {
        "featurizer.model.classifier.0": 0.5,
        "featurizer.model.classifier.3": 0.5,
        "featurizer.dropout": 0,
    }


def test_building_leaves_statistics_and_mode_unchanged() -> None:
    network = build("resnet18", batch_norm="live")
    assert network.training
    assert all(part.training for part in network.modules())
    for part in batch_norms(network):
        assert part.num_batches_tracked == 0
        assert (part.running_mean == 0).all()


def test_frozen_batch_norm_keeps_its_statistics_and_trains_scales_and_shifts() -> None:
    network = build("resnet18", batch_norm="frozen")
    before = statistics(network)
    assert before
    network.train()
    x = images(8, 3, 32, 32)
    alone, together = network(x[:1]), network(x)
    # Without batch statistics, the logits of an image do not depend on the rest of the batch.
    torch.testing.assert_close(alone, together[:1], rtol=1e-4, atol=1e-5)
    together.square().sum().backward()
    for name, value in statistics(network).items():
        assert torch.equal(value, before[name]), name
    for part in batch_norms(network):
        assert not part.training
        assert part.weight.grad is not None
        assert part.bias.grad is not None
        assert part.weight.requires_grad
        assert part.bias.grad.abs().sum() > 0
    assert network.featurizer.get_submodule("model.conv1").training
    assert network.featurizer.get_submodule("dropout").training


def test_live_batch_norm_updates_its_statistics() -> None:
    network = build("resnet18", batch_norm="live")
    before = statistics(network)
    network.train()
    network(images(8, 3, 32, 32))
    moved = statistics(network)
    assert all(not torch.equal(moved[name], before[name]) for name in before)
    network.eval()
    network(images(8, 3, 32, 32, seed=1))
    assert all(torch.equal(value, moved[name]) for name, value in statistics(network).items())


def test_batch_norm_is_live_by_default() -> None:
    assert all(part.training for part in batch_norms(build("shufflenet_v2_x0_5").train()))


def test_frozen_batch_norm_stays_frozen_when_the_mode_changes() -> None:
    network = build("shufflenet_v2_x0_5", batch_norm="frozen")
    algorithm = ALGORITHMS["erm"](network, num_domains=1)
    before = statistics(network)
    x, y = images(8, 3, 32, 32), torch.arange(8) % 4
    for change in (algorithm.train, algorithm.eval, network.train, network.featurizer.train, lambda: network.train()):
        change()
        assert not any(part.training for part in batch_norms(network))
    with eval_mode(network):
        assert not network.featurizer.training
    assert network.featurizer.training
    assert not any(part.training for part in batch_norms(network))
    for _ in range(2):
        algorithm.predict(x)
        algorithm.update([(x, y)])
    for name, value in statistics(network).items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("shape", [(1, 32, 32), (2, 32, 32), (4, 32, 32), (3, 32), (12,)])
def test_error_for_images_without_three_channels(shape: tuple[int, ...]) -> None:
    with pytest.raises(DomainwiseError, match=r"^resnet18 needs images with three channels, got shape \(.*\)$"):
        build_backbone("resnet18", shape, 2)


@pytest.mark.parametrize(
    ("name", "size", "why"),
    [
        ("squeezenet1_1", 8, "too small"),
        ("alexnet", 16, "too small"),
        ("inception_v3", 32, "Kernel size"),
        ("vit_b_32", 40, "patch size"),
        ("maxvit_t", 64, "partition size"),
    ],
)
def test_error_for_unsupported_image_sizes(name: str, size: int, why: str) -> None:
    with pytest.raises(
        DomainwiseError, match=rf"^{name} does not support images of {size} x {size}: .*{why}"
    ) as raised:
        build_backbone(name, (3, size, size), 2)
    assert "\n" not in str(raised.value)


def test_error_for_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(DomainwiseError, match=r"^unknown torchvision model 'resnet81'; did you mean 'resnet18'\? .*"):
        build_backbone("resnet81", (3, 32, 32), 2)


def test_is_backbone() -> None:
    known = list_backbones()
    assert {"resnet18", "resnet50", "mobilenet_v2", "vit_b_16", "swin_t", "convnext_tiny"} <= set(known)
    # Classification only: no segmentation, detection, video or quantized models.
    assert not any(name.startswith(("fcn", "fasterrcnn", "r3d", "quantized", "raft")) for name in known)
    assert all(map(is_backbone, known))
    assert is_backbone("timm:whatever")
    assert not is_backbone("small_cnn")
    assert not is_backbone("resnet")


class TestTimm:
    """timm models, by `timm:NAME`; the smallest ones."""

    @pytest.fixture(autouse=True)
    def _timm(self) -> None:
        pytest.importorskip("timm", reason="timm is an optional dependency")

    def original(self, name: str, **settings: Any) -> nn.Module:
        import timm

        torch.manual_seed(1)
        return update_statistics(timm.create_model(name, **settings), settings.get("img_size", 64))

    def save(self, state: dict[str, Tensor], file: Path) -> None:
        if file.suffix == ".safetensors":
            safetensors.torch.save_file(state, file)
        else:
            torch.save(state, file)

    # One normalizes with 0.5, the other with ImageNet's statistics.
    @pytest.mark.parametrize(("name", "num_features"), [("test_resnet", 96), ("test_efficientnet", 256)])
    @pytest.mark.parametrize("ending", ["pth", "safetensors"])
    def test_features_equal_timms(self, name: str, num_features: int, ending: str, tmp_path: Path) -> None:
        theirs = self.original(name, num_classes=7)
        self.save(theirs.state_dict(), tmp_path / f"weights.{ending}")
        ours = build(f"timm:{name}", 48, weights=str(tmp_path / f"weights.{ending}")).eval()
        bare = self.original(name, num_classes=0)
        bare.load_state_dict({k: v for k, v in theirs.state_dict().items() if k in bare.state_dict()})
        facts: Any = bare.pretrained_cfg
        x = images(2, 3, 48, 48)
        given = torchvision.transforms.functional.normalize(x, facts["mean"], facts["std"])
        with torch.no_grad():
            expected = bare(given)
            torch.testing.assert_close(ours.featurizer(x), expected, rtol=1e-4, atol=1e-5)
        assert (expected[0] - expected[1]).abs().max() > 0.01 * expected.abs().max()
        assert ours.num_features == num_features

    def test_vision_transformers_are_built_for_the_image_size(self, tmp_path: Path) -> None:
        theirs = self.original("test_vit", img_size=64, num_classes=0)
        self.save(theirs.state_dict(), tmp_path / "weights.pth")
        ours = build("timm:test_vit", 64, weights=str(tmp_path / "weights.pth")).eval()
        x = images(2, 3, 64, 64)
        with torch.no_grad():
            torch.testing.assert_close(ours.featurizer(x), theirs((x - 0.5) / 0.5), rtol=1e-4, atol=1e-5)
        positions = ours.featurizer.get_parameter("model.pos_embed")
        larger = build("timm:test_vit", 96, weights=str(tmp_path / "weights.pth"))
        assert positions.shape[1] - 1 == 16
        assert larger.featurizer.get_parameter("model.pos_embed").shape[1] - 1 == 36
        assert larger(images(1, 3, 96, 96)).shape == (1, 4)

    def test_image_encoders_of_open_clip_load(self, tmp_path: Path) -> None:
        theirs = self.original("test_vit", img_size=64, num_classes=0).eval()
        renamed = {f"visual.trunk.{name}": value for name, value in theirs.state_dict().items()}
        self.save({**renamed, "logit_scale": torch.ones(())}, tmp_path / "clip.pt")
        ours = build("timm:test_vit", 64, weights=str(tmp_path / "clip.pt")).eval()
        x = images(2, 3, 64, 64)
        with torch.no_grad():
            torch.testing.assert_close(ours.featurizer(x), theirs((x - 0.5) / 0.5), rtol=1e-4, atol=1e-5)
        renamed.pop("visual.trunk.blocks.0.norm1.bias")
        self.save(renamed, tmp_path / "damaged.pt")
        with pytest.raises(DomainwiseError, match=r"do not match timm:test_vit: missing key blocks\.0\.norm1\.bias"):
            build("timm:test_vit", 64, weights=str(tmp_path / "damaged.pt"))

    def test_frozen_batch_norm(self) -> None:
        network = build("timm:test_efficientnet", 48, batch_norm="frozen").train()
        assert batch_norms(network)
        before = statistics(network)
        network(images(4, 3, 48, 48)).sum().backward()
        assert all(torch.equal(value, before[name]) for name, value in statistics(network).items())
        assert all(part.weight.grad is not None for part in batch_norms(network))

    def test_load_weights_of_a_run(self, tmp_path: Path) -> None:
        first = build("timm:test_resnet", 48)
        with torch.no_grad():
            first.featurizer.get_parameter("model.conv1.0.weight").fill_(0.5)
        self.save(first.state_dict(), tmp_path / "best.safetensors")
        torch.manual_seed(5)
        again = build_backbone("timm:test_resnet", (3, 48, 48), 9, weights=str(tmp_path / "best.safetensors"))
        for name, value in again.featurizer.state_dict().items():
            assert torch.equal(value, first.featurizer.state_dict()[name]), name

    def test_files_without_num_batches_tracked_are_loaded(self, tmp_path: Path) -> None:
        theirs = self.original("test_resnet").state_dict()
        self.save({k: v for k, v in theirs.items() if "num_batches" not in k}, tmp_path / "weights.pth")
        ours = build("timm:test_resnet", 48, weights=str(tmp_path / "weights.pth"))
        assert torch.equal(ours.featurizer.get_parameter("model.conv1.0.weight"), theirs["conv1.0.weight"])

    def test_error_for_weights_of_another_architecture(self, tmp_path: Path) -> None:
        file = tmp_path / "weights.pth"
        self.save(self.original("test_resnet").state_dict(), file)
        for name in ("test_efficientnet", "test_vit", "resnet10t"):
            with pytest.raises(DomainwiseError) as raised:
                build(f"timm:{name}", 64, weights=str(file))
            message = str(raised.value)
            assert message.startswith(f"weights {file} do not match timm:{name}: ")
            assert message.endswith("; check the architecture")
            assert "\n" not in message
        with pytest.raises(DomainwiseError, match=r"missing key cls_token \(\+\d+ more\); check"):
            build("timm:test_vit", 64, weights=str(file))
        with pytest.raises(DomainwiseError, match=r"size mismatch for conv1\.0\.weight: .*; check"):
            build("timm:resnet10t", 64, weights=str(file))

    def test_errors_for_unknown_names(self) -> None:
        with pytest.raises(
            DomainwiseError, match=r"^unknown timm model 'test_resnt'; did you mean 'test_resnet'\? [^\n]*$"
        ):
            build("timm:test_resnt")
        with pytest.raises(
            DomainwiseError, match=r"^unknown weights of timm:test_resnet 'V1'\. Choices: none, pret[^\n]*$"
        ):
            build("timm:test_resnet", weights="V1")
        with pytest.raises(DomainwiseError, match=r"^weights file nowhere\.pth not found$"):
            build("timm:test_resnet", weights="nowhere.pth")

    def test_error_for_a_failed_download_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import timm

        create = timm.create_model

        def without_network(*args: Any, **settings: Any) -> nn.Module:
            if settings["pretrained"]:
                raise OSError("no route to host")
            return create(*args, **settings)

        monkeypatch.setattr(timm, "create_model", without_network)
        with pytest.raises(
            DomainwiseError, match=r"^weights of timm:test_resnet could not be downloaded \(no route"
        ) as raised:
            build("timm:test_resnet", weights="pretrained")
        assert "--weights FILE" in str(raised.value)
        assert build("timm:test_resnet").num_features == 96


def test_error_without_timm_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        DomainwiseError, match=r"^timm:resnet10t needs timm; install it with: pip install 'timm>=[\d.]+'$"
    ):
        build_backbone("timm:resnet10t", (3, 32, 32), 2)


@pytest.mark.parametrize(
    ("name", "file", "expected"),
    [
        ("mobilenet_v2", "mobilenet_v2-b0353104.pth", (224, 256, "bilinear")),
        ("mobilenet_v2", "mobilenet_v2-7ebf99e0.pth", (224, 232, "bilinear")),
        ("mobilenet_v2", "mine.pth", (224, 256, "bilinear")),
    ],
)
def test_published_classifiers_of_torchvision(
    name: str, file: str, expected: tuple[int, int, str], tmp_path: Path
) -> None:
    theirs = original(name, 32)
    torch.save(theirs.state_dict(), tmp_path / file)
    ours = load_published_classifier(f"torchvision:{name}", str(tmp_path / file))
    assert (ours.size, ours.resize, ours.interpolation) == expected
    assert ours.keeps_aspect
    x = images(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours.model(x), theirs(normalized(x)), rtol=1e-4, atol=1e-4)


def test_published_classifiers_of_timm(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(1)
    theirs = timm.create_model("vit_tiny_patch16_224").eval()
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "vit.safetensors")
    ours = load_published_classifier("timm:vit_tiny_patch16_224", str(tmp_path / "vit.safetensors"))
    # timm: crop_pct 0.9.
    assert (ours.size, ours.resize, ours.interpolation, ours.keeps_aspect) == (224, 248, "bicubic", True)
    x = images(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(ours.model(x), theirs((x - 0.5) / 0.5), rtol=1e-4, atol=1e-4)


def test_errors_of_published_classifiers(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match=r"unknown torchvision model 'resnet5'.*resnet50"):
        load_published_classifier("torchvision:resnet5")
    with pytest.raises(DomainwiseError, match="resnet18 can only be evaluated with weights"):
        load_published_classifier("torchvision:resnet18", "none")
    with pytest.raises(DomainwiseError, match=r"unknown weights of resnet18 'IMAGENET1K_V9'"):
        load_published_classifier("torchvision:resnet18", "IMAGENET1K_V9")
    torch.save(torchvision.models.resnet18(num_classes=10).state_dict(), tmp_path / "ten.pth")
    with pytest.raises(DomainwiseError, match=r"ten.pth do not match resnet18: fc.weight has shape \(10, 512\)"):
        load_published_classifier("torchvision:resnet18", str(tmp_path / "ten.pth"))
    pytest.importorskip("timm")
    state = build_backbone("timm:vit_tiny_patch16_224", (3, 224, 224), 2).featurizer.model.state_dict()
    safetensors.torch.save_file(state, tmp_path / "headless.safetensors")
    with pytest.raises(DomainwiseError, match=r"headless.safetensors do not match .*head\.weight"):
        load_published_classifier("timm:vit_tiny_patch16_224", str(tmp_path / "headless.safetensors"))
