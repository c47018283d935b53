"""Which perturbation looks like the shift: priors, who shares them and who chooses them, compared in pairs.

All arms of a trial see the same batches, augmented alike, and start from the same weights. Each run adds one line to a
file of records, so repeating a command resumes it. Settings were chosen by `calibrate`, on trials and held-out domains
that the screen does not have.

    python benchmarks/priors.py calibrate --data-dir DATA --weights FILE --records docs/results/priors_calibration.jsonl
    python benchmarks/priors.py run pacs --data-dir DATA --weights FILE
    python benchmarks/priors.py run office_caltech10 --data-dir DATA --weights FILE
    python benchmarks/priors.py run silhouettes
    python benchmarks/priors.py share silhouettes
    python benchmarks/priors.py share office_caltech10 --data-dir DATA --weights FILE
    python benchmarks/priors.py tables --picture docs/results/priors.png

`share` asks whether a perturbation that all images of a domain share can be chosen on a quarter of them.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib.pyplot as plt
import scipy.stats

from domainwise import RunConfig, train
from domainwise.reports.formats import format_markdown_table
from domainwise.selection.statistics import estimate_mean
from domainwise.selection.verdicts import judge_differences

RECORDS = Path("docs/results/priors.jsonl")
Record = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """A method and its settings; `family` is the prior, or what else it belongs to."""

    label: str
    family: str
    algorithm: str
    hparams: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return json.dumps([self.algorithm, self.hparams, self.settings], sort_keys=True)


def list_arms() -> list[Arm]:
    """Return the arms of the screen: baselines, then each prior with who shares it and who chooses it."""
    arms = [
        Arm("ERM", "baselines", "erm"),
        Arm("ERM, strong augmentation", "baselines", "erm", {}, {"augment": "strong"}),
        Arm("RandConv", "baselines", "randconv"),
        Arm("MixStyle", "baselines", "mixstyle"),
        Arm("DSU", "baselines", "dsu"),
    ]
    pixels = {"epsilon": "1/255 rms"}
    spectrum = {"norm": "linf"}
    by_prior: dict[str, dict[str, Any]] = {
        "pixels": pixels,
        "spectrum": spectrum,
        "filter": {},
        "tone": {},
        "features": {},
    }
    for prior, hparams in by_prior.items():
        settings = {"prior": prior, **hparams}
        if prior != "pixels":
            settings["clean_share"] = 0.25  # by `calibrate`
        arms += [
            Arm("each image, gradient", prior, "at", settings),
            Arm("each image, worst of 3", prior, "at", {**settings, "adversary": "worst_of"}),
            Arm("each image, random", prior, "at", {**settings, "adversary": "random"}),
            Arm("each domain, gradient", prior, "uat", settings),
            Arm("3 per domain, gradient", prior, "mat", {**settings, "count": 3}),
        ]
        if prior in ("pixels", "spectrum"):
            arms.append(Arm("each domain, rank 10, gradient", prior, "ldat", {**settings, "rank": 10}))
        else:
            arms.append(Arm("3 per domain, worst", prior, "mat", {**settings, "count": 3, "adversary": "worst_of"}))
        if prior == "pixels":
            arms.append(Arm("each domain, one random pattern", prior, "uat", {**settings, "adversary": "random"}))
    return arms


def list_calibration_arms() -> list[Arm]:
    """Return variations of the arm that promised most: how large, how many images stay clean, and the warm-up."""
    worst = {"prior": "filter", "adversary": "worst_of", "clean_share": 0.0}
    variations: dict[str, dict[str, Any]] = {
        "no clean images, warm-up, radius 1.5": {},
        "half of the images clean": {"clean_share": 0.5},
        "a quarter of the images clean": {"clean_share": 0.25},
        "no warm-up": {"warmup": 0.0},
        "radius 1": {"epsilon": 1.0},
        "radius .5": {"epsilon": 0.5},
    }
    return [
        Arm("ERM", "baselines", "erm"),
        *(Arm(label, "filter", "at", {**worst, **more}) for label, more in variations.items()),
    ]


def list_shares() -> dict[str, tuple[Arm, Arm]]:
    """Return methods whose perturbation is chosen on a quarter of each domain's batch, and on all of it."""
    pixels = {"prior": "pixels", "epsilon": "1/255 rms"}
    methods: dict[str, dict[str, Any]] = {
        "uat": pixels,
        "mat": {**pixels, "count": 3, "weights": "domain"},
        "ldat": {**pixels, "rank": 10},
    }
    shares = {"on a quarter": {"attack_share": 0.25}, "on all": {}}
    return {
        f"{name.upper()} chosen on a quarter, not on all": tuple(  # type: ignore[misc]
            Arm(f"{name.upper()} {label}", "share", name, {**hparams, **more}) for label, more in shares.items()
        )
        for name, hparams in methods.items()
    }


