"""Classes, functions and packages of one's own: where they are found, and one line for each that cannot be used."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domainwise import RunConfig, SweepSpec, load_model, train
from domainwise.algorithms import ALGORITHMS
from domainwise.errors import DomainwiseError
from domainwise.plugins import find_plugins
from domainwise.sweeps.plan import plan_sweep

Cli = Callable[..., Any]
SMALL = [
    *("--dataset-option", "train_count=60", "--dataset-option", "test_count=20"),
    *("--steps", "2", "--batch-size", "8", "--threads", "1", "--device", "cpu"),
]
OWN = """
from dataclasses import dataclass, field
import torch
from domainwise.algorithms import ERM
from domainwise.algorithms.base import LossAlgorithm
from domainwise.hparams import Hparams, hparam

number = 3


class Own(ERM):
    '''An own method.'''


class Plain: ...


class Abstract(LossAlgorithm): ...


class Raises(ERM):
    def setup(self):
        torch.zeros(3) @ torch.zeros(4)  # line 23


class Refuses(ERM):
    def __init__(self, *args, **kwargs):
        raise ValueError("not today")


class Undecorated(Hparams):
    alpha: float = hparam(1.0, help="A.")


class Forgetful(ERM):
    Hparams = Undecorated


@dataclass(frozen=True)
class WithoutDefault(Hparams):
    alpha: float = field(kw_only=True)


class Open(ERM):
    Hparams = WithoutDefault


class Careless(ERM):
    Hparams = dict


def numbers(seed):
    return [seed]


def nothing(seed):
    return {}["key"]  # line 57


def network(input_shape, num_classes, dropout):
    raise RuntimeError("no network")


