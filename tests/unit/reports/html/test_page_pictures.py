"""The pictures on a page are of the selected models."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from domainwise.errors import DomainwiseError
from domainwise.reports import write_page
from domainwise.reports.html import pictures as pictures_module
from domainwise.reports.html import read_page_data
from domainwise.reports.html.pictures import MAX_METHODS, choose_pictured_runs, draw_model_pictures
from domainwise.selection import SELECTIONS, select_models
from domainwise.training import RunConfig, train
from domainwise.training.loading import open_run
from easy_images import write_easy_images
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


def test_the_worst_domain_and_the_best_variant_of_a_metric_that_should_be_low(tmp_path: Path) -> None:
    for epsilon, error in ((0.1, 0.3), (1.0, 0.1), (2.0, 0.2)):
        for tested, shift in (("art", 0.0), ("sketch", 0.1)):
            run = write_run(tmp_path / f"mat-{tested}-{epsilon}", "mat", tested, hparams={"epsilon": epsilon})
            with_models(run)
            lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
            for line in lines:
                line["metrics"] = {
                    "ece": {name: dict.fromkeys(parts, error + shift) for name, parts in line["accuracy"].items()}
                }
            (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = read_page_data([tmp_path], split_variants=True, metric="ece")
    selected = select_models(data.runs.frame, "training_domain", data.runs.metric)
    (choice,) = choose_pictured_runs(data, "training_domain", selected)
    assert choice.domain == "sketch"
    assert choice.folders == {"mat, epsilon 1": tmp_path / "mat-sketch-1.0"}


def test_options_are_checked_before_pictures_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "erm", "erm", "art")
    monkeypatch.delattr("domainwise.reports.html.pictures.draw_selected_models")
    with pytest.raises(DomainwiseError, match=r"^unknown column 'best'"):
        write_page(tmp_path / "page.html", [tmp_path], columns=["best"], model_pictures=True)


def test_runs_without_models_and_too_many_methods(tmp_path: Path) -> None:
    write_run(tmp_path / "gone", "erm", "art")
    assert pictured(tmp_path, "training_domain") == []
    for number in range(MAX_METHODS + 2):
        with_models(write_run(tmp_path / str(number), f"method{number}", "art"))
    (choice,) = pictured(tmp_path, "training_domain")
    assert list(choice.folders) == [f"method{number}" for number in range(MAX_METHODS)]


@pytest.fixture(autouse=True)
def _quick_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer radii and severities: none of these tests is about their number."""
    monkeypatch.setattr(pictures_module, "_RADII", (0.0, 1.0))
    monkeypatch.setattr(pictures_module, "_PGD_EPSILONS", (0, 4 / 255))
    monkeypatch.setattr(pictures_module, "_NUM_MAPPED", 60)
    monkeypatch.setattr(pictures_module, "_NUM_CORRUPTED", 1)
    monkeypatch.setattr(pictures_module, "_SEVERITIES", (3,))
    monkeypatch.setattr(pictures_module, "_DPI", 50)


CPU = torch.device("cpu")


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
        "Features of the models (t-SNE)",
        "Perturbations of mat",
        "Components of mat",
        "Ranks of the perturbations",
        "Accuracy under attack",
        "Accuracy under corruptions",
    ]
    assert seen == [(done, 6) for done in range(7)]
    assert "on the object, over all shift_8 images: erm " in pictures[0].caption
    assert "clusters of a t-SNE map, and their sizes, mean little" in pictures[1].caption
    (attacked,) = (picture.caption for picture in pictures if picture.title == "Accuracy under attack")
    # All 32 images of the main part, not the 200 that are attacked at most.
    assert attacked.startswith("Accuracy on 32 images of shift_8 under attack.")
    assert re.search(r"PGD with 20 steps, at 4/255: erm \d+\.\d ± \d\.\d %; mat \d+\.\d ± \d\.\d %", attacked)
    assert all(picture.png for picture in pictures)


