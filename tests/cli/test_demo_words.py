"""`domainwise demo` with words that it cannot use."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", "mat,matt"], "unknown method of the demo 'matt'; did you mean 'mat'?"),
        (["--radii", "0.5,wide"], "--radii takes numbers with commas between, not '0.5,wide'"),
        (["--radii", "-1"], "epsilon must be a finite number of at least 0, got -1.0"),
        (["--variant", "realeased"], "hyperparameter variant must be one of 'standard', 'paper', 'released'"),
        (["--workers", "0"], "--workers must be at least 1, not 0"),
    ],
)
def test_what_cannot_be_shown_is_one_line_and_exit_code_2(
    words: list[str], said: str, domainwise: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = domainwise("demo", "--methods", "erm,mat", "--steps", "2", "--workers", "1", *words)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {said}")
    assert outcome.err.count("\n") == 1
