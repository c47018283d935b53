"""Weights and checkpoints with a single wrong bit are either refused or, where the bit means nothing, unchanged."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from domainwise.errors import DomainwiseError
from domainwise.storage.run_folder import RunFolder

CHECKPOINT = {
    "step": 7,
    "algorithm": {"weight": torch.linspace(-1, 1, 600).reshape(20, 30), "count": torch.tensor(3)},
    "measured": [{"loss": 0.5}],
}
WEIGHTS = {"a.weight": torch.linspace(-1, 1, 600).reshape(20, 30), "b": torch.arange(5), "empty": torch.zeros(0, 3)}


def is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(is_equal(a[key], b[key]) for key in a)
    return bool(a == b)


def flip_bits(file: Path, read: Callable[[], Any], expected: Any, count: int) -> list[int]:
    """Return the bits that change what is read without an error that names the file."""
    content = file.read_bytes()
    silent = []
    for bit in random.Random(0).sample(range(8 * len(content)), count):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        try:
            if not is_equal(read(), expected):
                silent.append(bit)
        except DomainwiseError as error:
            if f"{file} is damaged" not in str(error):
                silent.append(bit)
    return silent


def test_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_checkpoint(CHECKPOINT)
    assert is_equal(folder.read_checkpoint(), CHECKPOINT)
    assert flip_bits(folder.checkpoint_file, folder.read_checkpoint, CHECKPOINT, 600) == []


def test_weights(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_weights("best", WEIGHTS)
    assert is_equal(folder.read_weights("best"), WEIGHTS)
    assert flip_bits(folder.weights_file("best"), lambda: folder.read_weights("best"), WEIGHTS, 600) == []


def test_weights_of_other_types_have_a_digest_too(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    weights = {
        **{str(dtype): torch.ones(3).to(dtype) for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.bool)},
        "scalar": torch.tensor(2.5),
        "strided": torch.arange(12.0).reshape(3, 4).t(),
        "channels_last": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
    }
    folder.write_weights("last", weights)
    assert is_equal(folder.read_weights("last"), weights)


def test_other_programs_read_them_and_files_without_a_digest_are_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_weights("best", WEIGHTS)
    assert is_equal(load_file(folder.weights_file("best")), WEIGHTS)
    save_file(WEIGHTS, folder.weights_file("best"))
    assert is_equal(folder.read_weights("best"), WEIGHTS)


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\xff" * 100, b"{}", b"PK\x05\x06" + b"\0" * 18])
def test_other_files(tmp_path: Path, content: bytes) -> None:
    folder = RunFolder(tmp_path)
    for file, read in (
        (folder.checkpoint_file, folder.read_checkpoint),
        (folder.weights_file("best"), lambda: folder.read_weights("best")),
    ):
        file.write_bytes(content)
        with pytest.raises(DomainwiseError, match=f"{file} is damaged"):
            read()


@pytest.mark.parametrize(
    ("stored", "wanted", "message"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "b is 2 there and 3 here"),
        ({"h": {"x": 1}}, {"h": {"x": 1, "y": 2}}, "h.y is null there and 2 here"),
        ({"h": {"x": 1, "y": 2}}, {"h": {"x": 1}}, "h.y is 2 there and null here"),
        ({"c": ["cat", "dog"]}, {"c": ["cat", "cow"]}, r'c\[1\] is "dog" there and "cow" here'),
        ({"c": ["cat"]}, {"c": ["cat", "cow"]}, r'c is \["cat"\] there and \["cat", "cow"\] here'),
        ({"w": "x" * 99 + "1"}, {"w": "x" * 99 + "2"}, r'w is \.\.\.x+1" there and \.\.\.x+2" here'),
        ({"c": ["x"] * 99}, {"c": ["x"] * 98}, r'c is \.\.\..*"\] there and \.\.\..*"\] here'),
    ],
)
def test_a_different_config_shows_what_differs(
    tmp_path: Path, stored: dict[str, Any], wanted: dict[str, Any], message: str
) -> None:
    folder = RunFolder(tmp_path)
    folder.claim(stored, {})
    with pytest.raises(DomainwiseError, match=f"contains a different run: {message}; choose another --output"):
        folder.claim(wanted, {})
