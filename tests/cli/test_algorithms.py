"""`domainwise algorithms`: the list of methods, one method's hyperparameters, Markdown and JSON."""

import json
import subprocess
import sys
from typing import Any, get_args

import pytest

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import GROUPS, Group


def test_the_list_has_one_line_per_method_below_its_group(domainwise: Any) -> None:
    *blocks, last = domainwise("algorithms").out.strip().split("\n\n")
    names = []
    for block, (group, description) in zip(blocks, GROUPS.items(), strict=True):
        heading, *lines = block.splitlines()
        assert heading == f"{group}: {description}"
        members = [line.split()[0] for line in lines]
        assert members
        assert {ALGORITHMS[name].group for name in members} == {group}
        names += members
    assert sorted(names) == sorted(ALGORITHMS)
    assert last.startswith(f"{len(ALGORITHMS)} methods. ")
    assert all(option in last for option in ("--average", "--sam", "--sagm"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_has_a_group(name: str) -> None:
    assert ALGORITHMS[name].group in get_args(Group)


def test_every_group_has_a_description() -> None:
    assert tuple(GROUPS) == get_args(Group)


def test_a_method_shows_its_group(domainwise: Any) -> None:
    assert "(adversarial; Wang et al. 2022; 1 domain)" in domainwise("algorithms", "mat").out.splitlines()[0]
    assert "**Adversarial**: train on worst-case" in domainwise("algorithms", "--markdown").out


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_method_shows_default_search_and_help_of_each_hyperparameter(name: str, domainwise: Any) -> None:
    lines = domainwise("algorithms", name).out.splitlines()
    for field in ALGORITHMS[name].Hparams.fields().values():
        (line,) = [line for line in lines if line.split()[:1] == [field.name]]
        assert line.rstrip().endswith(field.metadata["help"])
        if field.metadata["search"] is not None:
            assert str(field.metadata["search"]) in line


def test_variants_list_what_they_set(domainwise: Any) -> None:
    assert (
        "variant=paper sets step_size=0.1, warmup=0.0, ascent=gradient, order=sequential, solver=factors\n"
        in domainwise("algorithms", "ldat").out
    )


def test_a_method_shows_what_it_has_for_some_datasets(domainwise: Any) -> None:
    lines = domainwise("algorithms", "rdm").out.splitlines()
    assert "on terra_incognita, domainnet: batch_size 40, search int U(30, 60)" in lines
    assert not any(line.startswith("on ") for line in domainwise("algorithms", "irm").out.splitlines())
    (setting,) = json.loads(domainwise("algorithms", "urm", "--json").out)["by_dataset"]
    assert setting == {
        "name": "discriminator_lr",
        "default": None,
        "search": "10^U(-5.5, -3.5)",
        "datasets": ["colored_mnist", "rotated_mnist"],
    }


def test_json(domainwise: Any) -> None:
    methods = json.loads(domainwise("algorithms", "--json").out)
    assert [method["name"] for method in methods] == list(ALGORITHMS)
    mat = json.loads(domainwise("algorithms", "mat", "--json").out)
    assert mat == next(method for method in methods if method["name"] == "mat")
    assert (mat["group"], mat["min_domains"]) == ("adversarial", 1)
    assert mat["variants"]["paper"] == {
        "step_size": 0.1,
        "warmup": 0.0,
        "ascent": "gradient",
        "order": "sequential",
        "weights": "domain",
    }
    assert "standard" not in mat["variants"]
    assert next(each["default"] for each in mat["hparams"] if each["name"] == "weights") == "assigned"
    (count,) = [hparam for hparam in mat["hparams"] if hparam["name"] == "count"]
    assert count == {
        "name": "count",
        "default": 10,
        "search": "5 or 10 or 15 or 20",
        "help": "Perturbations per domain (k in the paper).",
    }


def test_an_unknown_method_suggests_the_nearest(domainwise: Any) -> None:
    outcome = domainwise("algorithms", "matt")
    assert outcome.code == 2
    assert outcome.err.startswith("error: unknown algorithm 'matt'; did you mean 'mat'?")


def test_importing_the_command_imports_no_torch() -> None:
    program = "import sys, domainwise.cli.algorithms; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
