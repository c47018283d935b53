"""Methods and data of one's own: the tutorial as it stands, what `new-method` writes, and an installed package."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from PIL import Image
from warm_python import WarmPython

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "own_method.md"
# Like the script that pip installs: the current folder is not importable, unlike with `python -m domainwise`.
SCRIPT = "import sys\nfrom domainwise.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
SMALL = ["--steps", "4", "--batch-size", "8", "--threads", "1", "--device", "cpu"]
SILHOUETTES = ["--dataset-option", "train_count=60", "--dataset-option", "test_count=20"]


class Shell:
    """Runs commands in a folder, with `domainwise` as a script in another one."""

    def __init__(self, warm_python: WarmPython, folder: Path, programs: Path) -> None:
        self.warm_python, self.folder = warm_python, folder
        self.move_script(programs)

    def move_script(self, programs: Path) -> None:
        """Make what is installed in `programs` importable: a script's folder is."""
        programs.mkdir(exist_ok=True)
        self.script = programs / "domainwise"
        self.script.write_text(SCRIPT)

    def run(self, *words: object, code: int = 0) -> str:
        command = [self.script, *words[1:]] if words[0] == "domainwise" else words[1:]
        process = self.warm_python.start(*command, cwd=self.folder)
        assert process.wait() == code, (words, process.out, process.err)
        return process.out + process.err


@pytest.fixture
def shell(warm_python: WarmPython, tmp_path: Path) -> Shell:
    folder = tmp_path / "work"
    folder.mkdir()
    return Shell(warm_python, folder, tmp_path / "bin")


def read_hparams(sweep: Path, method: str) -> list[dict[str, float]]:
    configs = sorted(sweep.glob(f"*-{method}-*/config.json"))
    return [json.loads(config.read_text())["config"]["hparams"] for config in configs]


@pytest.mark.slow
def test_the_tutorial_runs_as_it_stands(shell: Shell, tmp_path: Path) -> None:
    output: dict[str, str] = {}
    for language, text in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if file := re.match(r"# ([\w.]+)\n", text):
            (shell.folder / file[1]).write_text(text)
        for line in text.splitlines() if language == "sh" else ():
            words = shlex.split(line)
            if words[0] == "pip":
                # Without a package index, and into a folder of its own.
                target = ["--quiet", "--no-index", "--no-build-isolation", "--no-deps", "--target", tmp_path / "site"]
                shell.run("python", "-m", "pip", "install", *target, *words[2:])
                shell.move_script(tmp_path / "site")
                shell.folder = tmp_path / "elsewhere"
                shell.folder.mkdir()
                continue
            output[line] = shell.run(*words)
    assert "tilt " in output["domainwise algorithms tilted:Tilted"]
    report = output["domainwise report sweeps/tilted"]
    assert "stripes, selected by" in report
    assert re.search(r"^ tilted ", report, re.MULTILINE)
    sweep = tmp_path / "work" / "sweeps" / "tilted"
    assert len({each["tilt"] for each in read_hparams(sweep, "tilted")}) == 2
    assert "(domainwise-tilted 0.1.0)" in output["domainwise algorithms"]
    assert re.search(r"^ stripes .*domainwise-tilted", output["domainwise data list"], re.MULTILINE | re.DOTALL)
    stored = json.loads((shell.folder / "runs" / "named" / "config.json").read_text())["config"]
    assert (stored["dataset"], stored["algorithm"]) == ("stripes", "tilted")


NAMES = {"my_first_method": "MyFirstMethod", "x2": "X2"}


@pytest.mark.slow
def test_new_methods_work_as_they_are(shell: Shell) -> None:
    """Their tests, linters and type checkers pass, and they train and sweep from the command line."""
    for name in NAMES:
        shell.run("domainwise", "new-method", name, "--group", "alignment")
    assert len(list(shell.folder.iterdir())) == 6
    shell.run("python", "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", ".")

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    length = ["--isolated", "--line-length", str(settings["line-length"])]
    rules = ["--select", ",".join(settings["lint"]["select"]), "--ignore", ",".join(settings["lint"]["ignore"])]
    for folder, command in (
        (shell.folder, ["ruff", "check", *length, *rules, "."]),
        (shell.folder, ["ruff", "format", "--check", *length, "."]),
        # With the settings of this project, which are strict, and therefore its cache.
        (ROOT, ["mypy", *shell.folder.glob("*.py")]),
    ):
        outcome = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True)
        assert outcome.returncode == 0, outcome.stdout + outcome.stderr

    table = shell.run("domainwise", "algorithms", "x2:X2", "--markdown").strip()
    assert f"## Hyperparameters\n\n{table}\n\n" in (shell.folder / "x2.md").read_text()
    given = [word for pair in NAMES.items() for word in ("--algorithm", ":".join(pair))]
    sweep = ["sweep", "--dataset", "silhouettes", *given, "--draws", "2", *SILHOUETTES, *SMALL, "-o", "sweeps/new"]
    shell.run("domainwise", *sweep)
    for class_name in NAMES.values():
        first, second = read_hparams(shell.folder / "sweeps" / "new", class_name.lower())
        assert all(first[key] != second[key] for key in ("penalty_weight", "ramp_steps"))


