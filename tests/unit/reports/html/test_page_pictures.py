"""The pictures on a page are of the selected models."""

from pathlib import Path
from typing import Any

import pytest

from domainwise.errors import DomainwiseError
from domainwise.reports.html import read_page_data
from domainwise.reports.html.pictures import MAX_METHODS, choose_pictured_runs, draw_model_pictures
from domainwise.selection import SELECTIONS
from domainwise.training import RunConfig, train
from run_folders import write_run

SMALL = {"train_count": 60, "test_count": 40, "shifts": [0, 8]}


def pictured(folder: Path, selection: str, **options: Any) -> Any:
    data = read_page_data([folder], **options)
    return choose_pictured_runs(data, selection, SELECTIONS[selection](data.runs.frame))


def with_models(run: Path) -> None:
    for which in ("best", "last"):
        (run / f"{which}.safetensors").touch()


def test_selected_runs_of_the_first_trial_on_the_hardest_domain(tmp_path: Path) -> None:
    for trial in (0, 1):
        for method, accuracy in (("erm", 0.5), ("mat", 0.7)):
            for tested in ("art", "sketch"):
                for draw in (0, 1):
                    with_models(
                        write_run(
                            tmp_path / f"{method}-{tested}-{draw}-{trial}",
                            method,
                            tested,
                            (accuracy - 0.3 * (tested == "sketch"),),
                            trial=trial,
                            draw=draw,
                            training=0.9 - 0.1 * draw,
                        )
                    )
    (choice,) = pictured(tmp_path, "training_domain")
    assert (choice.dataset, choice.domain, choice.which) == ("toy", "sketch", "best")
    assert choice.folders == {name: tmp_path / f"{name}-sketch-0-0" for name in ("erm", "mat")}
    (oracle,) = pictured(tmp_path, "test_domain")
    assert oracle.which == "last"


def test_best_variant_is_shown(tmp_path: Path) -> None:
    for epsilon, training in ((0.1, 0.7), (1.0, 0.9), (2.0, 0.8)):
        hparams = {"epsilon": epsilon}
        with_models(write_run(tmp_path / f"mat-{epsilon}", "mat", "art", hparams=hparams, training=training))
    (choice,) = pictured(tmp_path, "training_domain", split_variants=True)
    assert choice.folders == {"mat, epsilon 1": tmp_path / "mat-1.0"}


def test_runs_without_models_and_too_many_methods(tmp_path: Path) -> None:
    write_run(tmp_path / "gone", "erm", "art")
    assert pictured(tmp_path, "training_domain") == []
    for number in range(MAX_METHODS + 2):
        with_models(write_run(tmp_path / str(number), f"method{number}", "art"))
    (choice,) = pictured(tmp_path, "training_domain")
    assert list(choice.folders) == [f"method{number}" for number in range(MAX_METHODS)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: train(
            RunConfig(algorithm=name, steps=2, batch_size=8, dataset_options=SMALL, output=folder / name, device="cpu")
        ).folder
        for name in ("erm", "mat")
    }


def test_all_kinds_of_pictures(runs: dict[str, Path]) -> None:
    seen: list[tuple[int, int]] = []
    pictures = draw_model_pictures(runs, "shift_8", on_progress=lambda _, done, total: seen.append((done, total)))
    assert [picture.title for picture in pictures] == [
        "Where the models look (Grad-CAM)",
        "Perturbations of mat",
        "Components of mat",
        "Ranks of the perturbations",
        "Accuracy under attack",
    ]
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert "on the object, over all shift_8 images: erm " in pictures[0].caption
    assert all(picture.png for picture in pictures)


def test_network_without_feature_maps_raises_an_error(tmp_path: Path) -> None:
    run = train(
        RunConfig(algorithm="erm", network="mlp", steps=1, batch_size=8, dataset_options=SMALL, output=tmp_path / "mlp")
    ).folder
    with pytest.raises(DomainwiseError, match="Grad-CAM needs a layer"):
        draw_model_pictures({"erm": run}, "shift_8")