@dataclass(frozen=True)
class Setup:
    """How all runs on a dataset train, what is held out in turn, and which trials there are."""

    settings: Mapping[str, Any]
    lr: float
    targets: tuple[str, ...]
    trials: tuple[int, ...]
    share_trials: int = 0


_PHOTOS: dict[str, Any] = {
    "network": "mobilenet_v2",
    "dataset_options": {"image_size": 64},
    "batch_size": 16,
    "augment": True,
}
SETUPS = {
    "silhouettes": Setup(
        {"network": "small_cnn", "steps": 700, "batch_size": 64, "augment": False}, 1e-3, ("",), tuple(range(5)), 20
    ),
    "office_caltech10": Setup({**_PHOTOS, "steps": 200}, 1e-4, ("amazon", "caltech10", "dslr", "webcam"), (0, 1, 2), 6),
    "pacs": Setup({**_PHOTOS, "steps": 600}, 1e-4, ("sketch", "photo"), (0, 1)),
    "pacs_calibration": Setup({**_PHOTOS, "steps": 600}, 1e-4, ("cartoon", "art_painting"), (100, 101)),
}
FOLDERS = {"pacs": "PACS", "pacs_calibration": "PACS", "office_caltech10": "OfficeCaltech10"}


@dataclass(frozen=True)
class Task:
    """One run."""

    setup: str
    arm: Arm
    target: str
    trial: int

    @property
    def key(self) -> list[Any]:
        return [self.setup, self.arm.key, self.target, self.trial]


def run_task(task: Task, data_dir: str, weights: str) -> Record:
    """Train one arm, and return its record: accuracies at the end of training."""
    setup, started = SETUPS[task.setup], time.perf_counter()
    folder = FOLDERS.get(task.setup)
    settings = {**setup.settings, **task.arm.settings}
    if folder is not None:
        settings["weights"] = weights
    with tempfile.TemporaryDirectory() as output:
        run = train(
            RunConfig(
                dataset=task.setup if folder is None else Path(data_dir) / folder,
                algorithm=task.arm.algorithm,
                hparams={"lr": setup.lr, **task.arm.hparams},
                test_domains=(task.target,) if task.target else (),
                trial_seed=task.trial,
                record_every=settings["steps"],
                threads=1,
                keep="best",
                output=Path(output) / "run",
                **settings,
            )
        )
        record = run.records[-1]
    accuracies = record["accuracy"]
    return {
        "key": task.key,
        "label": task.arm.label,
        "family": task.arm.family,
        # All images: the two parts of a domain are a fifth and the rest.
        "test": {
            name: 0.8 * accuracies[name]["main"] + 0.2 * accuracies[name]["holdout"] for name in record["test_domains"]
        },
        "holdout": {name: accuracies[name]["holdout"] for name in record["train_domains"]},
        "seconds": round(time.perf_counter() - started, 1),
    }


