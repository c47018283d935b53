"""The recipe of threats: its statistics by hand, and its measurements of real runs."""

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import Tensor, nn

from domainwise.data.dataset import Domain, Split
from domainwise.errors import DomainwiseError, RunInterrupted
from domainwise.explain.corruptions import corrupt_images
from domainwise.fake_device import DEVICE, FakeDevice
from domainwise.reproduction import threats
from domainwise.reproduction.plan import RecipePlan, plan_recipe
from domainwise.reproduction.recipe import find_recipe, find_scale
from domainwise.reproduction.results import write_result
from domainwise.reproduction.runner import ReproductionCallbacks, run_recipe_plans
from domainwise.reproduction.threats import (
    ATTACKS,
    AXES,
    MEASUREMENTS,
    THREATS,
    compare_with_reference,
    correlate_axes,
    list_differences,
    measure_threats,
    plot_threats,
    read_threats,
    tabulate_threats,
)
from domainwise.storage.run_folder import RunFolder
from domainwise.storage.sweep_folder import PlannedRun, SweepFolder
from domainwise.sweeps.runner import run_plan
from domainwise.training.loading import OpenRun, open_run
from in_process_engine import train_in_process


def frame_of(accuracies: dict[str, list[float]], *, shift: float = 0.01) -> pl.DataFrame:
    """Return a frame in which each row has one accuracy per trial under every threat, a little lower for each next."""
    lines = [
        ("toy", row, trial, threat.name, threat.axis, accuracy - shift * index, False)
        for row, values in accuracies.items()
        for trial, accuracy in enumerate(values)
        for index, threat in enumerate(THREATS)
    ]
    return pl.DataFrame(lines, schema=threats._SCHEMA, orient="row")


def test_differences_are_paired_by_trial() -> None:
    frame = frame_of({"erm": [0.5, 0.7, 0.6], "mat": [0.6, 0.6, 0.9], "at": [0.9]})
    differences = list_differences(frame)
    assert differences["mat", "clean"] == pytest.approx([10, -10, 30])
    assert differences["at", "corruptions"] == pytest.approx([40])
    assert not any(row == "erm" for row, _ in differences)


def test_the_rows_of_a_threat_are_judged_together() -> None:
    undecided = [0.4, 0.6, 0.3, 0.7]
    frame = frame_of({"erm": [0.5] * 4, "mat": [0.6, 0.61, 0.59, 0.6], "uat": undecided, "at": undecided})
    judgements = compare_with_reference(frame)
    assert len(judgements) == 3 * len(THREATS)
    one = judgements["mat", "clean"]
    assert one.estimate == pytest.approx(10)
    assert one.verdict == "holds"
    # Three rows; with all threats in one family it would be far less.
    assert 0.05 / 6 <= one.level < 0.05


def test_a_row_with_a_collapsed_run_has_no_verdict() -> None:
    frame = frame_of({"erm": [0.5] * 4, "mat": [0.6, 0.61, 0.59, 0.6], "uat": [0.6, 0.61, 0.59, 0.6]})
    frame = frame.with_columns(is_collapsed=(pl.col("row") == "mat") & (pl.col("trial") == 2))
    judgements = compare_with_reference(frame)
    assert (judgements["mat", "clean"].verdict, judgements["uat", "clean"].verdict) == ("inconclusive", "holds")
    table = tabulate_threats(frame, "toy")[1]
    mat, uat = table.rows
    assert mat[0] == "mat (1 of 4 trials collapsed or failed)"
    assert not any("▲" in cell for cell in mat)
    assert all("▲" in cell for cell in uat[1:])
    assert "mat: runs are at chance level or failed in 1 of 4 trials: mat in trial 2 is at chance level." in table.notes


