"""Weights to start from: every form they come in, and one clear line for every file that is not them."""

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
from domainwise.networks import Network, backbone
from domainwise.networks.weights import is_file, named_by_content

NAME = "shufflenet_v2_x0_5"
DATA = Path(os.environ.get("DOMAINWISE_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
MOBILENET = DATA / "weights" / "mobilenet_v2-b0353104.pth"

State = dict[str, Tensor]


def published(name: str = NAME, num_classes: int = 10) -> State:
    """A state dict such as torchvision's models have, each tensor unlike any that a network starts from."""
    state = torchvision.models.get_model(name, num_classes=num_classes).state_dict()
    generator = torch.Generator().manual_seed(3)
    return {
        key: torch.rand(value.shape, generator=generator) if value.is_floating_point() else value + 7
        for key, value in state.items()
    }


def built(weights: Path | str, name: str = NAME) -> Network:
    torch.manual_seed(0)
    return backbone(name, (3, 32, 32), 4, weights=str(weights))


def assert_holds(network: Network, state: State, head: str = "fc.") -> None:
    """Every tensor but the head's is there, and nothing else."""
    ours = network.featurizer.state_dict()
    assert {f"model.{key}" for key in state if not key.startswith(head)} == ours.keys()
    for key, value in ours.items():
        assert torch.equal(value, state[key.removeprefix("model.")]), key


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(DomainwiseError) as refused:
        call()
    message = str(refused.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("ending", "wrapper"), [("pth", None), ("pt", "state_dict"), ("tar", "model"), ("other", None)]
)
def test_what_torch_saved_is_loaded(ending: str, wrapper: str | None, tmp_path: Path) -> None:
    state = published()
    torch.save({wrapper: state, "epoch": 3} if wrapper else state, tmp_path / f"weights.{ending}")
    assert_holds(built(tmp_path / f"weights.{ending}"), state)


def test_safetensors_are_loaded(tmp_path: Path) -> None:
    state = published()
    safetensors.torch.save_file(state, tmp_path / "weights.safetensors")
    assert_holds(built(tmp_path / "weights.safetensors"), state)


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_names_that_a_training_loop_put_before_them_are_taken_off(ending: str, tmp_path: Path) -> None:
    state = published()
    wrapped = {f"module.{key}": value for key, value in state.items()}
    if ending == "pth":
        torch.save({"state_dict": wrapped}, tmp_path / "weights.pth")
    else:
        safetensors.torch.save_file(wrapped, tmp_path / "weights.safetensors")
    assert_holds(built(tmp_path / f"weights.{ending}"), state)


def test_the_weights_of_one_of_our_runs_are_loaded_without_its_classifier(tmp_path: Path) -> None:
    torch.manual_seed(8)
    first = backbone(NAME, (3, 64, 64), 9, dropout=0.1)
    state = published()
    first.featurizer.load_state_dict({f"model.{k}": v for k, v in state.items() if not k.startswith("fc.")})
    safetensors.torch.save_file(first.state_dict(), tmp_path / "best.safetensors")
    second = built(tmp_path / "best.safetensors")
    assert_holds(second, state)
    assert second.classifier.weight.shape == (4, 1024)


def test_the_head_is_fresh_whatever_the_file_has_in_its_place(tmp_path: Path) -> None:
    fresh = built("none").classifier.state_dict()
    state = published(num_classes=4)
    headless = {key: value for key, value in state.items() if not key.startswith("fc.")}
    for content in (state, published(num_classes=1000), headless):
        torch.save(content, tmp_path / "weights.pth")
        network = built(tmp_path / "weights.pth")
        assert_holds(network, content)
        assert not torch.equal(network.classifier.weight, state["fc.weight"])
        assert network.classifier.weight.shape == fresh["weight"].shape


def test_an_auxiliary_head_may_be_there_or_not(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torchvision.models.googlenet(aux_logits=True, init_weights=False)
    state = model.state_dict()
    assert any(key.startswith("aux1.") for key in state)
    torch.save(state, tmp_path / "whole.pth")
    bare = {key: value for key, value in state.items() if not key.startswith(("aux1.", "aux2."))}
    torch.save(bare, tmp_path / "bare.pth")
    for file in ("whole.pth", "bare.pth"):
        assert_holds(built(tmp_path / file, "googlenet"), bare)


def test_files_older_than_the_count_of_batches_are_loaded(tmp_path: Path) -> None:
    state = published()
    old = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    assert len(old) < len(state)
    torch.save(old, tmp_path / "weights.pth")
    ours = built(tmp_path / "weights.pth").featurizer.state_dict()
    for key, value in old.items():
        if not key.startswith("fc."):
            assert torch.equal(ours[f"model.{key}"], value), key


def test_names_that_densenet_had_are_understood(tmp_path: Path) -> None:
    state = published("densenet121", 2)
    old = {}
    for key, value in state.items():
        for layer in ("norm1", "conv1", "norm2", "conv2"):
            if f".{layer}." in key and "denselayer" in key:
                key = key.replace(f".{layer}.", f".{layer[:4]}.{layer[4]}.")
        old[key] = value
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(old, tmp_path / "weights.pth")
    assert_holds(built(tmp_path / "weights.pth", "densenet121"), state, "classifier.")


def test_names_that_vision_transformers_had_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert_holds(built(tmp_path / "weights.pth", "vit_b_32"), state, "heads.")


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_mnasnet_needs_no_version_in_the_file(ending: str, tmp_path: Path) -> None:
    state = published("mnasnet0_5", 5)
    if ending == "pth":
        torch.save(state, tmp_path / "weights.pth")
    else:
        safetensors.torch.save_file(state, tmp_path / "weights.safetensors")
    assert_holds(built(tmp_path / f"weights.{ending}", "mnasnet0_5"), state, "classifier.")


def test_weights_of_another_architecture_are_refused_by_their_first_fault(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    torch.save(published("squeezenet1_1"), file)
    message = refusal(lambda: built(file))
    assert message.startswith(f"the weights in {file} do not fit {NAME}: they lack conv1.0.weight, and ")
    assert message.endswith(" more like that. Are they of another architecture?")


def test_tensors_too_few_too_many_or_of_another_shape_are_named(tmp_path: Path) -> None:
    state, file = published(), tmp_path / "weights.pth"
    start = f"the weights in {file} do not fit {NAME}: "
    end = ". Are they of another architecture?"
    changes: list[tuple[State, str]] = [
        ({key: value for key, value in state.items() if key != "conv5.0.weight"}, "they lack conv5.0.weight"),
        ({**state, "conv6.0.weight": torch.zeros(2)}, "their conv6.0.weight has no place"),
        ({**state, "conv1.0.weight": torch.zeros(24, 1, 3, 3)}, "their conv1.0.weight has shape (24, 1, 3, 3), not "),
    ]
    for content, fault in changes:
        torch.save(content, file)
        message = refusal(lambda: built(file))
        assert message.startswith(start + fault)
        assert message.endswith(end)
        assert " more like that" not in message
    torch.save({**state, "conv6.0.weight": torch.zeros(2), "conv6.0.bias": torch.zeros(2)}, file)
    assert "their conv6.0.weight has no place, and 1 more like that" in refusal(lambda: built(file))


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    for name in ("weights.pth", "weights.safetensors", "folder/weights"):
        assert refusal(lambda name=name: built(tmp_path / name)) == f"there is no weights file {tmp_path / name}"
    assert refusal(lambda: built("weights.pth")) == "there is no weights file weights.pth"
    assert refusal(lambda: built(tmp_path)) == f"there is no weights file {tmp_path}"
    (tmp_path / "named.pth").mkdir()
    assert refusal(lambda: built(tmp_path / "named.pth")) == f"there is no weights file {tmp_path / 'named.pth'}"


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
@pytest.mark.parametrize("content", [b"", bytes(range(256)) * 20, b"PK\x03\x04" + bytes(40), b"<html>404</html>"])
def test_a_file_that_is_no_weights_is_one_line(content: bytes, ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"weights.{ending}"
    file.write_bytes(content)
    assert refusal(lambda: built(file)).startswith(f"the weights file {file} cannot be read: ")


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_a_file_cut_in_half_is_one_line(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"weights.{ending}"
    if ending == "pth":
        torch.save(published(), file)
    else:
        safetensors.torch.save_file(published(), file)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert refusal(lambda: built(file)).startswith(f"the weights file {file} cannot be read: ")


class Harmful:
    """Makes a folder when it is unpickled."""

    def __init__(self, traces: Path) -> None:
        self.traces = traces

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.traces),))


@pytest.mark.parametrize("by", ["torch", "pickle"])
def test_code_in_a_file_is_not_run(by: str, tmp_path: Path) -> None:
    file, traces = tmp_path / "weights.pth", tmp_path / "traces"
    content = {"state_dict": {"conv1.weight": Harmful(traces)}}
    if by == "torch":
        torch.save(content, file)
    else:
        file.write_bytes(pickle.dumps(content))
    message = refusal(lambda: built(file))
    assert message.startswith(f"the weights file {file} cannot be read: ")
    assert not traces.exists()
    # Read with trust, it would have run.
    _ = torch.load(file, weights_only=False) if by == "torch" else pickle.loads(file.read_bytes())
    assert traces.exists()


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, torch.zeros(2), {}, {"state_dict": {"a": 1}}])
def test_a_file_of_something_else_is_one_line(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pth")
    message = refusal(lambda: built(tmp_path / "weights.pth"))
    assert message.startswith(f"the weights file {tmp_path / 'weights.pth'} holds no state dict, but another ")


def test_a_name_that_is_not_published_lists_the_choices() -> None:
    message = refusal(lambda: built("IMAGENET1K_W2", "resnet50"))
    assert message.startswith("unknown weights of resnet50 'IMAGENET1K_W2'; did you mean 'IMAGENET1K_V2'? ")
    assert message.endswith("Choices: IMAGENET1K_V1, IMAGENET1K_V2, DEFAULT, none, a file")
    assert "DEFAULT, none, a file" in refusal(lambda: built("pretrained"))


@pytest.mark.parametrize(
    "error", [URLError("no route to host"), ConnectionResetError("reset"), TimeoutError("late"), RuntimeError("hash")]
)
def test_a_download_that_fails_says_what_to_do(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> State:
        raise error

    monkeypatch.setattr(torchvision.models.ShuffleNet_V2_X0_5_Weights, "get_state_dict", fails)
    message = refusal(lambda: built("IMAGENET1K_V1"))
    assert message.startswith(f"the weights IMAGENET1K_V1 of {NAME} cannot be downloaded (")
    assert str(error) in message
    assert "--weights FILE" in message
    assert "--weights none" in message


@pytest.mark.parametrize("name", ["IMAGENET1K_V1", "DEFAULT"])
def test_published_weights_are_downloaded_checked_and_read_without_code(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []
    state = published()

    def downloaded(weights: Any, **settings: Any) -> State:
        asked.append((weights.name, settings))
        return state

    monkeypatch.setattr(torchvision.models.ShuffleNet_V2_X0_5_Weights, "get_state_dict", downloaded)
    assert_holds(built(name), state)
    assert [(which, settings["check_hash"], settings["weights_only"]) for which, settings in asked] == [
        ("IMAGENET1K_V1", True, True)
    ]


def test_what_is_meant_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_file("a.pth")
    assert is_file("a.safetensors")
    assert is_file("there/a")
    assert not is_file("IMAGENET1K_V1")
    assert not is_file("none")
    assert not is_file("a")
    (tmp_path / "a").touch()
    assert is_file("a")


def test_a_file_is_named_by_its_content_not_by_its_place(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "weights.pth").write_bytes(b"the same")
    (tmp_path / "weights.pth").write_bytes(b"not the same")
    name = named_by_content(tmp_path / "one" / "weights.pth")
    assert name == f"weights.pth sha256:{hashlib.sha256(b'the same').hexdigest()}"
    assert named_by_content(tmp_path / "other" / "weights.pth") == name
    assert named_by_content(tmp_path / "weights.pth") != name
    missing = tmp_path / "missing.pth"
    message = refusal(lambda: named_by_content(missing))
    assert message == f"the weights file {missing} cannot be read: No such file or directory"


@pytest.mark.skipif(not MOBILENET.is_file(), reason="the published weights of MobileNetV2 are not on this machine")
def test_the_published_mobilenet_v2_is_loaded_by_the_right_network_only() -> None:
    state = torch.load(MOBILENET, weights_only=True)
    network = built(MOBILENET, "mobilenet_v2")
    assert_holds(network, state, "classifier.")
    assert len(network.featurizer.state_dict()) == len(state) - 2
    message = refusal(lambda: built(MOBILENET, "resnet18"))
    assert message.startswith(f"the weights in {MOBILENET} do not fit resnet18: they lack conv1.weight, and ")