def test_pictures_that_fail_leave_the_others_and_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(
        RunConfig(algorithm="uat", network="mlp", steps=1, batch_size=8, dataset_options=SMALL, output=tmp_path / "mlp")
    ).folder
    monkeypatch.setattr("domainwise.reports.html.pictures.plot_ranks", lambda ranks: ranks[0].unknown)
    with pytest.warns(UserWarning, match="could not be drawn") as warned:
        write_page(tmp_path / "page.html", [run], model_pictures=True)
    failures = [text for each in warned if "could not be drawn" in (text := str(each.message))]
    assert [text.partition(" needs ")[0] for text in failures] == [
        "Where the models look (Grad-CAM): could not be drawn: Grad-CAM",
        "Ranks of the perturbations: could not be drawn: AttributeError: 'Ranks' object has no attribute 'unknown'",
    ]
    page = (tmp_path / "page.html").read_text()
    assert page.count('<p role="note">This picture could not be drawn: Grad-CAM needs a layer') == 1
    assert page.count('<p role="note">This picture could not be drawn: AttributeError: ') == 1
    assert [text.partition(".")[0] for text in re.findall(r'<img alt="([^"]*)', page)] == [
        "Features of the models (t-SNE)",
        "Perturbations of uat",
        "Accuracy under attack",
        "Accuracy under corruptions",
    ]


def test_maps_that_are_too_coarse_say_so(runs: dict[str, Path], tmp_path: Path) -> None:
    options = {**SMALL, "image_size": 16}
    small = train(
        RunConfig(algorithm="erm", steps=1, batch_size=8, dataset_options=options, output=tmp_path / "small")
    ).folder
    coarse, fine = (
        pictures_module._draw_grad_cam({"erm": open_run(run)}, "shift_8", "best", CPU).caption
        for run in (small, runs["erm"])
    )
    assert "Maps of 2 x 2 cells are too coarse to locate anything; an earlier layer has more (domainwise" in coarse
    assert "coarse" not in fine


def test_the_images_of_a_refit_are_not_called_new_to_it(runs: dict[str, Path], tmp_path: Path) -> None:
    config = RunConfig(
        algorithm="erm", steps=2, batch_size=8, dataset_options=SMALL, output=tmp_path / "refit", refit=runs["erm"]
    )
    refit = train(config).folder
    with pytest.warns(UserWarning, match="trained on all images"):
        seen = pictures_module._draw_features({"erm": open_run(refit)}, "last", CPU).caption
    held_out = pictures_module._draw_features({"erm": open_run(runs["erm"])}, "best", CPU).caption
    assert seen.startswith("The same images for all models; triangles")
    assert held_out.startswith("The same images for all models, none of them trained on; triangles")


def test_without_the_extra_the_picture_of_corruptions_is_a_note(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    picture = pictures_module._draw_corruptions({"erm": open_run(runs["erm"])}, "shift_8", "best", CPU)
    assert picture.title == "Accuracy under corruptions"
    assert "pip install 'imagecorruptions-imaug>=" in picture.error


def test_domains_with_fewer_images_than_the_picture_of_ranks_takes(tmp_path: Path) -> None:
    write_easy_images(tmp_path / "images", count=8)
    for file in sorted((tmp_path / "images" / "dark").rglob("*.png"))[::2]:
        file.unlink()
    settings: dict[str, Any] = {"algorithm": "uat", "network": "small_cnn", "dataset_options": {"image_size": 16}}
    run = train(
        RunConfig(
            tmp_path / "images", test_domains=("light",), steps=1, batch_size=4, output=tmp_path / "run", **settings
        )
    ).folder
    pictures = draw_model_pictures({"uat": run}, "light", dataset=tmp_path / "images")
    assert [picture.title for picture in pictures if picture.png][1:] == [
        "Features of the models (t-SNE)",
        "Perturbations of uat",
        "Ranks of the perturbations",
        "Accuracy under attack",
    ]
    # 16 x 16 pixels are too few to corrupt; that is said on the page, and is no warning.
    assert [picture.error for picture in pictures if picture.error] == [
        "corruptions need images of at least 32 x 32 pixels, got 16 x 16"
    ]
