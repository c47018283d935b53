"""Initial weights: all supported file formats, and one clear error for every unusable file."""

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import safetensors.torch
import torch
import torchvision
from torch import Tensor

from domainwise.errors import DomainwiseError
from domainwise.networks import Network, build_backbone
from domainwise.networks.weights import fingerprint_weights, is_weights_file

NAME = "shufflenet_v2_x0_5"
DATA = Path(os.environ.get("DOMAINWISE_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")
MOBILENET = DATA / "weights" / "mobilenet_v2-b0353104.pth"

State = dict[str, Tensor]


def random_state(name: str = NAME, num_classes: int = 10) -> State:
    """Return a state dict of a torchvision model, with values that no freshly built network has."""
    state = torchvision.models.get_model(name, num_classes=num_classes).state_dict()
    generator = torch.Generator().manual_seed(3)
    return {
        key: torch.rand(value.shape, generator=generator) if value.is_floating_point() else value + 7
        for key, value in state.items()
    }


def build(weights: Path | str, name: str = NAME) -> Network:
    torch.manual_seed(0)
    return build_backbone(name, (3, 32, 32), 4, weights=str(weights))


def assert_loaded(network: Network, state: State, head: str = "fc.") -> None:
    """Check that the network has every tensor except the head's, and nothing else."""
    ours = network.featurizer.state_dict()
    assert {f"model.{key}" for key in state if not key.startswith(head)} == ours.keys()
    for key, value in ours.items():
        assert torch.equal(value, state[key.removeprefix("model.")]), key


def error_of(call: Callable[[], Any]) -> str:
    with pytest.raises(DomainwiseError) as raised:
        call()
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("ending", "wrapper"), [("pth", None), ("pt", "state_dict"), ("tar", "model"), ("other", None)]
)
def test_load_torch_files(ending: str, wrapper: str | None, tmp_path: Path) -> None:
    state = random_state()
    torch.save({wrapper: state, "epoch": 3} if wrapper else state, tmp_path / f"weights.{ending}")
    assert_loaded(build(tmp_path / f"weights.{ending}"), state)


def test_load_safetensors(tmp_path: Path) -> None:
    state = random_state()
    safetensors.torch.save_file(state, tmp_path / "weights.safetensors")
    assert_loaded(build(tmp_path / "weights.safetensors"), state)


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_prefixes_of_training_loops_are_removed(ending: str, tmp_path: Path) -> None:
    state = random_state()
    wrapped = {f"module.{key}": value for key, value in state.items()}
    if ending == "pth":
        torch.save({"state_dict": wrapped}, tmp_path / "weights.pth")
    else:
        safetensors.torch.save_file(wrapped, tmp_path / "weights.safetensors")
    assert_loaded(build(tmp_path / f"weights.{ending}"), state)


def test_load_weights_of_a_run_without_its_classifier(tmp_path: Path) -> None:
    torch.manual_seed(8)
    first = build_backbone(NAME, (3, 64, 64), 9, dropout=0.1)
    state = random_state()
    first.featurizer.load_state_dict({f"model.{k}": v for k, v in state.items() if not k.startswith("fc.")})
    safetensors.torch.save_file(first.state_dict(), tmp_path / "best.safetensors")
    second = build(tmp_path / "best.safetensors")
    assert_loaded(second, state)
    assert second.classifier.weight.shape == (4, 1024)


def test_the_head_is_new_whatever_the_file_contains(tmp_path: Path) -> None:
    fresh = build("none").classifier.state_dict()
    state = random_state(num_classes=4)
    headless = {key: value for key, value in state.items() if not key.startswith("fc.")}
    for content in (state, random_state(num_classes=1000), headless):
        torch.save(content, tmp_path / "weights.pth")
        network = build(tmp_path / "weights.pth")
        assert_loaded(network, content)
        assert not torch.equal(network.classifier.weight, state["fc.weight"])
        assert network.classifier.weight.shape == fresh["weight"].shape


