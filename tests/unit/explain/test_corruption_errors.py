"""Accuracy under corruptions agrees with evaluation by hand; images are shared; mCE and relative mCE by hand."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from domainwise.cli.robustness import _print_corruptions
from domainwise.errors import DomainwiseError
from domainwise.explain import corruption_errors
from domainwise.explain.corruption_errors import measure_corruptions, summarize_corruptions
from domainwise.explain.corruptions import corrupt_images
from domainwise.explain.plots.corruptions import plot_corruptions
from domainwise.explain.runs import CorruptedAccuracy, corrupt_runs
from domainwise.training import RunConfig, train
from domainwise.training.loading import OpenRun, open_run

COUNTS = {"train_count": 120, "test_count": 60, "shifts": [0, 8]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train erm and uat in two trials."""
    runs = tmp_path_factory.mktemp("runs")
    for trial in (0, 1):
        for name, steps in (("erm", 60), ("uat", 5)):
            output = runs / f"{name}-{trial}"
            train(
                RunConfig(
                    algorithm=name,
                    steps=steps,
                    batch_size=16,
                    trial_seed=trial,
                    dataset_options=COUNTS,
                    output=output,
                    device="cpu",
                )
            )
    return runs


@pytest.fixture(scope="module")
def run(folder: Path) -> OpenRun:
    return open_run(folder / "erm-0")


def test_accuracy_agrees_with_evaluation_by_hand(run: OpenRun) -> None:
    (results,) = measure_corruptions(
        [run], domains=["shift_8"], corruptions=["gaussian_noise", "contrast"], severities=[2, 5], images=30, seed=3
    )
    places = [("clean", 0), ("gaussian_noise", 2), ("gaussian_noise", 5), ("contrast", 2), ("contrast", 5)]
    assert [(each.corruption, each.severity) for each in results] == places
    domain, indices = run.dataset.domains[run.dataset.index("shift_8")], run.splits["shift_8"].main[:30]
    model = run.model()
    for each in results:
        images = domain.images
        if each.severity:
            # All images of the domain: the index of an image is its place there.
            images = corrupt_images(images, each.corruption, each.severity, seed=3)
        with torch.no_grad():
            predicted = model(images[indices].float() / 255).argmax(1)
        assert each.accuracy == int((predicted == domain.labels[indices]).sum()) / 30
        assert (each.run, each.domain, each.images) == ("erm-0", "shift_8", 30)
    assert len({each.accuracy for each in results}) > 1


def test_clean_accuracy_is_the_recorded_one_by_default_on_the_test_domains(run: OpenRun) -> None:
    (results,) = measure_corruptions([run], corruptions=["contrast"], severities=[1], which="last")
    clean = {each.domain: each.accuracy for each in results if each.corruption == "clean"}
    recorded = run.records[-1]["accuracy"]
    assert clean == {name: recorded[name]["main"] for name in ("shift_0", "shift_8")}


