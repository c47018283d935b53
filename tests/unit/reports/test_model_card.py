"""Model cards: what they say about a run, metadata that the Hub's own code reads, and text that cannot break either."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from domainwise import DomainwiseError
from domainwise.reports.model_card import build_model_card
from domainwise.training import RunConfig, train
from run_folders import write_run

DATA = {"train_count": 40, "test_count": 20, "image_size": 16, "shifts": [0, 8]}


def read_metadata(card: str) -> Any:
    assert card.startswith("---\n")
    return yaml.safe_load(card.split("\n---\n")[0])


def section(card: str, heading: str) -> str:
    """The text below a heading."""
    match = re.search(rf"^## {heading}\n\n(.*?)(?=\n## |\Z)", card, re.DOTALL | re.MULTILINE)
    assert match, f"no section {heading}"
    return match[1]


def remove_code_blocks(card: str) -> str:
    """The card without its blocks of code; a page would run HTML anywhere else."""
    return re.sub(r"^(`{3,})\w+\n.*?^\1$", "", card, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = RunConfig(
        algorithm="mat",
        hparams={"epsilon": 0.25},
        steps=4,
        record_every=1,
        batch_size=8,
        dataset_options=DATA,
        output=tmp_path_factory.mktemp("runs") / "run",
        device="cpu",
    )
    return train(config).folder


def write(folder: Path, **settings: Any) -> Path:
    """A run on three domains of another dataset, with what a card needs and such runs do not have."""
    accuracies = settings.pop("accuracies", (0.5, 0.7))
    run = write_run(folder, "erm", "sketch", accuracies, **settings)
    content = json.loads((run / "config.json").read_text())
    content["data"]["input_shape"] = [3, 32, 32]
    (run / "config.json").write_text(json.dumps(content))
    return run


def test_the_hubs_own_code_reads_the_metadata(run: Path) -> None:
    card = ModelCard(build_model_card(run, "me/cows", license="apache-2.0"))
    assert card.data.library_name == "domainwise"
    assert card.data.pipeline_tag == "image-classification"
    assert card.data.license == "apache-2.0"
    assert "mat" in (card.data.tags or [])
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    scores = [sum(each["accuracy"][name]["holdout"] for name in ("style_0", "style_1")) for each in records]
    best = records[scores.index(max(scores))]
    results = {each.dataset_config: each.metric_value for each in card.data.eval_results or []}
    assert results == {name: round(best["accuracy"][name]["main"], 4) for name in ("shift_0", "shift_8")}


def test_a_card_without_a_license_names_none(run: Path) -> None:
    assert "license" not in read_metadata(build_model_card(run, "me/cows"))
    for license in ("MIT License", "mit\nprivate: true", ""):
        with pytest.raises(DomainwiseError, match="license must be one of the Hub's abbreviations"):
            build_model_card(run, "me/cows", license=license)


def test_the_table_has_the_accuracies_of_the_selected_record(tmp_path: Path) -> None:
    card = build_model_card(write(tmp_path / "run"), "me/toy")
    table = section(card, "Accuracy")
    assert "| sketch | test (never seen) | 30.0 | 70.0 |" in table
    assert "| art | training | 90.0 |  |" in table
    assert "after 2 of 2 updates" in table
    assert "highest mean accuracy on the holdouts of the training domains" in table


def test_the_last_model_is_not_called_selected(tmp_path: Path) -> None:
    run = write(tmp_path / "run", training=0.9)
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    lines[0]["accuracy"]["art"]["holdout"] = 1.0
    (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    best, last = (build_model_card(run, "me/toy", which=which) for which in ("best", "last"))
    assert "after 1 of 2 updates" in section(best, "Accuracy")
    assert "| sketch | test (never seen) | 50.0 | 50.0 |" in best
    assert "after the last of 2 updates; nothing was selected" in section(last, "Accuracy")
    assert "| sketch | test (never seen) | 30.0 | 70.0 |" in last
    assert 'load_model("hf:me/toy", "last")' in last
    assert "domainwise predict hf:me/toy photo.jpg --which last" in last


def test_validation_domains_are_said_to_select(tmp_path: Path) -> None:
    run = write(tmp_path / "run")
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    for line in lines:
        line["train_domains"], line["validation_domains"] = ["art"], ["cartoon"]
        line["accuracy"]["cartoon"]["main"] = 0.4
    (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = section(build_model_card(run, "me/toy"), "Accuracy")
    assert "on the validation domains (cartoon)" in text
    assert "| cartoon | validation (not trained on) |" in text
    assert "after 1 of 2 updates" in text


def test_caveats_say_that_it_is_one_run(tmp_path: Path) -> None:
    caveats = section(build_model_card(write(tmp_path / "run"), "me/toy"), "Caveats")
    assert "a single run and have no standard error" in caveats
    assert "chance level" not in caveats
    poor = write(tmp_path / "poor", training=0.2)
    assert "at chance level on the training domains" in section(build_model_card(poor, "me/toy"), "Caveats")


def test_the_command_repeats_the_run(run: Path) -> None:
    training = section(build_model_card(run, "me/cows"), "Training")
    assert "```sh\ndomainwise train --dataset silhouettes --algorithm mat" in training
    assert "--hparam epsilon=0.25" in training
    assert "| `epsilon` | 0.25 |" in training
    assert "| `weight_decay` | 0.0 |" in training
    assert "sam_radius" not in training


def test_averages_and_refits_are_said_to_be_such(tmp_path: Path) -> None:
    average = build_model_card(write(tmp_path / "soup", soup="uniform"), "me/toy")
    assert "an average of several runs" in section(average, "Accuracy")
    assert "domainwise train" not in average
    refit = build_model_card(write(tmp_path / "refit", refit="first"), "me/toy")
    assert "All images of the training domains were trained on" in section(refit, "Accuracy")
    assert "nothing was selected" in refit


def test_the_packages_that_a_model_needs_are_installed(tmp_path: Path) -> None:
    card = build_model_card(write(tmp_path / "plain"), "me/toy")
    assert "\npip install '.[hub,onnx]'\ndomainwise predict" in card
    assert "is not on PyPI yet. In a checkout of its source; with its wheel, pip install 'FILE.whl[hub,onnx]'" in card
    adapted = write(tmp_path / "lora", network="timm:test_vit", lora=8)
    assert "pip install '.[hub,onnx,timm,lora]'" in build_model_card(adapted, "me/toy")


def test_code_of_ones_own_has_to_be_passed(tmp_path: Path) -> None:
    card = build_model_card(write(tmp_path / "run", network="my.networks:tiny"), "me/toy")
    assert 'load_model("hf:me/toy", network=YOUR_NETWORK)' in card
    assert "domainwise predict" not in card


HOSTILE = 'a"b: {c}\n- x\u2028y\u0085| `z` <script>alert(1)</script> [link](http://x) #\\'


def test_names_break_neither_yaml_nor_markdown(tmp_path: Path) -> None:
    run = write(tmp_path / "run", dataset=HOSTILE, domains=("art", "cartoon", "sketch"))
    text = (run / "config.json").read_text() + (run / "records.jsonl").read_text()
    hostile = json.dumps(HOSTILE)[1:-1]
    for file in ("config.json", "records.jsonl"):
        content = (run / file).read_text().replace('"cartoon"', f'"{hostile}"').replace('"class 1"', f'"{hostile}"')
        (run / file).write_text(content)
    assert hostile in text
    card = build_model_card(run, "me/toy")
    (index,) = read_metadata(card)["model-index"]
    (result,) = index["results"]
    assert result["dataset"]["type"] == "".join(each if each.isprintable() else " " for each in HOSTILE)
    text = remove_code_blocks(card.split("\n---\n", 1)[1])
    assert "<script>" not in text.replace("\\<script>", "")
    assert "[link]" not in text.replace("\\[link]", "")
    (row,) = [line for line in text.splitlines() if line.startswith('| a"b')]
    assert len(re.findall(r"(?<!\\)\|", row)) == 5


@pytest.mark.parametrize("name", ["`<img src=x onerror=alert(1)>`", "a``b`|<img src=x>", "run\n# heading\n<img src=x>"])
@pytest.mark.parametrize("unknown", [{}, {"new <img>": 3}])
def test_names_of_settings_are_text(name: str, unknown: dict[str, int], tmp_path: Path) -> None:
    run = write(tmp_path / "run", hparams={name: 1, "epsilon": 2}, **unknown)
    training = section(build_model_card(run, "me/toy"), "Training")
    assert ("domainwise train" in training) == (not unknown)
    text = remove_code_blocks(training)
    assert "<img" not in text.replace("\\<", "")
    assert "# heading" not in text.splitlines()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)
    assert "| `epsilon` | 2 |" in rows


def test_a_method_that_only_the_records_name_is_no_code(tmp_path: Path) -> None:
    run = write(tmp_path / "run")
    records = (run / "records.jsonl").read_text().replace('"erm"', '"`<img src=x onerror=alert(1)>`"')
    (run / "records.jsonl").write_text(records)
    assert "<img" not in build_model_card(run, "me/toy").split("\n---\n", 1)[1]


def test_code_blocks_cannot_be_left(tmp_path: Path) -> None:
    run = write(tmp_path / "run", dataset="x\n```\n# heading\n````")
    training = section(build_model_card(run, "me/toy"), "Training")
    assert re.search(r"^`{5}sh\n.*?^`{5}$", training, re.DOTALL | re.MULTILINE)


def test_errors(tmp_path: Path) -> None:
    run = write(tmp_path / "run")
    with pytest.raises(DomainwiseError, match="is not the name of a model"):
        build_model_card(run, "toy")
    with pytest.raises(DomainwiseError, match="unknown model of a run 'newest'"):
        build_model_card(run, "me/toy", which="newest")  # type: ignore[arg-type]
    (run / "records.jsonl").write_text("")
    with pytest.raises(DomainwiseError, match="has no records"):
        build_model_card(run, "me/toy")
    with pytest.raises(DomainwiseError, match="no run in"):
        build_model_card(tmp_path, "me/toy")
