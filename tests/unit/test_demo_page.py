"""The demo's page: all runs, and pictures of each method at the radius that holdout chooses."""

from pathlib import Path

import pytest

from domainwise.reproduction.demo import Plan, Row, lines, write_demo_page
from domainwise.training import RunConfig, RunResult, train

SMALL = {"train_count": 60, "test_count": 40, "shifts": [0, 12]}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Row, RunResult]]:
    folder = tmp_path_factory.mktemp("demo")
    made = []
    for row in (Row("erm", None), Row("mat", 0.2), Row("mat", 0.5)):
        hparams = {} if row.radius is None else {"epsilon": row.radius}
        output = folder / f"{row.method}-{row.radius}"
        config = RunConfig(
            algorithm=row.method, hparams=hparams, steps=2, batch_size=8, dataset_options=SMALL, output=output
        )
        made.append((row, train(config)))
    return made


@pytest.mark.parametrize("has_pictures", [True, False])
def test_the_page(results: list[tuple[Row, RunResult]], has_pictures: bool, tmp_path: Path) -> None:
    table = lines({row: [result.last] for row, result in results})
    page = tmp_path / "demo.html"
    write_demo_page(page, Plan(methods=("erm", "mat"), radii=(0.2, 0.5)), table, results, has_pictures=has_pictures)
    text = page.read_text()
    assert "domainwise demo: accuracy under unseen shift (standard, two_pass, seed 0)" in text
    for name in ("mat, epsilon 0.2", "mat, epsilon 0.5"):
        assert name in text
    chosen = next(line.row for line in table if line.row.method == "mat" and line.is_chosen)
    for radius in (0.2, 0.5):
        assert (f"Perturbations of mat, epsilon {radius:g}" in text) == (has_pictures and radius == chosen.radius)
    assert ("Where the models look (Grad-CAM)" in text) == has_pictures