def test_a_row_with_a_failed_run_has_no_verdict() -> None:
    frame = frame_of({"erm": [0.5] * 4, "mat": [0.6, 0.61, 0.59, 0.6], "uat": [0.6, 0.61, 0.59, 0.6]})
    failed = PlannedRun(Path("run"), "run", "toy", "mat", ("test",), 4, 0)
    mat, uat = tabulate_threats(frame, "toy", {"mat": [(failed, "the loss is nan")]})[1].rows
    assert mat[0] == "mat (1 of 5 trials collapsed or failed)"
    assert not any("▲" in cell for cell in mat)
    assert uat[0] == "uat"
    both = compare_with_reference(frame, {"erm": [(failed, "the loss is nan")]})
    assert {each.verdict for each in both.values()} == {"inconclusive"}
    assert both["uat", "clean"].paired.problems == ("erm in trial 4 failed (the loss is nan)",)


def test_the_failed_runs_of_a_plan_are_in_its_tables(measured_plan: RecipePlan) -> None:
    erm, mat = measured_plan.row_plans
    ((done, config),) = mat.runs.items()
    failed = replace(done, folder=measured_plan.folder / "failed", trial=1)
    RunFolder(failed.folder).write_failure("the loss is nan")
    longer = replace(measured_plan, row_plans=(erm, replace(mat, runs={**mat.runs, failed: config})))
    # After two steps, the other one is at chance level.
    assert write_result(longer).tables[1].rows[0][0] == "mat, l2 2/255 rms (2 of 2 trials collapsed or failed)"


def test_ranks_of_rows_are_correlated_within_each_trial() -> None:
    order = {"erm": 0.1, "uat": 0.2, "mat": 0.3, "at": 0.4}
    frame = frame_of({row: [value, 1 - value] for row, value in order.items()})
    # Reversing one axis in one trial turns +1 into -1 there.
    is_reversed = (pl.col("axis") == "corruptions") & (pl.col("trial") == 1)
    frame = frame.with_columns(accuracy=pl.when(is_reversed).then(1 - pl.col("accuracy")).otherwise("accuracy"))
    correlations = correlate_axes(frame)
    assert correlations["new domains", "sample-wise attacks"].mean == pytest.approx(1)
    assert correlations["new domains", "corruptions"].mean == pytest.approx(0)
    assert len(correlations) == len(AXES) * (len(AXES) - 1) // 2


def test_equal_means_have_equal_ranks() -> None:
    frame = frame_of({"erm": [0.1], "uat": [0.2], "mat": [0.3]}, shift=0)
    # Their means are 0.43, but for the last bit.
    pairs = {"erm": (0.04, 0.82), "uat": (0.05, 0.81), "mat": (0.08, 0.78)}
    assert len({(one + other) / 2 for one, other in pairs.values()}) == 2
    one, other = (threat.name for threat in THREATS if threat.axis == "sample-wise attacks")
    own = pl.struct("row", "threat").replace_strict(
        [{"row": row, "threat": threat} for row in pairs for threat in (one, other)],
        [value for pair in pairs.values() for value in pair],
        default=None,
    )
    correlations = correlate_axes(frame.with_columns(accuracy=pl.coalesce(own, "accuracy")))
    assert {pair for pair in correlations if "sample-wise attacks" in pair} == set()


def test_an_axis_that_is_equal_for_all_rows_has_no_correlation() -> None:
    frame = frame_of({row: [value] for row, value in (("erm", 0.1), ("uat", 0.2), ("mat", 0.3))})
    frame = frame.with_columns(accuracy=pl.when(pl.col("axis") == "corruptions").then(0.5).otherwise("accuracy"))
    assert {pair for pair in correlate_axes(frame) if "corruptions" in pair} == set()


def test_tables_mark_intervals_without_zero_and_hide_those_of_one_trial() -> None:
    several = frame_of({"erm": [0.5, 0.5, 0.5, 0.5], "mat": [0.6, 0.61, 0.59, 0.6], "at": [0.4, 0.41, 0.39, 0.4]})
    accuracy, difference, _ = tabulate_threats(several, "toy")
    assert accuracy.rows[0][:2] == ("erm", "50.0 ± 0.0")
    assert difference.rows[0][1].startswith("▲ +10.0 [+")
    assert difference.rows[1][1].startswith("▼ -10.0 [-")
    _, difference = tabulate_threats(frame_of({"erm": [0.5], "mat": [0.6]}), "toy")
    assert difference.rows == (("mat", *["+10.0"] * len(THREATS)),)


