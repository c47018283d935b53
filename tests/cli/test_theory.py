"""`domainwise theory`: the table, the figures, JSON, the docs page, and errors."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., object]
ROOT = Path(__file__).parents[2]
# A change of any verdict should be noticed.
VERDICTS = ["holds", "depends", "holds", *["does not hold"] * 7, *["depends"] * 2, "does not hold"]


def test_claims_and_figures_are_written(domainwise: Cli, tmp_path: Path) -> None:
    outcome = domainwise("theory", "--output", tmp_path / "theory")
    assert outcome.code == 0, outcome.err
    content = json.loads((tmp_path / "theory" / "theory.json").read_text())
    assert [check["verdict"] for check in content["claims"]] == VERDICTS
    assert "depends" in outcome.out
    for name in ("task", "reliance_over_time", "reliance_over_p", "bound", "map"):
        assert (tmp_path / "theory" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / "theory" / f"{name}.svg").read_text()


def test_the_docs_page_has_the_table(domainwise: Cli) -> None:
    table = domainwise("theory", "--markdown").out.strip()
    assert f"\n{table}\n" in (ROOT / "docs" / "theory.md").read_text(), (
        "put what `domainwise theory --markdown` prints into docs/theory.md"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--radius", "1"], "radius must be above 0, at most .9 and below beta, got 1"),
        (["--radius", "0.5", "--beta", "0.4"], "radius must be above 0, at most .9 and below beta, got 0.5"),
        (["--radius", "0"], "radius must be above 0"),
        (["--radius", "nan"], "radius must be above 0, at most .9 and below beta, got nan"),
        *((["--beta", beta], f"beta must be above 0 and at most 100, got {beta}") for beta in ("inf", "nan", "1e+300")),
        (["--beta", "-1"], "beta must be above 0 and at most 100, got -1"),
    ],
)
def test_a_radius_outside_the_theory_is_a_one_line_error(
    domainwise: Cli, tmp_path: Path, args: list[str], message: str
) -> None:
    outcome = domainwise("theory", "--output", tmp_path / "theory", *args)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "theory").exists()


def test_other_settings_give_other_evidence(domainwise: Cli) -> None:
    """A small spurious feature and a large shift: no check assumes the defaults."""
    small = domainwise("theory", "--markdown", "--radius", "0.05", "--beta", "0.1").out
    assert "the end of the range" in small
    large = domainwise("theory", "--json", "--quiet", "--radius", "0.8", "--beta", "3")
    assert (large.code, large.err) == (0, "")
    content = json.loads(large.out)
    assert (content["radius"], content["beta"]) == (0.8, 3)
    assert any("delta = 0.8" in check["evidence"] for check in content["claims"])


def test_an_invalid_output_is_a_one_line_error(domainwise: Cli, tmp_path: Path) -> None:
    (tmp_path / "theory").write_text("a file, not a folder")
    outcome = domainwise("theory", "--output", tmp_path / "theory")
    assert outcome.code == 2
    assert "could not be created" in outcome.err
    assert outcome.err.count("\n") == 1