def run(options: argparse.Namespace) -> None:
    setup_name = "pacs_calibration" if options.command == "calibrate" else options.dataset
    setup = SETUPS[setup_name]
    trials: Sequence[int] = setup.trials
    arms = list_calibration_arms() if options.command == "calibrate" else list_arms()
    if options.command == "share":
        trials, arms = range(setup.share_trials), [arm for pair in list_shares().values() for arm in pair]
    if options.arm:
        arms = [arm for arm in arms if f"{arm.family}: {arm.label}" in options.arm]
    # Trial by trial, so that an interrupted screen is a complete one of fewer trials.
    tasks = [Task(setup_name, arm, target, trial) for trial in trials for target in setup.targets for arm in arms]
    done = [record["key"] for record in read_records(options.records)]
    todo = [task for task in tasks if task.key not in done]
    print(f"{len(tasks)} runs, {len(tasks) - len(todo)} done", file=sys.stderr, flush=True)
    options.records.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run_task, task, options.data_dir, options.weights) for task in todo]
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                record = future.result()
                with options.records.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                _, _, target, trial = record["key"]
                accuracy, holdout = fmean(record["test"].values()), fmean(record["holdout"].values())
                print(
                    f"{number}/{len(todo)} {record['seconds']:.0f} s, {target} trial {trial}, {record['family']}: "
                    f"{record['label']}: holdout {holdout:.3f}, test {accuracy:.3f}",
                    file=sys.stderr,
                    flush=True,
                )
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def read_records(file: Path) -> list[Record]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def summarize(record: Record) -> float:
    """Return the accuracy on the test domain; on silhouettes, that on the largest shifts."""
    return fmean(value for name, value in record["test"].items() if name not in ("shift_0", "shift_4", "shift_8"))


def pair_with_erm(records: Sequence[Record], arm: Arm, value: Callable[[Record], float]) -> dict[str, list[float]]:
    """Return the differences from ERM, in points, of the runs of an arm by held-out domain."""
    erm = {tuple(each["key"][2:]): each for each in records if each["key"][1] == list_arms()[0].key}
    differences: dict[str, list[float]] = {}
    for each in records:
        pair = tuple(each["key"][2:])
        if each["key"][1] == arm.key and pair in erm:
            differences.setdefault(pair[0], []).append(100 * (value(each) - value(erm[pair])))
    return differences


def tabulate(records: Sequence[Record], setup: str, arms: Sequence[Arm]) -> str:
    """Return one row per arm: the difference from ERM on each held-out domain, in all, and on the training domains."""
    own = of_setup(records, setup)
    targets = [target for target in SETUPS[setup].targets if any(each["key"][2] == target for each in own)]
    rows = []
    for arm in arms:
        differences = pair_with_erm(own, arm, summarize)
        if not differences:
            continue
        holdouts = pair_with_erm(own, arm, lambda record: fmean(record["holdout"].values()))
        if arm.label == "ERM":
            cells = [
                f"{format_mean([100 * summarize(each) for each in own if each['key'][1:3] == [arm.key, target]])}"
                for target in targets
            ]
            rows.append(
                (
                    arm.family,
                    arm.label,
                    *cells,
                    "",
                    format_mean([100 * fmean(each["holdout"].values()) for each in own if each["key"][1] == arm.key]),
                )
            )
            continue
        every = [value for values in differences.values() for value in values]
        cells = [format_mean(differences.get(target, []), is_signed=True) for target in targets]
        training = [value for values in holdouts.values() for value in values]
        rows.append((arm.family, arm.label, *cells, format_interval(every), format_mean(training, is_signed=True)))
    names = [target.replace("_", " ") or "shifts 12 and 16" for target in targets]
    return format_markdown_table(
        ("prior", "arm", *names, "all, 95 % interval", "holdouts"), rows, numeric=len(names) + 2
    )


def judge_shares(records: Sequence[Record], setup: str) -> str:
    """Return the verdicts on choosing a perturbation on a quarter of the images: one difference per complete trial."""
    by_key = {(each["key"][1], each["key"][2], each["key"][3]): summarize(each) for each in of_setup(records, setup)}
    claims: dict[str, list[float]] = {}
    for claim, arms in list_shares().items():
        for trial in range(SETUPS[setup].share_trials):
            pairs = [[by_key.get((arm.key, target, trial)) for arm in arms] for target in SETUPS[setup].targets]
            differences = [some - every for some, every in pairs if some is not None and every is not None]
            if len(differences) == len(pairs):
                claims.setdefault(claim, []).append(100 * fmean(differences))
    rows = [
        (claim, each.trials, f"{each.estimate:+.1f}", format_ends(each.interval), each.verdict)
        for claim, each in judge_differences(claims).items()
    ]
    header = ("claim", "trials", "difference", "interval", "verdict")
    return format_markdown_table(header, rows, numeric=3) if rows else ""


def of_setup(records: Sequence[Record], setup: str) -> list[Record]:
    return [record for record in records if record["key"][0] == setup]