def test_the_picture_has_one_panel_per_axis_and_one_line_per_row() -> None:
    figure = plot_threats(frame_of({"erm": [0.5, 0.5], "mat": [0.6, 0.7], "at": [0.4, 0.6]}), "toy")
    assert figure is not None
    assert [panel.get_title() for panel in figure.axes] == ["no threat", *AXES]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["at", "mat"]


def test_rows_without_the_reference_have_a_table_and_no_picture() -> None:
    frame = frame_of({"mat": [0.6, 0.7], "at": [0.4, 0.6]})
    assert plot_threats(frame, "toy") is None
    assert [table.title for table in tabulate_threats(frame, "toy")] == ["Accuracy under each threat on toy, percent"]


def test_images_that_cannot_be_corrupted_are_skipped_before_training(tmp_path: Path) -> None:
    settings = {"dataset_options": {"train_count": 40, "test_count": 10, "image_size": 16}}
    planned = plan_recipe(
        find_recipe("threats"), find_scale("smoke"), tmp_path / "threats", tmp_path / "runs", settings=settings
    )
    assert planned.row_plans == ()
    assert "at least 32 x 32 pixels, got 16 x 16" in planned.skipped["silhouettes"]


def test_draws_are_refused_because_nothing_selects_one(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match="threats has one hyperparameter draw"):
        plan_recipe(find_recipe("threats"), find_scale("smoke", draws=2), tmp_path / "threats", tmp_path / "runs")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RecipePlan:
    """Two rows of two steps, trained."""
    folder = tmp_path_factory.mktemp("threats")
    planned = plan_recipe(
        find_recipe("threats"),
        find_scale("smoke"),
        folder / "threats",
        folder / "runs",
        rows=["erm", "mat, l2 2/255 rms"],
        settings={"dataset_options": {"train_count": 40, "test_count": 10}},
        device="cpu",
    )
    run_plan(planned.runs, train_in_process)
    return planned


@pytest.fixture
def plan(trained: RecipePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecipePlan:
    """The trained runs, without measurements; one corruption is enough here."""
    monkeypatch.setattr(threats, "CORRUPTIONS", ("contrast",))
    return replace(trained, folder=tmp_path / "threats")


@pytest.fixture(scope="module")
def measurements(trained: RecipePlan) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threats, "CORRUPTIONS", ("contrast",))
        measure_threats(trained)
    return (trained.folder / MEASUREMENTS).read_bytes()


@pytest.fixture
def measured_plan(plan: RecipePlan, measurements: bytes) -> RecipePlan:
    """The trained runs with their measurements."""
    plan.folder.mkdir()
    (plan.folder / MEASUREMENTS).write_bytes(measurements)
    return plan


