"""`domainwise average`: average the models of a sweep, or a run with its initial weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from domainwise.cli.console import DataProgress, make_console, print_json, print_line, print_table
from domainwise.cli.options import AsJson, DataDir, Device, OwnAlgorithm, OwnNetwork, Quiet

if TYPE_CHECKING:
    from domainwise.sweeps.soups import Soup

EXAMPLES = """
Examples:

domainwise sweep --algorithm erm --draws 8 --shared-start --output sweeps/erm

domainwise average sweeps/erm

domainwise average sweeps/erm --rule greedy --output soups/erm

domainwise average runs/erm --alpha 0.5

domainwise report sweeps/erm sweeps/erm-averages --split-variants
"""


def average(
    path: Annotated[Path, typer.Argument(help="Sweep folder, or a run folder with --alpha.")],
    rule: Annotated[
        str, typer.Option(help="uniform (all runs), greedy (those that do not lower the holdout accuracy), or both.")
    ] = "both",
    alpha: Annotated[
        float | None,
        typer.Option(help="Interpolate a run with its start: the weight of the trained model, 0 to 1 (WiSE-FT)."),
    ] = None,
    across_methods: Annotated[
        bool, typer.Option("--across-methods", help="Average over methods as well, not only over draws.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the averages (default: PATH-averages).")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="The runs' dataset, if it is a folder or file.")] = None,
    data_dir: DataDir = None,
    algorithm: OwnAlgorithm = None,
    network: OwnNetwork = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Average models that began with the same weights (--shared-start). The test domain never decides anything."""
    from domainwise.errors import DomainwiseError, unknown_choice
    from domainwise.storage.run_folder import RunFolder
    from domainwise.sweeps.soups import average_sweep, interpolate_run

    rules = {"uniform": ("uniform",), "greedy": ("greedy",), "both": ("uniform", "greedy")}
    if rule not in rules:
        raise unknown_choice("rule", rule, rules)
    is_run = RunFolder(path).config_file.exists()
    if alpha is None and is_run:
        raise DomainwiseError(f"{path} is a single run; give a sweep, or --alpha to interpolate it with its start")
    if alpha is not None and not is_run:
        raise DomainwiseError(f"--alpha interpolates a single run, but {path} is not a run folder")
    console = make_console(quiet or as_json, stderr=True)
    with DataProgress(console) as progress:
        where: dict[str, Any] = {
            "dataset": dataset,
            "data_dir": data_dir,
            "algorithm": algorithm,
            "network": network,
            "device": device,
            "on_data": progress.report,
        }
        if alpha is not None:
            soups = [interpolate_run(path, alpha, output, **where)]
        else:
            soups = average_sweep(
                path,
                output,
                rules=rules[rule],  # type: ignore[arg-type]
                across_methods=across_methods,
                on_soup=lambda soup: console.print_line(str(soup.folder)),
                **where,
            )
    if as_json:
        print_json([_describe(soup) for soup in soups])
    elif not quiet:
        _print_soups(soups)


def _print_soups(soups: Sequence["Soup"]) -> None:
    from domainwise.selection.statistics import estimate_mean

    header = ("method", "tested on", "trial", "rule", "runs", "holdout", "test", "best run", "gain")
    rows = []
    gains: dict[str, list[float]] = {}
    for soup in soups:
        each = _describe(soup)
        gains.setdefault(soup.rule, []).append(100 * (each["test"] - each["best_test"]))
        rows.append(
            (
                *(each["method"], ", ".join(each["test_domains"]), str(each["trial"]), soup.rule),
                f"{len(soup.members)} of {soup.num_candidates}",
                *(f"{100 * each[name]:.1f}" for name in ("holdout", "test", "best_test")),
                f"{gains[soup.rule][-1]:+.1f}",
            )
        )
    print_table(header, rows)
    for rule, values in gains.items():
        estimate = estimate_mean(values)
        error = "" if estimate.error is None else f" ± {estimate.error:.1f}"
        print_line(f"{rule}: {estimate.mean:+.1f}{error} points on the test domain over the best single run")


def _describe(soup: "Soup") -> dict[str, Any]:
    """Return an average as the command prints it, ready for JSON."""
    return {
        "folder": str(soup.folder),
        "rule": soup.rule,
        "method": soup.record["algorithm"],
        "trial": soup.record["trial_seed"],
        "test_domains": list(soup.record["test_domains"]),
        "members": list(soup.members),
        "candidates": soup.num_candidates,
        "holdout": _mean_accuracy(soup.record, "train_domains", "holdout"),
        "test": _mean_accuracy(soup.record, "test_domains", "main"),
        "best_test": _mean_accuracy(soup.best, "test_domains", "main"),
    }


def _mean_accuracy(record: dict[str, Any], role: str, part: str) -> float:
    values = [record["accuracy"][name][part] for name in record[role] if part in record["accuracy"][name]]
    return sum(values) / len(values) if values else float("nan")
