"""Options are generated from the fields of `RunConfig`: adding a run setting is one edit."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from domainwise.cli import options
from domainwise.cli.options import (
    add_run_options,
    parse_dataset_options,
    parse_literals,
    parse_pairs,
    write_out_augment,
)
from domainwise.errors import DomainwiseError
from domainwise.training.config import OPTION_SETTINGS, RunConfig, option_names, setting


def run_command(names: Sequence[str], *args: str, is_default_none: bool = False) -> dict[str, Any]:
    """Return the settings that a command with generated options is called with."""
    calls: list[dict[str, Any]] = []

    @add_run_options(names, is_default_none=is_default_none)
    def command(settings: dict[str, Any]) -> None:
        calls.append(settings)

    app = typer.Typer()
    app.command()(command)
    outcome = CliRunner().invoke(app, write_out_augment(args))
    assert outcome.exit_code == 0, outcome.output
    return calls[0]


def test_defaults_are_those_of_run_config() -> None:
    assert RunConfig.of(**run_command(OPTION_SETTINGS)) == RunConfig()


def test_every_setting_has_help_and_an_option(domainwise: Callable[..., Any]) -> None:
    text = domainwise("train", "--help").out
    for field in dataclasses.fields(RunConfig):
        assert field.metadata["help"].endswith(".")
        assert (option_names(field)[0] in text) == field.metadata["is_option"]


def test_strings_of_hub_datasets_stay_strings() -> None:
    words = ["config=2023", "split='1'", "label_column=None", "image_size=48", "skip_broken=True", "unknown=1"]
    texts = {"config": "2023", "split": "1", "label_column": "None"}
    others = {"image_size": 48, "skip_broken": True, "unknown": 1}
    assert parse_dataset_options(words, "pacs", "hf:owner/name") == texts | others
    literals = {"config": 2023, "split": "1", "label_column": None}
    assert parse_dataset_options(words, "package.module:function") == literals | others
    args = ("--dataset", "hf:owner/name", "--dataset-option", "config=2023")
    assert run_command(OPTION_SETTINGS, *args)["dataset_options"] == {"config": "2023"}


def test_values_reach_the_config() -> None:
    args = ["--dataset", "pacs", "--steps", "7", "--dropout", "0.5", "--no-augment", "--keep-perturbations"]
    args += ["--train-domain", "a", "--train-domain", "b", "-H", "epsilon=.5", "-o", "there", "--backbone", "resnet18"]
    args += ["--dataset-option", "shifts=0,8", "--image-size", "48", "--skip-broken"]
    settings = run_command(OPTION_SETTINGS, *args)
    assert settings["dataset"] == "pacs"
    assert (settings["steps"], settings["dropout"], settings["augment"]) == (7, 0.5, False)
    assert settings["keep_perturbations"] is True
    assert settings["train_domains"] == ("a", "b")
    assert settings["hparams"] == {"epsilon": ".5"}
    assert (settings["output"], settings["network"]) == ("there", "resnet18")
    assert settings["dataset_options"] == {"image_size": 48, "skip_broken": True, "shifts": (0, 8)}


def test_only_given_options_are_settings_of_a_sweep() -> None:
    names = ["steps", "dropout", "dataset_options", "augment"]
    assert run_command(names, is_default_none=True) == {}
    assert run_command(names, "--dropout", "0", "--no-augment", is_default_none=True) == {
        "augment": False,
        "dropout": 0.0,
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--augment", True),
        ("--augment --steps 3", True),
        ("--augment -o there", True),
        ("--augment strong --steps 3", "strong"),
        ("--augment=strong", "strong"),
        ("--no-augment", False),
        ("--no-augment --augment", True),
        ("--augment strong --no-augment", False),
    ],
)
def test_the_value_of_augment_is_optional(words: str, expected: bool | str) -> None:
    names = ["augment", "steps", "output"]
    assert run_command(names, *words.split(), is_default_none=True)["augment"] == expected
    assert run_command(names, *words.split())["augment"] == expected


def test_a_new_field_is_a_new_option(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class Wider(RunConfig):
        momentum: float = setting(0.9, "Momentum.", low=0, below=1)

    monkeypatch.setattr(options, "RunConfig", Wider)
    assert run_command(["momentum"], "--momentum", "0.5") == {"momentum": 0.5}
    with pytest.raises(DomainwiseError, match=r"^momentum must be a number of at least 0 and below 1, got 2$"):
        Wider(momentum=2)


@pytest.mark.parametrize("word", ["epsilon", "=3", "epsilon="])
def test_pairs_need_a_name_and_a_value(word: str) -> None:
    with pytest.raises(DomainwiseError, match=r"^--hparam expects name=value, got "):
        parse_pairs([word], "--hparam")


def test_literals() -> None:
    words = ["image_size=48", "shifts=0,8", "rule=nearest"]
    assert parse_literals(words, "--dataset-option") == {"image_size": 48, "shifts": (0, 8), "rule": "nearest"}