def test_every_finished_run_is_measured_once(measured_plan: RecipePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = measured_plan
    frame = read_threats(plan)
    assert frame["row"].unique(maintain_order=True).to_list() == ["erm", "mat, l2 2/255 rms"]
    assert frame.height == 2 * len(THREATS)
    assert frame["accuracy"].is_between(0, 1).all()
    file = plan.folder / MEASUREMENTS
    lines = file.read_text().splitlines()
    # A damaged line is measured again, the other is not.
    file.write_text(f"{lines[0]}\n{lines[1][:-9]}\n")
    measured: list[OpenRun] = []

    def measure_run(run: OpenRun, *_: object) -> dict[str, float]:
        measured.append(run)
        accuracies: dict[str, float] = json.loads(lines[1])["accuracy"]
        return accuracies

    monkeypatch.setattr(threats, "measure_run", measure_run)
    measure_threats(plan)
    assert len(measured) == 1
    assert file.read_text().splitlines() == lines


def test_interrupted_measurements_go_on_where_they_were(plan: RecipePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[OpenRun] = []

    def measure_run(run: OpenRun, *_: object) -> dict[str, float]:
        measured.append(run)
        return dict.fromkeys((threat.name for threat in THREATS), 0.5)

    monkeypatch.setattr(threats, "measure_run", measure_run)
    folder, seen = SweepFolder(plan.folder.parent), []
    callbacks = ReproductionCallbacks(
        on_data=lambda task, done, total: seen.append((task, done, total)), should_stop=lambda: len(measured) == 1
    )
    with pytest.raises(RunInterrupted, match="stopped: measuring threats, 1 of 2 done"):
        run_recipe_plans([plan], folder, report_only=True, callbacks=callbacks)
    assert [each for each in seen if each[0] == "corrupting images of style_0"] == [
        ("corrupting images of style_0", done, 5) for done in range(1, 6)
    ]
    run_recipe_plans([plan], folder, report_only=True, callbacks=ReproductionCallbacks())
    assert len({run.folder.path for run in measured}) == len(measured) == 2


def test_a_run_is_measured_on_the_device_of_its_config(plan: RecipePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    per_image, per_domain = (next(each for each in ATTACKS if each.attack == name) for name in ("pgd", "domain"))
    monkeypatch.setattr(threats, "ATTACKS", (per_image, per_domain))
    folder = plan.row_plans[0].list_finished()[0]
    run = open_run(folder)
    corrupted = {name: [run.dataset.domains[run.dataset.index(name)]] for name in run.roles.train}
    expected = threats.measure_run(run, corrupted, torch.device("cpu"))
    with FakeDevice() as gpu:
        accuracies = threats.measure_run(open_run(folder), corrupted, DEVICE)
        assert gpu.waits
    assert accuracies == expected


class Shapes(nn.Module):
    """A linear model that records how many images it ascends on at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.sizes.append(len(x))
        return x.mean((2, 3))


def test_a_domain_wise_attack_is_fitted_on_as_many_large_images_as_small_ones() -> None:
    images = torch.zeros((700, 3, 128, 128), dtype=torch.uint8)
    domain = Domain("large", images, torch.zeros(700, dtype=torch.int64))
    model, threat = Shapes(), next(each for each in THREATS if each.attack == "domain")
    split = Split(torch.arange(640), torch.arange(640, 700))
    threats._measure_attack(model, domain, split, threat, torch.device("cpu"))
    assert model.sizes == [32] * 20


def test_accuracies_are_those_of_the_holdouts_and_of_the_record(measured_plan: RecipePlan) -> None:
    plan = measured_plan
    erm = read_threats(plan).filter(row="erm")
    accuracies = dict(erm.select("threat", "accuracy").iter_rows())
    run = open_run(plan.row_plans[0].list_finished()[0])
    record = run.records[-1]["accuracy"]
    assert accuracies["clean"] == pytest.approx(sum(record[name]["holdout"] for name in run.roles.train) / 2)
    assert accuracies["new domains"] == pytest.approx(sum(record[name]["main"] for name in run.roles.test) / 5)
    contrast = []
    for name in run.roles.train:
        domain, holdout = run.dataset.domains[run.dataset.index(name)], run.splits[name].holdout
        for severity in range(1, 6):
            images = corrupt_images(domain.images[holdout], "contrast", severity)
            correct = run.model("last")(images / 255).argmax(1) == domain.labels[holdout]
            contrast.append(float(correct.float().mean()))
    assert accuracies["corruptions"] == pytest.approx(sum(contrast) / len(contrast))


def test_the_result_has_tables_a_picture_and_a_page(measured_plan: RecipePlan) -> None:
    result = write_result(measured_plan)
    assert [table.title for table in result.tables] == [
        "Accuracy under each threat on silhouettes, percent",
        "Difference to erm on silhouettes, points",
    ]
    assert [file.name for file in result.files] == [
        *("result.md", "threats_silhouettes.png", "threats.csv", "result.html")
    ]
    assert (
        pl.read_csv(result.files[2])["clean"].to_list()
        == read_threats(measured_plan).filter(threat="clean")["accuracy"].to_list()
    )
    assert "Difference to erm on silhouettes, points" in result.files[-1].read_text()
