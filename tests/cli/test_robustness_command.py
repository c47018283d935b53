"""`domainwise robustness`: the figure, the table, CSV and JSON, accuracy against epsilon, Ctrl-C, and errors."""

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from PIL import Image

from children import start_child
from domainwise.storage.run_folder import RunFolder
from domainwise.training import RunConfig, train

SMALL = {"train_count": 60, "test_count": 40, "shifts": [0, 8]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train erm, and uat with two radii, two trials each."""
    folder = tmp_path_factory.mktemp("runs")
    for trial in (0, 1):
        for name, hparams in (("erm", {}), ("uat", {"epsilon": 0.5}), ("uat", {"epsilon": 2.0})):
            train(
                RunConfig(
                    algorithm=name,
                    hparams=hparams,
                    steps=2,
                    batch_size=8,
                    trial_seed=trial,
                    dataset_options=SMALL,
                    output=folder / f"{name}{hparams.get('epsilon', '')}-{trial}",
                    device="cpu",
                )
            )
    return folder


def test_figure_table_and_csv(domainwise: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    folders = [runs / f"{name}-{trial}" for name in ("erm", "uat0.5") for trial in (0, 1)]
    result = domainwise(
        *(
            "robustness",
            *folders,
            "--radius",
            1,
            "--radius",
            0,
            "--attack-steps",
            2,
            "--which",
            "last",
            "--domain",
            "shift_8",
        ),
        *("-o", tmp_path / "r.png", "--csv", tmp_path / "r.csv", "--device", "cpu", "--markdown"),
    )
    assert result.code == 0, result.err
    with Image.open(tmp_path / "r.png") as figure:
        assert min(figure.size) > 300
    frame = pl.read_csv(tmp_path / "r.csv")
    assert len(frame) == 4 * 2 * 2
    assert set(frame["label"]) == {"erm", "uat"}
    for row in frame.filter(pl.col("epsilon") == 0).iter_rows(named=True):
        recorded = RunFolder(runs / row["run"]).read_records()[-1]["accuracy"]["shift_8"]["main"]
        assert row["accuracy"] == recorded
    head, _, *rows = result.out.splitlines()
    assert head == "| method | domain | attack | norm | 0 | 1 |"
    assert len(rows) == 2 * 2
    clean = frame.filter(pl.col("epsilon") == 0, pl.col("label") == "uat", pl.col("attack") == "sample")["accuracy"]
    one, other = clean.to_list()
    # The standard deviation of two values is half their distance; the error divides it by the root of two.
    expected = f"{50 * (one + other):.1f} ± {50 * abs(one - other):.1f}"
    assert any(f"| uat | shift_8 | sample | l2 | {expected} |" in row for row in rows)


def test_test_domains_are_attacked_by_default(domainwise: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    words = ("--radius", 0, "--kind", "domain", "--images", 5, "--csv", tmp_path / "r.csv", "-o", tmp_path / "r.svg")
    result = domainwise("robustness", runs / "erm-0", *words)
    assert result.code == 0, result.err
    frame = pl.read_csv(tmp_path / "r.csv")
    assert frame.select("domain", "attack", "images").rows() == [("shift_0", "domain", 5), ("shift_8", "domain", 5)]


def test_attacks_in_linf_with_one_of_our_own(
    domainwise: Callable[..., Any], runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("brighter.py").write_text("def attack(model, x, y, epsilon):\n    return (x + epsilon).clamp(0, 1)\n")
    attacks = ("--attack", "fgsm", "--attack", "pgd", "--attack", "domain", "--attack", "brighter:attack")
    epsilons = ("--epsilon", "4/255", "--epsilon", 0, "--restarts", 2, "--attack-step-size", "1/255")
    rest = (
        "--attack-steps",
        2,
        "--images",
        10,
        "--domain",
        "shift_0",
        "--device",
        "cpu",
        "--csv",
        "r.csv",
        "--markdown",
    )
    result = domainwise("robustness", runs / "erm-0", *attacks, "--norm", "linf", *epsilons, *rest)
    assert result.code == 0, result.err
    head, _, *rows = result.out.splitlines()
    assert head == "| method | domain | attack | norm | 0 | 4/255 |"
    assert [row.split(" | ")[2:4] for row in rows] == [
        [name, "linf"] for name in ("fgsm", "pgd", "domain", "brighter:attack")
    ]
    # One run: the binomial error of its images.
    assert all("±" in cell for row in rows for cell in row.split(" | ")[4:])
    frame = pl.read_csv("r.csv")
    assert frame["epsilon"].to_list() == pytest.approx([0, 4 / 255] * 4)
    assert set(frame["images"]) == {10}
    assert Path("robustness.png").exists()


@pytest.mark.filterwarnings("always")
def test_apgd_of_two_classes_says_so(domainwise: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    args = ("--attack", "apgd", "--epsilon", "4/255", "--attack-steps", 2, "--images", 5, "-o", tmp_path / "r.png")
    result = domainwise("robustness", runs / "erm-0", *args, "--device", "cpu")
    assert result.code == 0, result.err
    assert "needs at least 3 classes, got 2; apgd ascends the cross-entropy only" in result.err


def test_accuracy_against_epsilon(domainwise: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    words = ("-o", tmp_path / "e.png", "--csv", tmp_path / "new" / "e.csv", "--markdown")
    result = domainwise("robustness", "--against-epsilon", runs, *words)
    assert result.code == 0, result.err
    assert (tmp_path / "e.png").exists()
    head, _, *rows = result.out.splitlines()
    assert head == "| method | epsilon | shift_0 | shift_8 | average |"
    assert [row.split(" | ")[:2] for row in rows] == [["| erm", ""], ["| uat", "0.5"], ["| uat", "2"]]
    frame = pl.read_csv(tmp_path / "new" / "e.csv")
    assert len(frame) == 6 * 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("{runs}/nothing",), "nothing not found"),
        (("{runs}/erm-0", "--radius", "-1"), "at least 0"),
        (("{runs}/erm-0", "--device", "gpu"), "unknown device 'gpu'"),
        (("{runs}/erm-0", "--kind", "domian"), "did you mean 'domain'"),
        (("{runs}/erm-0", "--domain", "shift_88"), "did you mean 'shift_8'"),
        (("{runs}/erm-0", "--which", "newest"), "unknown which 'newest'"),
        (("{runs}/erm-0", "--output", "r.gif"), "png, svg, pdf"),
        (("{runs}/erm-0", "--attack-steps", "0"), "at least 1 step"),
        (("{runs}/erm-0", "--attack", "pgdd"), "did you mean 'pgd'"),
        (("{runs}/erm-0", "--attack", "pgd", "--norm", "l3"), "unknown norm 'l3'"),
        (("{runs}/erm-0", "--attack", "pgd", "--epsilon", "4 / 255 rms"), "without unit"),
        (("{runs}/erm-0", "--attack", "autoattack"), "needs at least 4 classes"),
        (("{runs}/erm-0", "--attack", "nowhere:attack"), "could not import attack 'nowhere:attack'"),
        (("--against-epsilon", "{runs}/nothing"), "nothing not found"),
        (("{runs}/erm-0", "--corruptions", "--corruption", "frots"), "did you mean 'frost'"),
        (("{runs}/erm-0", "--corruptions", "--severity", "6"), "from 1 to 5, got 6"),
        (("{runs}/erm-0", "--corruptions", "--reference", "uatt"), "unknown reference 'uatt'"),
        (("{runs}/erm-0", "--corruptions", "--against-epsilon"), "cannot be used together"),
        (("{runs}/erm-0", "--severity", "1"), "--severity needs --corruptions"),
        (("{runs}/erm-0", "--corruptions", "--restarts", "2"), "--restarts has no effect with --corruptions"),
        (("{runs}", "--against-epsilon", "--domain", "shift_0"), "--domain has no effect with --against-epsilon"),
        (("{runs}/erm-0", "--attack", "pgd", "--epsilon", "8"), "must be at most 1 for norm='linf', got 8; did you"),
        (("{runs}/erm-0", "--attack-step-size", "0"), "step size of an attack must be above 0"),
    ],
)
def test_errors_are_one_line(
    args: tuple[str, ...],
    message: str,
    domainwise: Callable[..., Any],
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = domainwise("robustness", *(word.format(runs=runs) for word in args))
    assert result.code == 2
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_folder_of_runs_and_json(domainwise: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    args = ("--radius", 0, "--kind", "sample", "--images", 5, "--domain", "shift_0", "-o", tmp_path / "r.png")
    result = domainwise("robustness", runs, *args, "--json", "--quiet", "--device", "cpu")
    assert result.code == 0, result.err
    assert result.err == ""
    rows = json.loads(result.out)
    assert {(row["label"], row["trial"]) for row in rows} == {
        (label, trial) for label in ("erm", "uat, epsilon 0.5", "uat, epsilon 2.0") for trial in (0, 1)
    }


CORRUPTIONS = ("--corruptions", "--corruption", "contrast", "--severity", 5, "--severity", 1, "--images", 20)


def test_corruptions(domainwise: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    folders = [runs / f"{name}-{trial}" for name in ("erm", "uat0.5") for trial in (0, 1)]
    files = ("-o", tmp_path / "c.png", "--csv", tmp_path / "c.csv")
    words = ("--corruption", "pixelate", "--domain", "shift_8", *files, "--device", "cpu", "--markdown")
    result = domainwise("robustness", *folders, *CORRUPTIONS, *words)
    assert result.code == 0, result.err
    with Image.open(tmp_path / "c.png") as figure:
        assert min(figure.size) > 300
    frame = pl.read_csv(tmp_path / "c.csv")
    assert len(frame) == 4 * (1 + 2 * 2)
    head, _, *rows = result.out.splitlines()
    assert head == "| method | domain | clean | corrupted | mCE | relative mCE |"
    assert rows[0].startswith("| erm | shift_8 | ")
    assert " | 100.0 ± 0.0 | " in rows[0]
    assert rows[1].startswith("| uat | shift_8 | ")
    assert rows[3] == "| domain | corruption | erm | uat |"
    assert [row.split(" | ")[1] for row in rows[5:]] == ["clean", "contrast", "pixelate"]
    one, other = (frame.filter(label="uat", corruption="contrast", trial=trial)["accuracy"].mean() for trial in (0, 1))
    # As in the table of attacks, but the two severities of a run count as one.
    expected = f"{50 * (one + other):.1f} ± {50 * abs(one - other):.1f}"
    assert rows[6].endswith(f"| {expected} |")


def test_corruptions_without_a_reference(domainwise: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    words = (*CORRUPTIONS, "--domain", "shift_8", "-o", tmp_path / "c.png")
    result = domainwise("robustness", runs / "uat0.5-0", *words)
    assert result.code == 0, result.err
    assert result.out.split()[:6] == ["method", "domain", "clean", "corrupted", "mean", "error"]
    assert "no mCE: no run of erm to divide by; add one, or choose --reference" in result.err
    result = domainwise("robustness", runs / "uat0.5-0", *words, "--reference", "uat", "--json", "--quiet")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert [row["mce"] for row in report["summary"]] == [1.0]
    assert [row["severity"] for row in report["measurements"]] == [0, 1, 5]


def test_ctrl_c_ends_without_a_traceback(runs: Path, tmp_path: Path) -> None:
    program = "import domainwise.cli.robustness, domainwise.__main__ as cli; print('ready', flush=True); cli.main()"
    words = ("robustness", str(runs / "erm-0"), "--attack-steps", "1000000", "--kind", "sample")
    with start_child([sys.executable, "-c", program, *words], cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert not list(tmp_path.iterdir())