def test_auxiliary_heads_are_optional(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torchvision.models.googlenet(aux_logits=True, init_weights=False)
    state = model.state_dict()
    assert any(key.startswith("aux1.") for key in state)
    torch.save(state, tmp_path / "whole.pth")
    bare = {key: value for key, value in state.items() if not key.startswith(("aux1.", "aux2."))}
    torch.save(bare, tmp_path / "bare.pth")
    for file in ("whole.pth", "bare.pth"):
        assert_loaded(build(tmp_path / file, "googlenet"), bare)


def test_files_without_num_batches_tracked_are_loaded(tmp_path: Path) -> None:
    state = random_state()
    old = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    assert len(old) < len(state)
    torch.save(old, tmp_path / "weights.pth")
    ours = build(tmp_path / "weights.pth").featurizer.state_dict()
    for key, value in old.items():
        if not key.startswith("fc."):
            assert torch.equal(ours[f"model.{key}"], value), key


def test_old_densenet_names_are_converted(tmp_path: Path) -> None:
    state = random_state("densenet121", 2)
    old = {}
    for key, value in state.items():
        for layer in ("norm1", "conv1", "norm2", "conv2"):
            if f".{layer}." in key and "denselayer" in key:
                key = key.replace(f".{layer}.", f".{layer[:4]}.{layer[4]}.")
        old[key] = value
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(old, tmp_path / "weights.pth")
    assert_loaded(build(tmp_path / "weights.pth", "densenet121"), state, "classifier.")


def test_old_vision_transformer_names_are_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(name: str, *, weights: None, image_size: int) -> torch.nn.Module:
        return torchvision.models.VisionTransformer(image_size, 32, 2, 2, 16, 32)

    monkeypatch.setattr(torchvision.models, "get_model", small)
    state = small("", weights=None, image_size=32).state_dict()
    names = {"mlp.0.": "mlp.linear_1.", "mlp.3.": "mlp.linear_2."}
    old = dict(state)
    for new_name, old_name in names.items():
        old = {key.replace(new_name, old_name): value for key, value in old.items()}
    assert old.keys() != state.keys()
    torch.save(old, tmp_path / "weights.pth")
    assert_loaded(build(tmp_path / "weights.pth", "vit_b_32"), state, "heads.")


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_mnasnet_needs_no_version_in_the_file(ending: str, tmp_path: Path) -> None:
    state = random_state("mnasnet0_5", 5)
    if ending == "pth":
        torch.save(state, tmp_path / "weights.pth")
    else:
        safetensors.torch.save_file(state, tmp_path / "weights.safetensors")
    assert_loaded(build(tmp_path / f"weights.{ending}", "mnasnet0_5"), state, "classifier.")


def test_error_for_weights_of_another_architecture(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    torch.save(random_state("squeezenet1_1"), file)
    message = error_of(lambda: build(file))
    assert message.startswith(f"weights {file} do not match {NAME}: missing key conv1.0.weight (+")
    assert message.endswith(" more); check the architecture")


def test_error_names_missing_unexpected_and_misshapen_tensors(tmp_path: Path) -> None:
    state, file = random_state(), tmp_path / "weights.pth"
    start = f"weights {file} do not match {NAME}: "
    end = "; check the architecture"
    changes: list[tuple[State, str]] = [
        ({key: value for key, value in state.items() if key != "conv5.0.weight"}, "missing key conv5.0.weight"),
        ({**state, "conv6.0.weight": torch.zeros(2)}, "unexpected key conv6.0.weight"),
        ({**state, "conv1.0.weight": torch.zeros(24, 1, 3, 3)}, "conv1.0.weight has shape (24, 1, 3, 3), expected "),
    ]
    for content, fault in changes:
        torch.save(content, file)
        message = error_of(lambda: build(file))
        assert message.startswith(start + fault)
        assert message.endswith(end)
        assert " more)" not in message
    torch.save({**state, "conv6.0.weight": torch.zeros(2), "conv6.0.bias": torch.zeros(2)}, file)
    assert "unexpected key conv6.0.weight (+1 more)" in error_of(lambda: build(file))


def test_error_for_a_missing_file(tmp_path: Path) -> None:
    for name in ("weights.pth", "weights.safetensors", "folder/weights"):
        assert error_of(lambda name=name: build(tmp_path / name)) == f"weights file {tmp_path / name} not found"
    assert error_of(lambda: build("weights.pth")) == "weights file weights.pth not found"
    assert error_of(lambda: build(tmp_path)) == f"weights file {tmp_path} not found"
    (tmp_path / "named.pth").mkdir()
    assert error_of(lambda: build(tmp_path / "named.pth")) == f"weights file {tmp_path / 'named.pth'} not found"


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
@pytest.mark.parametrize("content", [b"", bytes(range(256)) * 20, b"PK\x03\x04" + bytes(40), b"<html>404</html>"])
def test_error_for_an_invalid_file(content: bytes, ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"weights.{ending}"
    file.write_bytes(content)
    assert error_of(lambda: build(file)).startswith(f"weights file {file} could not be read: ")


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_error_for_a_truncated_file(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"weights.{ending}"
    if ending == "pth":
        torch.save(random_state(), file)
    else:
        safetensors.torch.save_file(random_state(), file)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert error_of(lambda: build(file)).startswith(f"weights file {file} could not be read: ")


class Harmful:
    """Creates a folder when it is unpickled."""

    def __init__(self, traces: Path) -> None:
        self.traces = traces

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.traces),))


@pytest.mark.parametrize("by", ["torch", "pickle"])
def test_code_in_a_file_is_not_executed(by: str, tmp_path: Path) -> None:
    file, traces = tmp_path / "weights.pth", tmp_path / "traces"
    content = {"state_dict": {"conv1.weight": Harmful(traces)}}
    if by == "torch":
        torch.save(content, file)
    else:
        file.write_bytes(pickle.dumps(content))
    message = error_of(lambda: build(file))
    assert message.startswith(f"weights file {file} could not be read: ")
    assert not traces.exists()
    # An unsafe load would have executed it.
    _ = torch.load(file, weights_only=False) if by == "torch" else pickle.loads(file.read_bytes())
    assert traces.exists()


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, torch.zeros(2), {}, {"state_dict": {"a": 1}}])
def test_error_for_a_file_without_a_state_dict(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pth")
    message = error_of(lambda: build(tmp_path / "weights.pth"))
    assert message.startswith(f"weights file {tmp_path / 'weights.pth'} contains no state dict but a ")


def test_error_for_unknown_weights_lists_the_choices() -> None:
    message = error_of(lambda: build("IMAGENET1K_W2", "resnet50"))
    assert message.startswith("unknown weights of resnet50 'IMAGENET1K_W2'; did you mean 'IMAGENET1K_V2'? ")
    assert message.endswith("Choices: IMAGENET1K_V1, IMAGENET1K_V2, DEFAULT, none, a file")
    assert "DEFAULT, none, a file" in error_of(lambda: build("pretrained"))


@pytest.mark.parametrize(
    "error", [URLError("no route to host"), ConnectionResetError("reset"), TimeoutError("late"), RuntimeError("hash")]
)
def test_error_for_a_failed_download_says_what_to_do(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> State:
        raise error

    monkeypatch.setattr(torchvision.models.ShuffleNet_V2_X0_5_Weights, "get_state_dict", fails)
    message = error_of(lambda: build("IMAGENET1K_V1"))
    assert message.startswith(f"weights IMAGENET1K_V1 of {NAME} could not be downloaded (")
    assert str(error) in message
    assert "--weights FILE" in message
    assert "--weights none" in message


@pytest.mark.parametrize("name", ["IMAGENET1K_V1", "DEFAULT"])
def test_published_weights_are_verified_and_loaded_safely(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    state = random_state()

    def download(weights: Any, **settings: Any) -> State:
        calls.append((weights.name, settings))
        return state

    monkeypatch.setattr(torchvision.models.ShuffleNet_V2_X0_5_Weights, "get_state_dict", download)
    assert_loaded(build(name), state)
    assert [(which, settings["check_hash"], settings["weights_only"]) for which, settings in calls] == [
        ("IMAGENET1K_V1", True, True)
    ]


def test_is_weights_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_weights_file("a.pth")
    assert is_weights_file("a.safetensors")
    assert is_weights_file("there/a")
    assert not is_weights_file("IMAGENET1K_V1")
    assert not is_weights_file("none")
    assert not is_weights_file("a")
    (tmp_path / "a").touch()
    assert is_weights_file("a")


def test_the_fingerprint_depends_on_the_content_not_the_folder(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "weights.pth").write_bytes(b"the same")
    (tmp_path / "weights.pth").write_bytes(b"not the same")
    name = fingerprint_weights(tmp_path / "one" / "weights.pth")
    assert name == f"weights.pth sha256:{hashlib.sha256(b'the same').hexdigest()}"
    assert fingerprint_weights(tmp_path / "other" / "weights.pth") == name
    assert fingerprint_weights(tmp_path / "weights.pth") != name
    missing = tmp_path / "missing.pth"
    message = error_of(lambda: fingerprint_weights(missing))
    assert message == f"weights file {missing} could not be read: No such file or directory"


@pytest.mark.skipif(not MOBILENET.is_file(), reason="MobileNetV2 weights are not on this machine")
def test_published_mobilenet_v2_loads_into_the_matching_model_only() -> None:
    state = torch.load(MOBILENET, weights_only=True)
    network = build(MOBILENET, "mobilenet_v2")
    assert_loaded(network, state, "classifier.")
    assert len(network.featurizer.state_dict()) == len(state) - 2
    message = error_of(lambda: build(MOBILENET, "resnet18"))
    assert message.startswith(f"weights {MOBILENET} do not match resnet18: missing key conv1.weight (+")
