"""The demo's plan and table, from records made by hand."""

from pathlib import Path
from typing import Any

import pytest

from domainwise.errors import DomainwiseError
from domainwise.reproduction.demo import Plan, Row, lines, table_of


def record(holdout: float, shifted: float, loss: float = 0.1) -> dict[str, Any]:
    return {
        "loss": loss,
        "train_domains": ["style_0", "style_1"],
        "test_domains": ["shift_0", "shift_12"],
        "accuracy": {
            "style_0": {"holdout": holdout - 0.1},
            "style_1": {"holdout": holdout + 0.1},
            "shift_0": {"main": 1.0, "holdout": 0.0},
            "shift_12": {"main": shifted, "holdout": 0.0},
        },
    }


def test_lines_are_means_over_seeds_and_mark_what_holdout_chooses() -> None:
    near, far = Row("mat", 0.2), Row("mat", 0.5)
    table = lines(
        {
            Row("erm", None): [record(0.5, 0.5)],
            near: [record(0.8, 0.6, loss=0.2), record(0.6, 0.7, loss=0.4)],
            far: [record(0.9, 0.2), record(0.6, 0.4)],
        }
    )
    assert [line.is_chosen for line in table] == [True, False, True]
    assert table[1].loss == pytest.approx(0.3)
    assert table[1].holdout == pytest.approx(0.7)
    assert table[1].shifted == {0.0: 1.0, 12.0: pytest.approx(0.65)}
    assert table[2].shifted[12.0] == pytest.approx(0.3)


def test_the_smaller_radius_is_chosen_on_a_tie() -> None:
    table = lines({Row("uat", 0.2): [record(0.9, 0.1)], Row("uat", 0.5): [record(0.9, 0.9)]})
    assert [line.is_chosen for line in table] == [True, False]


def test_markdown_has_a_row_a_line() -> None:
    text = table_of(lines({Row("erm", None): [record(0.5, 0.25)], Row("at", 2.0): [record(0.5, 0.75)]}))
    assert text.splitlines()[0] == "| method | radius | loss | holdout | shift 0 | shift 12 |"
    assert text.splitlines()[2] == "| **erm** |  | 0.100 | 0.500 | 1.000 | 0.250 |"
    assert text.splitlines()[3] == "| **at** | 2 | 0.100 | 0.500 | 1.000 | 0.750 |"


def test_the_plan_has_every_method_radius_and_seed_once() -> None:
    plan = Plan(seeds=2, output=Path("out"))
    configs = list(plan.configs())
    assert len(plan.rows()) == 13
    assert len({config.output for _, config in configs}) == len(configs) == 26
    assert {config.trial_seed for _, config in configs} == {0, 1}
    for row, config in configs:
        assert config.algorithm == row.method
        assert row.radius is None or config.hparams["epsilon"] == row.radius


def test_erm_is_one_run_for_all_variants() -> None:
    def erm(**settings: Any) -> object:
        return next(config.output for row, config in Plan(**settings).configs() if row.method == "erm")

    assert erm() == erm(variant="released") == erm(methods=("erm",), schedule="simultaneous")


@pytest.mark.parametrize("settings", [{"methods": ("erm", "irm")}, {"radii": ()}, {"seeds": 0}, {"variant": "best"}])
def test_a_plan_that_cannot_be_carried_out_says_so(settings: dict[str, Any]) -> None:
    with pytest.raises(DomainwiseError):
        list(Plan(**settings).configs())
