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
    for run in plan.runs:
        config = run.config
        (tested,) = config.test_domains
        draw = config.hparams_seed
        accuracies = (0.1, 0.6 if draw else 0.9)
        hparams, training = dict(config.hparams), 0.8 + draw / 10
        write_run(
            Path(config.folder()),
            config.algorithm_name,
            tested,
            accuracies,
            draw=draw,
            training=training,
            hparams=hparams,
            dataset="pacs",
            domains=(tested, "cartoon", "photo", "sketch"),
        )
    assert {run.config.hparams_seed for run in plan.runs} == {0, 1}
    result = reproduced(plan, data)
    (panel,) = result.figures["against_radius_pacs"].axes
    curves = {line.get_label(): line.get_ydata() for line in panel.lines}
    assert set(curves) == {"ERM (n = 1)", "AT (n = 1)", "UAT (n = 1)"}
    assert all(value == 0.6 for curve in curves.values() for value in curve)