def format_mean(values: Sequence[float], *, is_signed: bool = False) -> str:
    """Return the mean with its standard error."""
    if not values:
        return ""
    estimate = estimate_mean(values)
    error = "" if estimate.error is None else f" ± {estimate.error:.1f}"
    return f"{estimate.mean:{'+' if is_signed else ''}.1f}{error}"


def format_interval(values: Sequence[float]) -> str:
    """Return the mean with its interval, t with the number of runs."""
    estimate = estimate_mean(values)
    if estimate.error is None:
        return f"{estimate.mean:+.1f}"
    half = float(scipy.stats.t.ppf(0.975, len(values) - 1)) * estimate.error
    return f"{estimate.mean:+.1f} {format_ends((estimate.mean - half, estimate.mean + half))}"


def format_ends(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"[{interval[0]:+.1f}, {interval[1]:+.1f}]"


def print_tables(options: argparse.Namespace) -> None:
    records = read_records(options.records)
    for setup in dict.fromkeys(record["key"][0] for record in records):
        arms = list_calibration_arms() if setup == "pacs_calibration" else list_arms()
        print(f"## {setup}\n\n{tabulate(records, setup, arms)}\n\n{judge_shares(records, setup)}\n")
    if options.picture is not None:
        plot_screen(records, options.picture)


def plot_screen(records: Sequence[Record], file: Path) -> None:
    """Plot each arm's difference from ERM, one panel per dataset and held-out domain, with every run as a dot."""
    panels = [
        (setup, target)
        for setup in ("pacs", "office_caltech10", "silhouettes")
        for target in SETUPS[setup].targets
        if any(record["key"][0] == setup and record["key"][2] == target for record in records)
    ]
    arms = list_arms()[1:]
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(2.6 + 1.9 * len(panels), 0.24 * len(arms) + 1),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    families = list(dict.fromkeys(arm.family for arm in arms))
    for (setup, target), panel in zip(panels, axes[0], strict=True):
        own = of_setup(records, setup)
        panel.axvline(0, color="black", linewidth=0.8)
        for place, arm in enumerate(arms):
            values = pair_with_erm(own, arm, summarize).get(target, [])
            colour = f"C{families.index(arm.family)}"
            panel.plot(values, [place] * len(values), ".", color=colour, alpha=0.4, markersize=4)
            if values:
                panel.plot(fmean(values), place, "o", color=colour, markersize=5)
        panel.set_title(f"{setup.replace('_', ' ')}\n{target.replace('_', ' ') or 'largest shifts'}", fontsize=8)
        panel.grid(axis="x", alpha=0.3)
        panel.tick_params(labelsize=7)
        panel.spines[["top", "right", "left"]].set_visible(False)
    axes[0][0].set_yticks(range(len(arms)), [f"{arm.family}: {arm.label}" for arm in arms], fontsize=7)
    axes[0][0].invert_yaxis()
    figure.supxlabel("accuracy minus ERM's, points", fontsize=8)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    runner = commands.add_parser("run", help="train what is not in the file of records")
    runner.add_argument("dataset", choices=[name for name in SETUPS if name != "pacs_calibration"])
    calibration = commands.add_parser("calibrate", help="the same for the variations of one arm")
    sharing = commands.add_parser("share", help="the same for perturbations chosen on a quarter of the images")
    sharing.add_argument("dataset", choices=[name for name, setup in SETUPS.items() if setup.share_trials])
    for each in (runner, calibration, sharing):
        each.set_defaults(call=run)
        each.add_argument("--arm", action="append", default=[], help="run this arm only, 'prior: label'; repeatable")
        each.add_argument("--data-dir", default="", help="folder that contains PACS and OfficeCaltech10")
        each.add_argument("--weights", default="IMAGENET1K_V1", help="weights of MobileNetV2")
        each.add_argument("--workers", type=int, default=2, help="number of processes, with one thread each")
    printer = commands.add_parser("tables", help="print the tables of a file of records as Markdown")
    printer.set_defaults(call=print_tables)
    printer.add_argument("--picture", type=Path, help="file for the figure")
    for each in (runner, calibration, sharing, printer):
        each.add_argument("--records", type=Path, default=RECORDS)
    options = parser.parse_args()
    options.call(options)


if __name__ == "__main__":
    main()
