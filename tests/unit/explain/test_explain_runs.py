"""Calls on run folders: which runs they find, how runs are labeled, and what they return."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from domainwise.errors import DomainwiseError
from domainwise.explain import attack_runs, explain_runs, plot_perturbations, summarize_perturbations
from domainwise.explain.runs import find_trained_runs, label_runs, name_runs
from domainwise.training import RunConfig, train

SMALL = {"train_count": 60, "test_count": 40, "shifts": [0, 8]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train erm and uat for two steps, uat with two trial seeds."""
    folder = tmp_path_factory.mktemp("runs")
    for name, algorithm, seed in (("erm", "erm", 0), ("uat-0", "uat", 0), ("uat-1", "uat", 1)):
        config = RunConfig(
            algorithm=algorithm,
            steps=2,
            batch_size=8,
            trial_seed=seed,
            dataset_options=SMALL,
            output=folder / name,
            device="cpu",
        )
        train(config)
    return folder


def test_explain_runs_takes_a_folder_of_runs(runs: Path) -> None:
    explanation = explain_runs([runs], images=2, device="cpu")
    assert isinstance(explanation.figure, Figure)
    assert explanation.attention is not None
    assert list(explanation.attention.rows) == ["erm", "uat"]
    assert explanation.attention.rows["uat"]["shift_0"].count == 2
    assert explain_runs([runs], images=1, has_table=False, device="cpu").attention is None


def test_attack_runs_takes_a_folder_of_runs(runs: Path) -> None:
    reported = []
    frame = attack_runs(
        [runs],
        epsilons=[0.0],
        attacks=["sample"],
        images=5,
        device="cpu",
        on_progress=lambda task, done, total: reported.append((task, done, total)),
    )
    columns = ["label", "trial", "run", "domain", "attack", "norm", "epsilon", "accuracy", "images"]
    assert frame.columns == columns
    assert frame.select("label", "trial", "run").unique(maintain_order=True).rows() == [
        ("erm", 0, "erm"),
        ("uat", 0, "uat-0"),
        ("uat", 1, "uat-1"),
    ]
    assert ("attacking uat-1, run 3 of 3", 10, 10) in reported


def test_methods_without_a_perturbation_are_left_out_with_a_warning(runs: Path) -> None:
    with pytest.warns(UserWarning, match="1 run left out because the method has no perturbation"):
        summaries = summarize_perturbations([runs], images=4, device="cpu")
    assert [each.summary.run for each in summaries] == ["uat-0", "uat-1"]
    assert list(plot_perturbations(summaries)) == ["uat-0", "uat-1", "ranks"]
    with pytest.raises(DomainwiseError, match="the runs trained with erm; give runs of at"):
        summarize_perturbations([runs / "erm"], device="cpu")


@pytest.mark.parametrize("call", [explain_runs, attack_runs, summarize_perturbations])
def test_every_call_has_one_error_for_an_unknown_device(call: object, runs: Path) -> None:
    with pytest.raises(DomainwiseError, match=r"^unknown device 'gpu'.* Choices: auto, cpu, cuda, mps$"):
        call([runs], device="gpu")  # type: ignore[operator]


def test_runs_without_the_file_are_left_out_with_a_warning(runs: Path, tmp_path: Path) -> None:
    assert len(find_trained_runs([runs], "best.safetensors")) == 3
    with pytest.raises(DomainwiseError, match=r"has swad\.safetensors yet"):
        find_trained_runs([runs], "swad.safetensors")
    unfinished = tmp_path / "run"
    unfinished.mkdir()
    (unfinished / "config.json").write_text("{}")
    (unfinished / "records.jsonl").touch()
    with pytest.warns(UserWarning, match=r"1 run left out for lack of best\.safetensors"):
        assert len(find_trained_runs([runs, tmp_path], "best.safetensors")) == 3


def test_labels_contain_the_settings_that_differ() -> None:
    def settings(algorithm: str, seed: int, **hparams: object) -> dict[str, object]:
        return {"algorithm": algorithm, "trial_seed": seed, "hparams": {"lr": 1, **hparams}, "network": "mlp"}

    runs = [settings("erm", 0), settings("mat", 0, epsilon=1), settings("mat", 1, epsilon=1)]
    assert label_runs(runs) == ["erm", "mat", "mat"]
    assert label_runs([*runs, settings("mat", 0, epsilon=2)])[1:] == [
        "mat, epsilon 1",
        "mat, epsilon 1",
        "mat, epsilon 2",
    ]


def test_names_are_as_short_as_possible() -> None:
    assert name_runs([Path("/a/b/mat"), Path("/a/b/uat")]) == ["mat", "uat"]
    assert name_runs([Path("/a/b/mat"), Path("/a/c/mat")]) == ["b-mat", "c-mat"]
    assert name_runs([Path("/a/mat"), Path("/mat")]) == ["a-mat", "-mat"]
