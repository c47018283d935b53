"""Tables from DomainBed's folders: the numbers that its own collection of results prints for them."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from domainwise.reports import build_report
from domainwise.reports.cells import Cell
from domainwise.selection.runs import Runs, read_runs
from selection_by_hand import Record, averages, cells_of, choose, domain_cells, random_sweep, record, run_name

Numbers = dict[tuple[str, ...], tuple[float, float]]


def write_results(root: Path, records: Sequence[Record]) -> None:
    """The records in DomainBed's format, one folder per run."""
    for each in records:
        domains = list(each["accuracy"])
        line = {
            "args": {
                "dataset": each["dataset"],
                "algorithm": each["algorithm"].upper(),
                "test_envs": [domains.index(name) for name in each["test_domains"]],
                "trial_seed": each["trial_seed"],
                "hparams_seed": each["hparams_seed"],
            },
            "hparams": {},
            "step": each["step"],
            **{f"env{index}_in_acc": each["accuracy"][name]["main"] for index, name in enumerate(domains)},
            **{f"env{index}_out_acc": each["accuracy"][name]["holdout"] for index, name in enumerate(domains)},
        }
        folder = root / run_name(each)
        folder.mkdir(exist_ok=True)
        with open(folder / "results.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")


def shown(runs: Runs, selection: str) -> tuple[Numbers, Numbers]:
    """Mean and error of all filled cells, by domain and on average, as DomainBed defines the error.

    It divides by the number of trials (ddof 0), so that a single one has an error of 0.
    """

    def convert(cell: Cell) -> tuple[float, float]:
        assert cell.mean is not None
        return cell.mean, (cell.error or 0.0) * ((cell.trials - 1) / cell.trials) ** 0.5

    by_domain: Numbers = {}
    on_average: Numbers = {}
    for table in build_report(runs, (selection,)).tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                if cell.mean is not None and column.kind == "domain":
                    by_domain[column.dataset, row.algorithm, column.domain] = convert(cell)
                if cell.mean is not None and column.kind == "average_over_trials":
                    on_average[column.dataset, row.algorithm] = convert(cell)
    return by_domain, on_average


def approx(numbers: Numbers) -> dict[tuple[str, ...], object]:
    return {place: pytest.approx(pair, abs=1e-9) for place, pair in numbers.items()}


@pytest.mark.parametrize("selection", ["training_domain", "leave_one_out", "test_domain"])
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    domains=st.integers(2, 3),
    draws=st.integers(1, 3),
    trials=st.integers(1, 3),
)
def test_tables_of_random_sweeps(selection: str, seed: int, domains: int, draws: int, trials: int) -> None:
    records = random_sweep(seed, domains, draws, trials)
    tested = {cell[2] for each in records for cell in cells_of(each)}
    assume(tested)
    with tempfile.TemporaryDirectory() as folder:
        write_results(Path(folder), records)
        by_domain, on_average = shown(read_runs([Path(folder)]), selection)
    chosen = choose(records, selection)
    assert by_domain == approx(domain_cells(chosen))
    # A single test domain is its own average and has no second table.
    assert on_average == approx(averages(chosen) if len(tested) > 1 else {})


def two_trials() -> list[Record]:
    """ERM on three domains, two trials of two draws, one step each."""
    # By trial and draw: the holdouts of all domains are `score` where the run trains, and `own` where it tests.
    table = {
        # (trial, draw): {test domain: (main, holdouts of the others, own holdout)}
        (0, 0): {"env0": (0.60, 0.8, 0.3), "env1": (0.70, 0.8, 0.3), "env2": (0.50, 0.8, 0.3)},
        (0, 1): {"env0": (0.40, 0.7, 0.9), "env1": (0.90, 0.9, 0.2), "env2": (0.55, 0.8, 0.3)},
        (1, 0): {"env0": (0.80, 0.6, 0.5), "env1": (0.50, 0.6, 0.5), "env2": (0.45, 0.6, 0.5)},
        (1, 1): {"env0": (0.30, 0.5, 0.4), "env1": (0.20, 0.5, 0.6), "env2": (0.65, 0.7, 0.1)},
    }
    return [
        record(
            0,
            {name: (main, own) if name == tested else (0.0, score) for name in runs},
            [tested],
            trial=trial,
            draw=draw,
            dataset="Unknown",
        )
        for (trial, draw), runs in table.items()
        for tested, (main, score, own) in runs.items()
    ]


def test_numbers_worked_out_by_hand(tmp_path: Path) -> None:
    write_results(tmp_path, two_trials())
    runs = read_runs([tmp_path])
    by_domain, on_average = shown(runs, "training_domain")
    # Chosen accuracies, trial 0 and 1: env0 60 and 80, env1 90 and 50, env2 55 (a tie, the larger draw) and 65.
    # Errors: half the difference, over the root of two. Trial means: 205 / 3 and 195 / 3.
    assert by_domain == approx(
        {
            ("Unknown", "erm", "env0"): (70.0, 10 / 2**0.5),
            ("Unknown", "erm", "env1"): (70.0, 20 / 2**0.5),
            ("Unknown", "erm", "env2"): (60.0, 5 / 2**0.5),
        }
    )
    assert on_average == approx({("Unknown", "erm"): (200 / 3, (5 / 3) / 2**0.5)})
    by_domain, on_average = shown(runs, "test_domain")
    # env0 40 and 80, env1 70 and 20, env2 55 (a tie) and 45.
    assert by_domain == approx(
        {
            ("Unknown", "erm", "env0"): (60.0, 20 / 2**0.5),
            ("Unknown", "erm", "env1"): (45.0, 25 / 2**0.5),
            ("Unknown", "erm", "env2"): (50.0, 5 / 2**0.5),
        }
    )
    assert on_average == approx({("Unknown", "erm"): (155 / 3, (10 / 3) / 2**0.5)})


def test_the_plain_rules_give_the_numbers_worked_out_by_hand() -> None:
    """So that the random comparison is with something that was checked itself."""
    chosen = choose(two_trials(), "training_domain")
    assert domain_cells(chosen)["Unknown", "erm", "env1"] == pytest.approx((70.0, 20 / 2**0.5))
    assert averages(chosen) == approx({("Unknown", "erm"): (200 / 3, (5 / 3) / 2**0.5)})
