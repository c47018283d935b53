"""`domainwise theory`: the table, the figures, the file, and what cannot be asked for."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., object]
ROOT = Path(__file__).parents[2]
# Claims that hold, and one of each other kind; a change of any verdict should be noticed.
VERDICTS = ["holds", "depends", "holds", *["fails"] * 7, *["depends"] * 2, "fails"]


def test_findings_and_figures_are_written(domainwise: Cli, tmp_path: Path) -> None:
    outcome = domainwise("theory", "--out", tmp_path / "theory")
    assert outcome.code == 0, outcome.err
    content = json.loads((tmp_path / "theory" / "theory.json").read_text())
    assert [finding["verdict"] for finding in content["findings"]] == VERDICTS
    assert "depends" in outcome.out
    for name in ("task", "reliance_over_time", "reliance_over_p", "bound", "map"):
        assert (tmp_path / "theory" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / "theory" / f"{name}.svg").read_text()


def test_the_page_says_what_the_command_prints(domainwise: Cli) -> None:
    table = domainwise("theory", "--markdown").out.strip()
    assert f"\n{table}\n" in (ROOT / "docs" / "theory.md").read_text(), (
        "put what `domainwise theory --markdown` prints into docs/theory.md"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--radius", "1"], "radius must be above 0, at most .9 and below beta, not 1"),
        (["--radius", "0.5", "--beta", "0.4"], "radius must be above 0, at most .9 and below beta, not 0.5"),
        (["--radius", "0"], "radius must be above 0"),
    ],
)
def test_a_radius_outside_the_proof_is_one_line(domainwise: Cli, tmp_path: Path, words: list[str], said: str) -> None:
    outcome = domainwise("theory", "--out", tmp_path / "theory", *words)
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "theory").exists()


def test_other_settings_give_other_findings(domainwise: Cli) -> None:
    """A small spurious feature, and a large shift: nothing in the code takes the defaults for granted."""
    small = domainwise("theory", "--markdown", "--radius", "0.05", "--beta", "0.1").out
    assert "as far as was tried" in small
    large = domainwise("theory", "--markdown", "--radius", "0.8", "--beta", "3")
    assert large.code == 0, large.err
    assert "delta = 0.8" in large.out


def test_a_place_that_cannot_be_written_to_is_one_line(domainwise: Cli, tmp_path: Path) -> None:
    (tmp_path / "theory").write_text("a file, not a folder")
    outcome = domainwise("theory", "--out", tmp_path / "theory")
    assert outcome.code == 2
    assert "cannot be written to" in outcome.err
    assert outcome.err.count("\n") == 1
