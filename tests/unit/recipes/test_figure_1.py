"""Figure 1 from finished runs with several hyperparameter samples each."""

from dataclasses import replace
from pathlib import Path

from domainwise.reproduction.plan import plan_recipe
from domainwise.reproduction.recipe import recipes, scales
from domainwise.reproduction.reproduce import reproduced
from domainwise.reproduction.smoke_data import write_layouts
from run_folders import write_run


def test_several_draws_are_selected_from_and_plotted(tmp_path: Path) -> None:
    data = write_layouts(tmp_path / "data")
    scale = replace(scales()["smoke"], draws=2)
    plan = plan_recipe(recipes()["figure_1"], scale, tmp_path / "runs", data_dir=data)
    for run, config in plan.runs.items():
        (tested,) = run.test_domains
        write_run(
            run.folder,
            run.algorithm,
            tested,
            (0.1, 0.6 if run.draw else 0.9),
            draw=run.draw,
            training=0.8 + run.draw / 10,
            hparams=config.hparams,
            dataset="pacs",
            domains=(tested, "cartoon", "photo", "sketch"),
        )
    assert {run.draw for run in plan.runs} == {0, 1}
    result = reproduced(plan, data)
    (panel,) = result.figures["against_radius_pacs"].axes
    curves = {line.get_label(): line.get_ydata() for line in panel.lines}
    assert set(curves) == {"ERM (n = 1)", "AT (n = 1)", "UAT (n = 1)"}
    assert all(value == 0.6 for curve in curves.values() for value in curve)
