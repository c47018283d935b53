"""`domainwise demo` with invalid options."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--algorithm", "matt"], "unknown method of the demo 'matt'; did you mean 'mat'?"),
        (
            ["--radius", "-1"],
            "hyperparameter epsilon must be a number of at least 0, such as 0.5 or '2/255 rms', got -1.0",
        ),
        (["--variant", "realeased"], "hyperparameter variant must be one of 'standard', 'paper', 'released'"),
        (["--workers", "0"], "workers must be at least 1, got 0"),
        (["--trials", "0"], "trials must be at least 1, got 0"),
    ],
)
def test_an_invalid_option_is_one_line_and_exit_code_2(
    options: list[str], message: str, domainwise: Callable[..., Any], tmp_path: Path
) -> None:
    base = ("--algorithm", "mat", "--steps", "2", "--workers", "1", "--quiet", "-o", tmp_path)
    outcome = domainwise("demo", *base, *options)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {message}")
    assert outcome.err.count("\n") == 1
