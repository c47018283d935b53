"""The runs on a page, done or not, the summary at its top, its selections and its pictures."""

import json
from pathlib import Path

import pytest

from domainwise.errors import DomainwiseError
from domainwise.reports.html import Picture, read_page_data, render_page, write_page
from domainwise.reports.html.caveats import summarize_runs
from domainwise.reports.html.page_data import build_run_rows
from domainwise.selection import SELECTIONS
from domainwise.storage.run_folder import RunFolder
from run_folders import write_grid, write_run


def planned(run: str, algorithm: str) -> str:
    line = {"run": run, "dataset": "toy", "algorithm": algorithm, "test_domains": ["art"], "trial_seed": 0}
    return json.dumps({**line, "hparams_seed": 0}) + "\n"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    folder = tmp_path / "sweep"
    write_grid(folder, "erm", 0.4)
    write_run(folder / "broken", "mat", "art", is_done=False)
    (folder / "broken" / "failed.txt").write_text("Traceback\nValueError: out of luck\n")
    write_run(folder / "begun", "uat", "art", is_done=False)
    (folder / "plan.jsonl").write_text(planned("broken", "mat") + planned("begun", "uat") + planned("later", "ldat"))
    return folder


def test_run_rows_have_accuracies_states_and_errors(sweep: Path) -> None:
    data = read_page_data([sweep])
    selected = {"training_domain": SELECTIONS["training_domain"](data.runs.frame)}
    rows = {row["folder"]: row for row in build_run_rows(data, selected)}
    assert len(rows) == 12
    assert rows["erm-sketch-2-0"]["last"] == pytest.approx(64)
    assert rows["erm-sketch-2-0"]["selected"] == {"training_domain": pytest.approx(64)}
    assert rows["erm-sketch-2-0"]["settings"]["network"] == "small_cnn"
    assert (rows["broken"]["state"], rows["broken"]["error"]) == ("failed", "ValueError: out of luck")
    assert rows["broken"]["last"] is None
    assert (rows["begun"]["state"], rows["later"]["state"]) == ("unfinished", "pending")
    assert rows["later"]["command"] == ""


def test_stopped_draws_are_listed_with_the_reason_and_count_as_searched(tmp_path: Path) -> None:
    for algorithm in ("erm", "mat"):
        write_run(tmp_path / algorithm, algorithm, "art", (0.2, 0.3))
    write_run(tmp_path / "stopped", "mat", "art", (0.1,), draw=1, is_done=False)
    reason = "after 1 of 2 steps: holdout 10.0, survivors from 20.0"
    RunFolder(tmp_path / "stopped").write_stop(1, reason)
    data = read_page_data([tmp_path])
    assert data.runs.notes == ()
    rows = {row["folder"]: row for row in build_run_rows(data, {})}
    assert (rows["stopped"]["state"], rows["stopped"]["reason"]) == ("stopped", reason)
    assert rows["mat"]["reason"] == ""
    summary = dict(summarize_runs(data))
    assert summary["Hyperparameter draws"] == "1 to 2"
    assert summary["Runs"] == "2 done, 1 stopped"
    assert reason in render_page(data)


def test_run_that_was_not_selected_has_no_selected_accuracy(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "erm", "art", (0.2, 0.3))
    write_run(tmp_path / "b", "erm", "art", (0.4, 0.5), draw=1, training=0.5)
    data = read_page_data([tmp_path])
    selected = {"training_domain": SELECTIONS["training_domain"](data.runs.frame)}
    assert {row["folder"]: list(row["selected"]) for row in build_run_rows(data, selected)} == {
        "a": ["training_domain"],
        "b": [],
    }


def test_hyperparameter_and_setting_of_the_same_name_are_both_listed(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "at", "art", hparams={"steps": 9})
    ((row),) = build_run_rows(read_page_data([tmp_path]), {})
    assert (row["settings"]["steps"], row["settings"]["run steps"]) == ("9", "2")


def test_summary_lists_what_was_run(sweep: Path) -> None:
    write_grid(sweep, "at", 0.4, draw=1, trials=2)
    summary = dict(summarize_runs(read_page_data([sweep])))
    assert summary["Datasets"] == "toy"
    assert summary["Methods"] == "erm, at, uat, mat, ldat"
    assert summary["Trials"] == "2 to 3"
    assert summary["Hyperparameter draws"] == "1"
    assert summary["Steps"] == "2"
    assert summary["Networks"] == "small_cnn"
    assert summary["Runs"] == "15 done, 1 failed, 1 unfinished, 1 pending"
    assert summary["Made with"].startswith("domainwise ")


def test_domainbed_runs_are_listed(tmp_path: Path) -> None:
    line = {"step": 0, "loss": 0.5, "hparams": {"lr": 0.1}, "args": {"dataset": "VLCS", "algorithm": "ERM"}}
    line["args"] |= {"test_envs": [0], "trial_seed": 0, "hparams_seed": 0}
    line |= {f"env{index}_{part}_acc": 0.5 for index in range(4) for part in ("in", "out")}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.jsonl").write_text(json.dumps(line) + "\n")
    (run,) = read_page_data([tmp_path]).page_runs.values()
    assert (run.planned.dataset, run.planned.algorithm, run.status.state) == ("vlcs", "erm", "done")
    assert run.hparams == {"lr": 0.1}
    assert run.losses == {0: 0.5}
    assert "vlcs" in render_page(read_page_data([tmp_path]))


def test_only_selections_that_select_something_are_shown(sweep: Path) -> None:
    page = render_page(read_page_data([sweep]))
    assert 'data-selection="training_domain">' in page
    assert 'data-selection="test_domain" hidden>' in page
    assert "leave_one_out" not in page
    assert "ood_validation" not in page
    turned = render_page(read_page_data([sweep]), selections=["test_domain", "training_domain"])
    assert 'data-selection="test_domain">' in turned
    with pytest.raises(DomainwiseError, match="no runs for a page: leave_one_out selects none of them"):
        render_page(read_page_data([sweep]), selections=["leave_one_out"])
    with pytest.raises(DomainwiseError, match="unknown selection 'oracle'"):
        render_page(read_page_data([sweep]), selections=["oracle"])


def test_pictures_are_embedded(sweep: Path, tmp_path: Path) -> None:
    pictures = [
        Picture("Grad-CAM", "where it looks", "a camel", png=b"\x89PNG..."),
        Picture("Stripes", "what it adds", "stripes", svg='<svg id="mine"></svg>'),
    ]
    write_page(tmp_path / "new" / "page.html", [sweep], pictures=pictures)
    text = (tmp_path / "new" / "page.html").read_text()
    assert '<img alt="a camel" src="data:image/png;base64,iVBORy4uLg==">' in text
    assert '<div role="img" aria-label="stripes"><svg id="mine"></svg></div>' in text
    assert text.index("Grad-CAM") < text.index("All runs")
    assert "Pictures</h2>" not in render_page(read_page_data([sweep]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"svg": "<svg></svg>", "png": b"\x89PNG"}, "must have either svg or png"),
        ({}, "must have either svg or png"),
        ({"png": b"GIF89a"}, "is not a PNG file"),
        ({"svg": "<script>"}, "must start with <svg"),
        ({"svg": "<svg></svg>", "alt": ""}, "has no alt text"),
    ],
)
def test_invalid_pictures(given: dict[str, object], message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        Picture(**{"title": "t", "caption": "c", "alt": "a", **given})  # type: ignore[arg-type]
