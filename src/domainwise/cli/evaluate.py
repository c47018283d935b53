"""`domainwise evaluate`: accuracy of trained models on a new labelled dataset."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from domainwise.cli.console import DataProgress, make_console, print_json, print_line, print_table
from domainwise.cli.options import AsJson, DataDir, Device, OwnAlgorithm, OwnNetwork, Quiet, parse_literals

if TYPE_CHECKING:
    from domainwise.storage.run_folder import Which
    from domainwise.training.model_evaluation import Count, ModelEvaluation

EXAMPLES = """
Examples:

domainwise evaluate runs/pacs-mat --dataset new_photos/

domainwise evaluate runs/pacs-erm runs/pacs-mat --dataset labels.csv --domain clinic_3

domainwise evaluate runs/pacs-mat --dataset office_home --ignore-unknown-classes --json

domainwise evaluate hf:owner/name --dataset new_photos/ --which last
"""


def evaluate(
    run: Annotated[list[str], typer.Argument(help="Run folders, folders with runs below them, or hf:owner/name.")],
    dataset: Annotated[
        str,
        typer.Option(
            help="Labelled images: a folder root/domain/class/image or root/class/image, a CSV file with columns path, "
            "label, domain, or a dataset as for `domainwise train`."
        ),
    ],
    which: Annotated[str, typer.Option(help="Model of each run: best (as selected) or last.")] = "best",
    domain: Annotated[list[str] | None, typer.Option(help="Evaluate only this domain. Repeatable.")] = None,
    ignore_unknown_classes: Annotated[
        bool,
        typer.Option("--ignore-unknown-classes", help="Leave out images of classes that a model does not have."),
    ] = False,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Skip images that could not be read.")] = False,
    dataset_option: Annotated[list[str] | None, typer.Option(help="Dataset option as name=value. Repeatable.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of synthetic data.")] = 0,
    data_dir: DataDir = None,
    algorithm: OwnAlgorithm = None,
    network: OwnNetwork = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure the accuracy of trained models on new labelled images, by domain and by class.

    Classes are matched by name, and images resized to what a model was trained on. Errors are standard errors.
    """
    from domainwise.training.model_evaluation import evaluate_models

    options = parse_literals(dataset_option or [], "--dataset-option")
    with DataProgress(make_console(quiet, stderr=True)) as progress:
        evaluations = evaluate_models(
            run,
            dataset,
            which=cast("Which", which),
            domains=domain or (),
            ignore_unknown_classes=ignore_unknown_classes,
            options={"skip_broken": True, **options} if skip_broken else options,
            seed=seed,
            data_dir=data_dir,
            algorithm=algorithm,
            network=network,
            device=device,
            on_progress=progress.report,
        )
    if as_json:
        print_json([each.as_dict() for each in evaluations])
    elif not quiet:
        _print_tables(evaluations)
    for each in evaluations if not quiet else ():
        for note in _list_notes(each):
            print_line(f"note: {note}", stderr=True)


def _print_tables(evaluations: Sequence["ModelEvaluation"]) -> None:
    """Print accuracies by domain and by class; the runs are named if there are several."""
    for kind in ("domain", "class"):
        rows = []
        for each in evaluations:
            counts: Mapping[str, Count] = each.by_domain if kind == "domain" else each.by_class
            total = {"all": each.total} if kind == "domain" and len(counts) > 1 else {}
            for name, count in {**counts, **total}.items():
                accuracy = f"{100 * count.accuracy:.1f} ± {100 * count.error:.1f}"
                rows.append((each.run, name, str(count.images), accuracy)[len(evaluations) == 1 :])
        header = ("run", kind, "images", "accuracy, %")[len(evaluations) == 1 :]
        print_table(header, rows, numeric=2)


def _list_notes(evaluation: "ModelEvaluation") -> list[str]:
    notes = []
    if evaluation.trained_on:
        names = ", ".join(evaluation.trained_on)
        notes.append(f"{evaluation.run} was trained on {names} of {evaluation.dataset}: these images are not new to it")
    if evaluation.ignored:
        classes = ", ".join(f"{name} ({count})" for name, count in evaluation.ignored.items())
        notes.append(f"left out images of classes that {evaluation.run} does not have: {classes}")
    return notes