@pytest.mark.slow
def test_runs_of_an_own_class_are_opened_with_it(shell: Shell) -> None:
    shell.run("domainwise", "new-method", "spread")
    own = ["--algorithm", "spread:Spread"]
    train = ["sweep", "--dataset", "silhouettes", "--algorithm", "ERM", *own, *SILHOUETTES, *SMALL]
    shell.run("domainwise", *train, "--draws", "2", "--shared-start", "-o", "sweep")
    shell.run("domainwise", *train, "--engine", "slurm", "--write-script", "job.sh", "-o", "slurm")
    run = "sweep/silhouettes-spread-draw0-trial0"
    Image.new("RGB", (32, 32)).save(shell.folder / "image.png")
    for words in (
        ["predict", run, "image.png"],
        # Next to runs of a built-in method, which stay what they are.
        ["explain", "sweep", "--images", "2"],
        ["robustness", "sweep", "--images", "4", "--attack-steps", "1", "--radius", "0.5", "-q"],
        ["average", "sweep", "--rule", "uniform"],
        ["refit", run],
    ):
        shell.run("domainwise", *words, *own)
    refused = shell.run("domainwise", "predict", run, "image.png", code=2)
    message = "used a custom algorithm, spread:Spread; pass it with --algorithm (algorithm= in Python)"
    assert refused == f"error: the run in {run} {message}\n"
    other = shell.run("domainwise", "predict", run, "image.png", "--algorithm", "spread:Power", code=2)
    assert "used algorithm spread:Spread, not spread:Power" in other
    no_perturbation = shell.run("domainwise", "perturbations", run, *own, code=2)
    assert "no perturbation to show" in no_perturbation
    # A job of the written script.
    commands = (shell.folder / "job.commands").read_text().splitlines()
    (command,) = [line for line in commands if "spread:Spread" in line]
    shell.run(*shlex.split(command))
    assert (shell.folder / "slurm" / "silhouettes-spread-draw0-trial0" / "done").exists()


@pytest.mark.slow  # the tutorial above installs one, too
def test_an_installed_package_is_used_by_name(tmp_path: Path) -> None:
    """A real process that finds a real entry point; nothing of this package is told about it."""
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    (site / "acme-1.2.dist-info").mkdir(parents=True)
    (site / "acme-1.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.2\n")
    (site / "acme-1.2.dist-info" / "entry_points.txt").write_text(
        "[domainwise.algorithms]\nspreading = acme:Spread\n"
        "[domainwise.datasets]\nrings = acme:rings\n"
        "[domainwise.networks]\nround = acme:build\n"
    )
    (site / "acme.py").write_text(
        "from domainwise.algorithms import ERM as Spread\n"
        "from domainwise.data import silhouettes\n"
        "from domainwise.networks import small_cnn as build\n\n\n"
        "class Spread(Spread):\n    '''An own method.'''\n\n\n"
        "def rings(seed):\n    return silhouettes(seed, train_count=60, test_count=20, shifts=(0, 8))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), os.environ.get("PYTHONPATH", "")))}
    words = ["--dataset", "rings", "--algorithm", "Spreading", "--network", "round", "--trials", "2", *SMALL]
    outcome = subprocess.run(
        [sys.executable, "-m", "domainwise", "sweep", *words, "-o", "sweep"],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert outcome.returncode == 0, outcome.stderr
    program = (
        "from domainwise import load_model; import torch\n"
        "model = load_model('sweep/rings-spreading-shift_0-shift_8-draw0-trial1')\n"
        "print(tuple(model(torch.rand(3, 3, 32, 32)).shape))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=work, env=environment, capture_output=True, text=True, timeout=200
    )
    assert loaded.stdout == "(3, 2)\n", loaded.stderr
    shutil.rmtree(site)