def count_corrupted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counts = []

    def count(images: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        counts.append(len(images))
        return corrupt_images(images, *args, **options)

    monkeypatch.setattr(corruption_errors, "corrupt_images", count)
    return counts


def test_runs_with_the_same_images_share_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request: dict[str, Any] = {
        "domains": ["shift_8"],
        "corruptions": ["gaussian_noise"],
        "severities": [1],
        "images": 9,
    }
    names = ("erm-0", "erm-1", "uat-0")
    alone = [measure_corruptions([open_run(folder / name)], **request)[0] for name in names]
    counts = count_corrupted(monkeypatch)
    assert measure_corruptions([open_run(folder / name) for name in names], **request) == alone
    # Trial 1 has images of its own.
    assert counts == [9, 9]
    monkeypatch.setattr(corruption_errors, "_MAX_MODELS", 1)
    assert measure_corruptions([open_run(folder / name) for name in names], **request) == alone
    assert counts == [9, 9, 9, 9, 9]


def test_runs_by_their_folders(folder: Path) -> None:
    reports: list[tuple[int, int]] = []
    corrupted = corrupt_runs(
        [folder],
        corruptions=["contrast", "pixelate"],
        severities=[3],
        images=10,
        on_progress=lambda task, done, total: reports.append((done, total)) if "corruptions" in task else None,
    )
    frame = corrupted.measurements
    assert frame.columns == [
        "label",
        "trial",
        "held_out",
        "run",
        "domain",
        "corruption",
        "severity",
        "accuracy",
        "images",
    ]
    assert frame["run"].unique(maintain_order=True).to_list() == ["erm-0", "erm-1", "uat-0", "uat-1"]
    assert frame["held_out"].unique().to_list() == ["shift_0, shift_8"]
    assert len(frame) == 4 * 2 * 3
    assert reports[-1] == (4, 4)
    assert corrupted.summary.filter(label="erm")["mce"].to_list() == [1.0] * 4
    assert corrupted.summary.filter(label="uat")["mce"].null_count() == 0
    figure = plot_corruptions(frame)
    assert [panel.get_title() for panel in figure.axes][:2] == [
        "shift_0: mean over corruptions",
        "shift_0: mean over severities",
    ]
    # Levels 0 and 3 of the mean of two trials.
    (line, _) = figure.axes[0].get_lines()
    clean = frame.filter(label="erm", domain="shift_0", corruption="clean")["accuracy"].mean()
    corrupt = frame.filter(pl.col("severity") == 3, label="erm", domain="shift_0")["accuracy"].mean()
    assert list(line.get_xdata()) == [0, 3]
    assert list(line.get_ydata()) == pytest.approx([clean, corrupt])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corruptions": ["frots"]}, "did you mean 'frost'"),
        ({"severities": [0]}, "from 1 to 5, got 0"),
        ({"severities": []}, "at least one corruption and one severity"),
        ({"images": 0}, "at least 1, got 0"),
        ({"domains": ["shift_88"]}, "did you mean 'shift_8'"),
    ],
)
def test_errors(run: OpenRun, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        measure_corruptions([run], **options)


def test_an_unknown_reference_fails_before_anything_is_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_corrupted(monkeypatch)
    with pytest.raises(DomainwiseError, match="unknown reference 'amt'"):
        corrupt_runs([folder], reference="amt", images=2)
    assert not counts


def make_frame(accuracies: dict[str, dict[str, list[float]]], trial: int = 0, held_out: str = "a") -> pl.DataFrame:
    """One row per run, corruption and severity; runs are named after their label and trial."""
    return pl.DataFrame(
        [
            {
                "label": label,
                "trial": trial,
                "held_out": held_out,
                "run": f"{label}-{held_out}-{trial}",
                "domain": "a",
                "corruption": corruption,
                "severity": severity,
                "accuracy": accuracy,
            }
            for label, by_corruption in accuracies.items()
            for corruption, values in by_corruption.items()
            for severity, accuracy in enumerate(values, start=corruption != "clean")
        ]
    )


ACCURACIES = {
    "erm": {"clean": [0.9], "fog": [0.8, 0.6], "snow": [0.7, 0.5]},
    "mat": {"clean": [0.8], "fog": [0.8, 0.7], "snow": [0.4, 0.4]},
}


def test_mce_by_hand() -> None:
    """Errors summed over severities: erm 0.6 (fog) and 0.8 (snow), mat 0.5 and 1.2; clean 0.1 and 0.2."""
    erm, mat = summarize_corruptions(make_frame(ACCURACIES)).iter_rows(named=True)
    assert mat["clean"] == 0.8
    assert mat["accuracy"] == pytest.approx((0.8 + 0.7 + 0.4 + 0.4) / 4)
    assert mat["error"] == pytest.approx(1 - mat["accuracy"])
    assert mat["mce"] == pytest.approx((0.5 / 0.6 + 1.2 / 0.8) / 2)
    # Beyond the clean error of both severities: erm 0.4 and 0.6, mat 0.1 and 0.8.
    assert mat["relative_mce"] == pytest.approx((0.1 / 0.4 + 0.8 / 0.6) / 2)
    assert (erm["mce"], erm["relative_mce"]) == (1, 1)
    assert mat["left_out"] == []


def test_the_reference_is_a_method_or_a_run() -> None:
    other = {"erm": {"clean": [1.0], "fog": [0.5, 0.5], "snow": [0.5, 0.5]}, "mat": ACCURACIES["mat"]}
    frame = pl.concat([make_frame(ACCURACIES), make_frame(other, trial=1)])

    def summarize(reference: str | None) -> dict[str, float]:
        return dict(summarize_corruptions(frame, reference).select("run", "mce").iter_rows())

    assert summarize("erm") == summarize(None)
    # Each trial has its own reference, unless this is a run.
    assert summarize(None)["mat-a-1"] == pytest.approx((0.5 / 1 + 1.2 / 1) / 2)
    assert summarize("erm-a-0")["mat-a-1"] == summarize(None)["mat-a-0"]
    assert summarize("mat")["erm-a-0"] == pytest.approx((0.6 / 0.5 + 0.8 / 1.2) / 2)
    with pytest.raises(DomainwiseError, match=r"unknown reference 'matt'.*did you mean 'mat'"):
        summarize("matt")


def test_without_a_reference_of_the_same_trial_and_held_out_domains_there_is_no_mce() -> None:
    mat = {"mat": ACCURACIES["mat"]}
    alone = summarize_corruptions(make_frame(mat)).row(0, named=True)
    assert (alone["mce"], alone["relative_mce"], alone["left_out"]) == (None, None, [])
    assert alone["error"] == pytest.approx(0.425)
    frame = pl.concat([make_frame(ACCURACIES), make_frame(mat, held_out="b"), make_frame(mat, trial=1)])
    summary = summarize_corruptions(frame)
    assert summary.filter(pl.col("mce").is_null())["run"].to_list() == ["mat-b-0", "mat-a-1"]


def test_a_corruption_that_costs_the_reference_nothing_is_left_out_of_relative_mce() -> None:
    erm = {"clean": [0.7], "fog": [0.7, 0.7], "snow": [0.7, 0.5]}
    mat = summarize_corruptions(make_frame({"erm": erm, "mat": ACCURACIES["mat"]})).row(1, named=True)
    assert mat["left_out"] == ["fog"]
    assert mat["relative_mce"] == pytest.approx(0.8 / 0.2)
    assert mat["mce"] == pytest.approx((0.5 / 0.6 + 1.2 / 0.8) / 2)


def test_a_corruption_without_errors_of_the_reference_is_left_out_of_both() -> None:
    erm = {"clean": [1.0], "fog": [1.0, 1.0], "snow": [0.7, 0.5]}
    mat = summarize_corruptions(make_frame({"erm": erm, "mat": ACCURACIES["mat"]})).row(1, named=True)
    assert (mat["without_error"], mat["left_out"]) == (["fog"], ["fog"])
    assert mat["mce"] == pytest.approx(1.2 / 0.8)


def test_what_is_left_out_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    flawless = {"clean": [1.0], "fog": [1.0, 1.0]}
    for erm, message in (
        (flawless, "mCE omits corruptions under which erm makes no errors in some trial: fog"),
        ({**flawless, "fog": [0.9, 0.9], "clean": [0.9]}, "relative mCE omits corruptions that do not lower the acc"),
    ):
        frame = make_frame({"erm": erm, "mat": {"clean": [0.8], "fog": [0.8, 0.7]}})
        _print_corruptions(CorruptedAccuracy(frame, summarize_corruptions(frame)), False, None)
        output = capsys.readouterr()
        assert message in output.err
        assert "no run of erm" not in output.err
        assert "mCE" in output.out