def wide_network(input_shape, num_classes, dropout):
    from domainwise.networks import small_cnn

    return small_cnn(input_shape, 1000, dropout)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with modules of one's own; neither it nor they remain importable after the test."""
    (tmp_path / "own_things.py").write_text(OWN)
    (tmp_path / "own_syntax.py").write_text("x = 1\ny = (2,\n")
    (tmp_path / "own_error.py").write_text("import torch\n\nx = torch.zeros(3) @ torch.zeros(4)\n")
    (tmp_path / "own_import.py").write_text("import own_error\n")
    (tmp_path / "own_missing.py").write_text("import torch\nimport there_is_no_such_module\n")
    (tmp_path / "own_hparams.py").write_text(
        "from dataclasses import dataclass\nfrom domainwise.hparams import Hparams\n\n\n"
        "@dataclass(frozen=True)\nclass OwnHparams(Hparams):\n    alpha: float\n"
    )
    monkeypatch.chdir(tmp_path)
    # As in the installed script: the current folder is not on the path.
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    for name in [each for each in sys.modules if each.startswith("own_")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.parametrize(
    ("option", "given", "message"),
    [
        ("--algorithm", "nope:Thing", "could not import algorithm 'nope:Thing': No module named 'nope'"),
        ("--algorithm", ":", "could not import algorithm ':': expected package.module:Name"),
        ("--algorithm", "own_things:", "could not import algorithm 'own_things:': expected package.module:Name"),
        ("--algorithm", "own_things:Onw", "own_things has no attribute 'Onw'; did you mean 'Own'?"),
        ("--algorithm", "own_things.py:Own", "is a file; give it as a module, own_things:Own"),
        ("--algorithm", "./sub/own.py:Own", "is a file; give it as a module, sub.own:Own"),
        ("--algorithm", "own_thinks", "or package.module:Class"),
        ("--algorithm", "own_things:number", "own_things:number is of type int; expected a subclass of"),
        ("--algorithm", "own_things:numbers", "own_things:numbers is of type function; expected a subclass of"),
        ("--algorithm", "own_things:Plain", "own_things:Plain is the class Plain; expected a subclass of"),
        ("--algorithm", "own_things:Abstract", "algorithm Abstract does not implement compute_loss"),
        ("--algorithm", "own_things:Raises", "algorithm Raises could not be built: {}/own_things.py, line 23: Runtime"),
        ("--algorithm", "own_things:Refuses", "Refuses could not be built: {}/own_things.py, line 28: ValueError: not"),
        ("--algorithm", "own_things:Forgetful", "Undecorated of Forgetful needs the decorator @dataclass(frozen=True)"),
        ("--algorithm", "own_things:Open", "hyperparameter alpha of Open has no default; define it with hparam("),
        ("--algorithm", "own_things:Careless", "Hparams of Careless must be a subclass of domainwise.hparams.Hparams"),
        ("--algorithm", "own_syntax:X", "could not import algorithm 'own_syntax:X': {}/own_syntax.py, line 2: '('"),
        ("--algorithm", "own_error:X", "could not import algorithm 'own_error:X': {}/own_error.py, line 3: RuntimeEr"),
        ("--algorithm", "own_import:X", "could not import algorithm 'own_import:X': {}/own_error.py, line 3: Runtime"),
        ("--algorithm", "own_missing:X", "{}/own_missing.py, line 2: No module named 'there_is_no_such_module'"),
        ("--algorithm", "own_hparams:X", "{}/own_hparams.py, line 5: TypeError: non-default argument 'alpha'"),
        ("--dataset", "own_things:number", "dataset own_things:number is of type int; expected a function"),
        (
            "--dataset",
            "own_things:nothing",
            "nothing could not be built: {}/own_things.py, line 57: KeyError",
        ),
        ("--dataset", "sub/own.py:data", "is a file; give it as a module, sub.own:data"),
        ("--network", "own_things:number", "network own_things:number is of type int; expected a function"),
        (
            "--network",
            "own_things:network",
            "network could not be built: {}/own_things.py, line 61: Runtime",
        ),
        (
            "--network",
            "own_things:wide_network",
            "network own_things:wide_network has 1000 outputs; expected one for each of the 2 classes",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line(option: str, given: str, message: str, folder: Path, domainwise: Cli) -> None:
    sizes = SMALL[4:] if option == "--dataset" else SMALL
    outcome = domainwise("train", "--algorithm", "erm", option, given, *sizes, "-o", folder / "run")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
    assert outcome.err.startswith("error: ")
    assert message.format(folder) in outcome.err


def test_a_dataset_must_return_a_dataset(folder: Path, domainwise: Cli) -> None:
    outcome = domainwise("data", "check", "own_things:numbers")
    assert outcome.err == (
        "error: dataset own_things:numbers could not be built: expected a domainwise.data.Dataset, got list\n"
    )
    outcome = domainwise("data", "shift", "own_things:nothing")
    assert (outcome.code, "line 57: KeyError: 'key'" in outcome.err) == (2, True)


def test_errors_in_our_own_code_are_no_fault_of_the_user(folder: Path, domainwise: Cli) -> None:
    """The line of a bad value names no file: the user's code did not raise it."""
    outcome = domainwise("train", "--algorithm", "own_things:Own", "-H", "lr=-1", *SMALL, "-o", folder / "run")
    assert outcome.err == "error: algorithm Own could not be built: Invalid learning rate: -1.0\n"


def test_nothing_in_the_current_folder_is_imported_unless_it_is_named(folder: Path, domainwise: Cli) -> None:
    (folder / "run").mkdir()
    for module in ("timm", "ray", "own_things"):
        (folder / f"{module}.py").write_text("raise SystemExit('imported')\n")
    config = {
        "dataset": "silhouettes",
        "algorithm": "own_things:Own",
        "network": "small_cnn",
        "trial_seed": 0,
        "hparams": {},
        "dataset_options": {},
        "train_domains": ["a"],
        "test_domains": ["b"],
        "batch_size": 8,
    }
    data = {"input_shape": [3, 32, 32], "classes": ["x", "y"], "train_domains": ["a"]}
    (folder / "run" / "config.json").write_text(json.dumps({"schema": 1, "config": config, "data": data}))
    (folder / "image.png").touch()
    outcome = domainwise("predict", folder / "run", folder / "image.png")
    assert "used a custom algorithm, own_things:Own; pass it with --algorithm" in outcome.err
    assert str(folder) not in sys.path


def test_names_of_methods_may_be_in_any_case(tmp_path: Path, domainwise: Cli) -> None:
    assert RunConfig(algorithm="MAT").identity() == RunConfig(algorithm="mat").identity()
    assert SweepSpec(datasets=("silhouettes",), algorithms=("ERM", "Mat")).algorithms == ("erm", "mat")
    assert domainwise("algorithms", "VREx").out == domainwise("algorithms", "vrex").out
    with pytest.raises(DomainwiseError, match="duplicate entries in algorithms"):
        SweepSpec(datasets=("silhouettes",), algorithms=("ERM", "erm"))


def test_two_methods_of_a_sweep_cannot_share_a_name(folder: Path) -> None:
    (folder / "own_erm.py").write_text("from domainwise.algorithms import SD\n\n\nclass ERM(SD): ...\n")
    spec = SweepSpec(datasets=("silhouettes",), algorithms=("erm", "own_erm:ERM"))
    with pytest.raises(DomainwiseError, match="erm and own_erm:ERM are both named erm in records; rename one class"):
        plan_sweep(spec, folder / "sweep")


def test_an_own_class_is_described_like_a_method(folder: Path, domainwise: Cli) -> None:
    (folder / "own_plain.py").write_text(
        "from dataclasses import dataclass\nfrom domainwise.algorithms.base import Algorithm\n"
        "from domainwise.hparams import Hparams\n\n\n@dataclass(frozen=True)\nclass OwnHparams(Hparams):\n"
        "    alpha: float = 2.0\n\n\nclass Own(Algorithm):\n    Hparams = OwnHparams\n\n"
        "    def update(self, batches):\n        return {'loss': 0.0}\n"
    )
    outcome = domainwise("algorithms", "own_plain:Own", "--markdown")
    assert outcome.out.splitlines()[-1] == "| `alpha` | 2 |  |  |"
    # Without docstring, group and source.
    assert domainwise("algorithms", "own_plain:Own").out.startswith("own_plain:Own:  (1 domain)\n")


@pytest.fixture
def package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package: a folder on the path with the metadata that pip writes."""
    site = folder / "site"
    for name, entries in {
        "own_acme-1.2": "[domainwise.algorithms]\nfine = own_acme:Fine\nmat = own_acme:Fine\nlost = own_acme.lost:X\n"
        "odd = own_acme:few\ntwice = own_acme:Fine\n"
        "[domainwise.datasets]\nfew = own_acme:few\npacs = own_acme:few\nlost = own_acme.lost:x\n"
        "[domainwise.networks]\nplain = own_acme:plain\n",
        "own_other-3.0": "[domainwise.algorithms]\ntwice = own_acme:Fine\n",
    }.items():
        metadata = site / f"{name}.dist-info"
        metadata.mkdir(parents=True)
        package, version = name.split("-")
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        (metadata / "entry_points.txt").write_text(entries)
    (site / "own_acme.py").write_text(
        "from domainwise.algorithms import ERM\nfrom domainwise.data import silhouettes\n"
        "from domainwise.networks import small_cnn\n\n\n"
        "class Different(ERM):\n    '''A fine method.'''\n\n\nFine = Different\n\n\n"
        "def few(seed, count=60):\n    '''Few silhouettes.'''\n"
        "    return silhouettes(seed, train_count=count, test_count=20, shifts=(0, 8))\n\n\n"
        "def plain(input_shape, num_classes, dropout):\n    return small_cnn(input_shape, num_classes, dropout)\n"
    )
    monkeypatch.syspath_prepend(str(site))
    return site


LOST = "No module named 'own_acme.lost'; 'own_acme' is not a package"
TWICE = "is registered by own_acme 1.2 and own_other 3.0; uninstall one, or use package.module:Name"
RUN = ["--steps", "2", "--batch-size", "8", "--threads", "1", "--device", "cpu"]


def test_registered_names_work_like_built_in_ones(package: Path, folder: Path, domainwise: Cli) -> None:
    words = ["--dataset", "few", "--dataset-option", "count=50", "--algorithm", "Fine", "--network", "plain"]
    # A folder of the same name, such as the package's own, is not taken for images.
    (folder / "few").mkdir()
    outcome = domainwise("train", *words, *RUN, "-o", folder / "run")
    assert outcome.code == 0, outcome.err
    stored = json.loads((folder / "run" / "config.json").read_text())
    assert [stored["config"][name] for name in ("dataset", "algorithm", "network")] == ["few", "fine", "plain"]
    assert json.loads((folder / "run" / "records.jsonl").read_text())["algorithm"] == "fine"
    # Installed code is trusted, so the run is opened without passing anything.
    assert type(load_model(folder / "run")).__name__ == "Network"
    assert domainwise("explain", folder / "run", "--images", "2", "-o", folder / "maps.png").code == 0


@pytest.mark.filterwarnings("default")
def test_lists_show_packages_and_note_what_cannot_be_used(package: Path, domainwise: Cli) -> None:
    methods = domainwise("algorithms")
    *_, own, total = methods.out.split("\n\n")
    assert own.split() == ["from", "other", "packages", "fine", "A", "fine", "method.", "(own_acme", "1.2)"]
    assert total.startswith(f"{len(ALGORITHMS) + 1} methods.")
    assert methods.err.splitlines() == [
        f"note: could not import algorithm 'lost' of own_acme 1.2: {LOST}",
        "note: mat of own_acme 1.2 is not used: a built-in method has this name",
        "note: algorithm odd is of type function; expected a subclass of domainwise.algorithms.Algorithm",
        f"note: algorithm 'twice' {TWICE}",
    ]
    fine = json.loads(domainwise("algorithms", "fine", "--json").out)
    assert (fine["summary"], fine["package"]) == ("A fine method.", "own_acme 1.2")
    assert json.loads(domainwise("algorithms", "mat", "--json").out)["package"] is None

    listed = domainwise("data", "list", "--json")
    datasets = [each for each in json.loads(listed.out) if each["package"]]
    assert [(each["name"], each["description"]) for each in datasets] == [("few", "Few silhouettes.")]
    assert listed.err.splitlines() == [
        f"note: could not import dataset 'lost' of own_acme 1.2: {LOST}",
        "note: pacs of own_acme 1.2 is not used: a built-in dataset has this name",
    ]
    assert "package own_acme 1.2" in domainwise("data", "list").out
    assert "Few silhouettes.\n" in domainwise("data", "check", "few").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--algorithm", "lost"], "could not import algorithm 'lost' of own_acme 1.2: No module named 'own_acme.lost'"),
        (["--algorithm", "odd"], "algorithm odd is of type function; expected a subclass of"),
        (["--algorithm", "twice"], f"algorithm 'twice' {TWICE}"),
        (["--algorithm", "fime"], "unknown algorithm 'fime'; did you mean 'fine'?"),
        (["--dataset", "lost"], "could not import dataset 'lost' of own_acme 1.2"),
        (["--network", "plane"], "unknown network 'plane'; did you mean 'plain'?"),
    ],
)
def test_broken_packages_are_one_line_when_used(
    words: list[str], message: str, package: Path, folder: Path, domainwise: Cli
) -> None:
    outcome = domainwise("train", *words, *RUN, "-o", folder / "run")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert outcome.err.startswith(f"error: {message}")


def test_built_in_names_do_not_look_for_packages(package: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise AssertionError("the metadata of all packages was read")

    monkeypatch.setattr("importlib.metadata.entry_points", refuse)
    config = RunConfig(
        algorithm="mat",
        dataset_options={"train_count": 60, "test_count": 20},
        steps=1,
        batch_size=8,
        device="cpu",
        output=folder / "run",
    )
    assert train(config).last["algorithm"] == "mat"
    load_model(folder / "run")
    with pytest.raises(AssertionError, match="was read"):
        find_plugins("algorithm")
