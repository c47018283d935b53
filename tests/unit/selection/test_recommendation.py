"""A recommendation says what each rule picks in a grid, and never looks at a test domain."""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from domainwise.errors import DomainwiseError
from domainwise.selection import recommend
from domainwise.selection.recommendation import Recommendation
from domainwise.storage.run_folder import write_json_lines
from domainwise.storage.sweep_folder import SweepFolder
from run_folders import DOMAINS, write_run

RADII = (0.1, 0.5, 2.0)


def write_sweep(
    folder: Path,
    holdouts: Mapping[str, Sequence[float]],
    *,
    name: str = "epsilon",
    values: Sequence[Any] = RADII,
    test_accuracy: float = 0.5,
) -> Path:
    """Write one run per value, and trial or test domain; holdouts by test domain, in the order of the values."""
    for domain, by_value in holdouts.items():
        for draw, (value, holdout) in enumerate(zip(values, by_value, strict=True)):
            accuracies = (test_accuracy, 1 - test_accuracy)
            write_run(
                folder / f"{domain}-{draw}",
                "uat",
                domain,
                accuracies,
                draw=draw,
                training=holdout,
                hparams={name: value},
            )
    SweepFolder(folder).write_spec({"grid": {name: list(values)}})
    return folder


def set_domain_sizes(folder: Path, size: int) -> None:
    for file in folder.glob("*/config.json"):
        content = json.loads(file.read_text())
        content["data"]["domain_sizes"] = [size] * 2
        file.write_text(json.dumps(content))


def only(recommendations: list[Recommendation]) -> Recommendation:
    (recommendation,) = recommendations
    return recommendation


def test_scores_picks_and_the_recommended_point(tmp_path: Path) -> None:
    # 100 holdout images in each of two domains: the standard error at .9 is .021.
    sweep = write_sweep(
        tmp_path / "sweep", {"art": (0.9, 0.89, 0.8), "cartoon": (0.92, 0.88, 0.9), "sketch": (0.9, 0.9, 0.7)}
    )
    set_domain_sizes(sweep, 400)
    result = only(recommend(sweep))
    assert (result.dataset, result.algorithm) == ("toy", "uat")
    assert [point.name for point in result.points] == ["epsilon 0.1", "epsilon 0.5", "epsilon 2"]
    assert [point.picks for point in result.points] == [
        {"training_domain": pytest.approx(2 / 3)},
        {"training_domain": pytest.approx(1 / 3), "one_standard_error": pytest.approx(2 / 3)},
        {"one_standard_error": pytest.approx(1 / 3)},
    ]
    means = [point.scores["one_standard_error"].mean for point in result.points]
    assert means == pytest.approx([2.72 / 3, 0.89, 0.8])
    assert result.recommended is result.points[1]
    assert result.reason == "largest within one standard error of the best holdout, 90.7 ± 0.7"
    assert set(result.points[0].scores) == {"one_standard_error"}


