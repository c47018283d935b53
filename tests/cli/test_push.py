"""`domainwise push` to a folder that stands in for the Hub, and the commands that then take `hf:owner/name`."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from domainwise.storage.hub import find_run

Call = Callable[..., Any]
RUN = Path(__file__).parents[1] / "fixtures" / "schema_1" / "run"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DOMAINWISE_HUB", raising=False)
    (tmp_path / "hub").mkdir()
    return tmp_path / "hub"


def test_a_pushed_model_predicts_and_is_exported(
    domainwise: Call, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = domainwise("push", RUN, "team/cows", "--hub", hub, "--license", "mit")
    assert result.code == 0, result.err
    assert f"pushed to {hub / 'team' / 'cows'}" in result.err
    assert f"hub='{hub}')" in result.err
    card = (find_run("hf:team/cows", hub=hub) / "README.md").read_text()
    monkeypatch.setenv("DOMAINWISE_HUB", str(hub))
    assert domainwise("push", RUN, "team/cows", "--license", "mit", "--dry-run").out == card
    Image.effect_noise((50, 30), 90).save(tmp_path / "image.png")
    rows = [domainwise("predict", each, tmp_path / "image.png", "--json").out for each in ("hf:team/cows", RUN)]
    assert json.loads(rows[0]) == json.loads(rows[1])
    result = domainwise("export", "hf:team/cows", "--pt2", tmp_path / "model.pt2")
    assert result.code == 0, result.err
    assert (tmp_path / "model.pt2").exists()


def test_your_own_card(domainwise: Call, hub: Path, tmp_path: Path) -> None:
    (tmp_path / "card.md").write_text("# Cows, ä\n", encoding="utf-8")
    result = domainwise("push", RUN, "team/cows", "--hub", hub, "--card", tmp_path / "card.md", "--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert (find_run("hf:team/cows", hub=hub) / "README.md").read_text(encoding="utf-8") == "# Cows, ä\n"


def test_a_card_is_a_file_of_modest_size(domainwise: Call, hub: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**20 + 1)
    for card, message in (
        (tmp_path / "pipe", "is not a regular file"),
        (Path("/dev/zero"), "is not a regular file"),
        (tmp_path / "large", "has 1,048,577 bytes; at most 1,048,576 are read"),
    ):
        for options in (("--hub", hub), ("--dry-run",)):
            result = domainwise("push", RUN, "team/cows", "--card", card, *options)
            assert (result.code, result.out) == (2, "")
            assert result.err == f"error: {card} {message}\n"
    assert list(hub.iterdir()) == []


def test_a_dry_run_writes_nothing(domainwise: Call, hub: Path) -> None:
    result = domainwise("push", RUN, "team/cows", "--hub", hub, "--dry-run", "--which", "all")
    assert result.code == 0, result.err
    assert "# cows" in result.out
    assert list(hub.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("{run}", "cows", "--hub", "{hub}"), "is not the name of a model; expected hf:owner/name"),
        (("{run}", "../cows", "--hub", "{hub}"), "is not the name of a model"),
        (("{hub}", "team/cows", "--hub", "{hub}"), "no run in"),
        (("{run}", "team/cows", "--hub", "{hub}/no"), "hub folder {hub}/no not found"),
        (("{run}", "team/cows", "--hub", "{hub}", "--which", "newest"), "unknown model of a run 'newest'"),
        (("{run}", "team/cows", "--dry-run", "--which", "newest"), "unknown model of a run 'newest'"),
        (("{run}", "team/cows", "--hub", "{hub}", "--license", "My License"), "license must be one of the Hub's"),
        (("{run}", "team/cows", "--hub", "{hub}", "--card", "{hub}/no.md"), "No such file"),
    ],
)
def test_errors_are_one_line(args: tuple[str, ...], message: str, domainwise: Call, hub: Path) -> None:
    result = domainwise("push", *(word.format(run=RUN, hub=hub) for word in args), "--quiet")
    assert result.code == 2
    assert message.format(hub=hub) in result.err
    assert result.err.count("\n") == 1
    assert list(hub.iterdir()) == []
