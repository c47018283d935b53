"""What all engines share: how many threads a run has."""

import pytest

from domainwise.sweeps import engine


@pytest.mark.parametrize(
    ("runs", "limit", "threads"),
    [
        (1, None, 8),
        (2, None, 4),
        (16, None, 1),
        (0, None, 8),
        (2, "1", 1),
        (2, "16", 4),
        (1, "3", 3),
        (1, "2,4", 2),
        (1, "", 8),
        (1, "0", 8),
        (1, "many", 8),
    ],
)
def test_runs_share_the_cpus_up_to_the_limit_of_openmp(
    monkeypatch: pytest.MonkeyPatch, runs: int, limit: str | None, threads: int
) -> None:
    monkeypatch.setattr(engine, "available_cpus", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if limit is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert engine.share_cpus(runs) == threads