def test_a_single_run_has_the_error_of_its_holdouts(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", {"art": (0.9, 0.89, 0.8)})
    set_domain_sizes(sweep, 400)
    result = only(recommend(sweep))
    assert result.recommended.name == "epsilon 0.5"
    # At (90 + 1) / (100 + 2), from 200 images.
    rate = 91 / 102
    assert result.points[0].scores["one_standard_error"].error == pytest.approx((rate * (1 - rate) / 200) ** 0.5)
    assert result.reason.endswith(", 90.0 ± 2.2")


def test_leave_one_out_and_attacked_holdouts_if_they_were_measured(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, dict.fromkeys(DOMAINS, (0.9, 0.8, 0.7)))
    for draw, epsilon in enumerate(RADII):
        for pair in combinations(DOMAINS, 2):
            run = write_run(sweep / f"{pair}-{draw}", "uat", pair[0], draw=draw, hparams={"epsilon": epsilon})
            # On domains that were left out, the middle radius is best.
            change_records(run, test_domains=pair, parts={name: {"main": (0.3, 0.6, 0.4)[draw]} for name in pair})
    for draw, attacked in enumerate((0.1, 0.2, 0.5)):
        for domain in DOMAINS:
            change_records(sweep / f"{domain}-{draw}", parts={name: {"attacked": attacked} for name in DOMAINS})
    result = only(recommend(sweep))
    assert [list(point.picks) for point in result.points] == [
        *(["training_domain", "one_standard_error"], ["leave_one_out"], ["attacked_holdout"])
    ]
    assert [point.scores["leave_one_out"].mean for point in result.points] == pytest.approx([0.3, 0.6, 0.4])
    assert [point.scores["attacked_holdout"].mean for point in result.points] == pytest.approx([0.1, 0.2, 0.5])


def change_records(run: Path, parts: Mapping[str, Mapping[str, float]], **changes: Any) -> None:
    """Add accuracies on parts of domains, and change other entries."""
    records = [json.loads(line) | changes for line in (run / "records.jsonl").read_text().splitlines()]
    for record in records:
        record["train_domains"] = [name for name in DOMAINS if name not in record["test_domains"]]
        for name, values in parts.items():
            record["accuracy"][name] |= values
    write_json_lines(run / "records.jsonl", records)


def test_the_test_domain_does_not_matter(tmp_path: Path) -> None:
    holdouts = {"art": (0.9, 0.89, 0.8), "cartoon": (0.92, 0.88, 0.9)}
    one, other = (
        recommend(write_sweep(tmp_path / str(accuracy), holdouts, test_accuracy=accuracy)) for accuracy in (0.1, 0.9)
    )
    assert one == other


def test_without_a_radius_the_best_holdout_is_recommended(tmp_path: Path) -> None:
    result = only(recommend(write_sweep(tmp_path, {"art": (0.7, 0.9, 0.8)}, name="lr", values=(0.1, 0.01, 0.001))))
    assert result.recommended.name == "lr 0.01"
    assert result.reason.startswith("best holdout, 90.0")


def test_a_record_of_the_warmup_does_not_count_for_its_radius(tmp_path: Path) -> None:
    """At first the holdout of the large radius is the best, because the radius is not there yet."""
    sweep = write_sweep(tmp_path, {"art": (0.9, 0.8, 0.85)})
    for draw in range(3):
        file = sweep / f"art-{draw}" / "records.jsonl"
        first, last = map(json.loads, file.read_text().splitlines())
        for name in ("cartoon", "sketch"):
            first["accuracy"][name]["holdout"] = 0.95 if draw == 2 else 0.5
        first["hparams"]["warmup"] = last["hparams"]["warmup"] = 1.0
        write_json_lines(file, [first, last])
    result = only(recommend(sweep))
    assert [point.scores["one_standard_error"].mean for point in result.points] == pytest.approx([0.9, 0.8, 0.85])
    assert result.recommended.name == "epsilon 0.1"
    assert result.points[2].picks == {"training_domain": 1.0}


def test_radii_in_other_units(tmp_path: Path) -> None:
    values = ("1/255 rms", "2/255 rms", "4/255 rms")
    sweep = write_sweep(tmp_path, {"art": (0.9, 0.89, 0.5)}, values=values)
    set_domain_sizes(sweep, 400)
    assert only(recommend(sweep)).recommended.name == "epsilon 2/255 rms"


def test_a_method_without_the_hyperparameter_is_left_out(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, {"art": (0.9, 0.89, 0.8)})
    write_run(sweep / "erm", "erm", "art")
    assert [each.algorithm for each in recommend(sweep)] == ["uat"]


def test_a_sweep_without_a_grid_is_an_error(tmp_path: Path) -> None:
    SweepFolder(tmp_path).write_spec({"draws": 2})
    with pytest.raises(DomainwiseError, match=r"has no grid; start one with --grid name=value,value,\.\.\.$"):
        recommend(tmp_path)
