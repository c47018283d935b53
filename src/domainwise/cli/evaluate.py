"""`domainwise evaluate`: accuracy of trained or published models on a new labelled dataset."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from domainwise.cli.console import DataProgress, make_console, print_json, print_line, print_table
from domainwise.cli.options import AsJson, DataDir, Device, OwnAlgorithm, OwnNetwork, Quiet, parse_dataset_options

if TYPE_CHECKING:
    from domainwise.storage.run_folder import Which
    from domainwise.training.model_evaluation import Count, ModelEvaluation

# The largest confusion matrix, and the longest table by class, that fit a terminal; in classes.
MAX_PRINTED = 12
MAX_ROWS = 100
EXAMPLES = """
Examples:

domainwise evaluate runs/pacs-mat --dataset new_photos/

domainwise evaluate runs/pacs-erm runs/pacs-mat --dataset labels.csv --domain clinic_3

domainwise evaluate runs/pacs-mat --dataset office_home --ignore-unknown-classes --json

domainwise evaluate runs/pacs-mat --dataset new_photos/ --metrics macro_f1,ece,confusion

domainwise evaluate hf:owner/name --dataset new_photos/ --which last

domainwise evaluate torchvision:resnet50 timm:resnet50.a1_in1k --dataset imagenet_r --only-dataset-classes
"""


def evaluate(
    run: Annotated[
        list[str],
        typer.Argument(
            help="Run folders, folders with runs below them, hf:owner/name, or ImageNet classifiers as "
            "torchvision:NAME or timm:NAME."
        ),
    ],
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
    only_dataset_classes: Annotated[
        bool,
        typer.Option(
            "--only-dataset-classes",
            help="Let models predict only classes that the dataset has, as is usual for ImageNet-R and -A.",
        ),
    ] = False,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Skip images that could not be read.")] = False,
    dataset_option: Annotated[list[str] | None, typer.Option(help="Dataset option as name=value. Repeatable.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of synthetic data.")] = 0,
    data_dir: DataDir = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            help="Also measure macro_f1, balanced_accuracy, worst_class, ece or confusion. Repeatable, or separated by "
            "commas."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Weights of the ImageNet classifiers: a published name or a file (default: those that torchvision or "
            "timm recommends)."
        ),
    ] = None,
    algorithm: OwnAlgorithm = None,
    network: OwnNetwork = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure the accuracy of trained models on new labelled images, by domain and by class.

    Classes are matched by name, and images prepared as a model needs them. Errors are standard errors.
    """
    from domainwise.training.model_evaluation import evaluate_models

    options = parse_dataset_options(dataset_option or [], dataset)
    with DataProgress(make_console(quiet, stderr=True)) as progress:
        evaluations = evaluate_models(
            run,
            dataset,
            which=cast("Which", which),
            domains=domain or (),
            ignore_unknown_classes=ignore_unknown_classes,
            only_dataset_classes=only_dataset_classes,
            options={"skip_broken": True, **options} if skip_broken else options,
            seed=seed,
            data_dir=data_dir,
            algorithm=algorithm,
            network=network,
            weights=weights,
            device=device,
            metrics=metrics or (),
            on_progress=progress.report,
        )
    if as_json:
        print_json([each.as_dict() for each in evaluations])
    elif not quiet:
        _print_tables(evaluations)
        _print_confusions(evaluations)
    if not as_json and not quiet and _has_long_table(evaluations):
        print_line(f"note: accuracies of more than {MAX_ROWS} classes are not printed; add --json", stderr=True)
    for each in evaluations if not quiet else ():
        for note in _list_notes(each):
            print_line(f"note: {note}", stderr=True)


def _print_tables(evaluations: Sequence["ModelEvaluation"]) -> None:
    """Print accuracies by domain, with other metrics, and by class; the runs are named if there are several."""
    from domainwise.selection import METRICS

    names = [name for name in METRICS if name in evaluations[0].total_metrics]
    for kind in ("domain", "class"):
        if kind == "class" and _has_long_table(evaluations):
            continue
        rows = []
        for each in evaluations:
            counts: Mapping[str, Count] = each.by_domain if kind == "domain" else each.by_class
            total = {"all": each.total} if kind == "domain" and len(counts) > 1 else {}
            for name, count in {**counts, **total}.items():
                accuracy = f"{100 * count.accuracy:.1f} ± {100 * count.error:.1f}"
                metrics = {**each.metrics, "all": each.total_metrics}.get(name, {}) if kind == "domain" else {}
                values = [f"{100 * metrics[metric]:.1f}" for metric in names if metrics]
                rows.append((each.run, name, str(count.images), accuracy, *values)[len(evaluations) == 1 :])
        titles = [f"{METRICS[name].title}, %" for name in names if kind == "domain"]
        header = ("run", kind, "images", "accuracy, %", *titles)[len(evaluations) == 1 :]
        print_table(header, rows, numeric=2 + len(titles))


def _has_long_table(evaluations: Sequence["ModelEvaluation"]) -> bool:
    return max(len(each.by_class) for each in evaluations) > MAX_ROWS


def _print_confusions(evaluations: Sequence["ModelEvaluation"]) -> None:
    """Print one confusion matrix per run and domain: rows are true classes, columns predicted ones."""
    for each in evaluations:
        for domain, metrics in each.metrics.items():
            if "confusion" in metrics and len(each.classes) <= MAX_PRINTED:
                print_line(f"{each.run}, {domain}: rows are true classes, columns predicted ones")
                rows = zip(each.classes, metrics["confusion"], strict=True)
                header = ("true", *each.classes)
                print_table(header, [(name, *map(str, counts)) for name, counts in rows], numeric=len(each.classes))


def _list_notes(evaluation: "ModelEvaluation") -> list[str]:
    notes = []
    if "confusion" in evaluation.total_metrics and len(evaluation.classes) > MAX_PRINTED:
        notes.append(f"confusion matrices of {len(evaluation.classes)} classes are not printed; add --json")
    if evaluation.extra_classes:
        notes.append(
            f"{evaluation.run} may predict classes that {evaluation.dataset} lacks ({evaluation.extra_classes}), which "
            "counts as wrong; --only-dataset-classes excludes them"
        )
    if evaluation.trained_on:
        names = ", ".join(evaluation.trained_on)
        notes.append(f"{evaluation.run} was trained on {names} of {evaluation.dataset}: these images are not new to it")
    if evaluation.ignored:
        classes = ", ".join(f"{name} ({count})" for name, count in evaluation.ignored.items())
        notes.append(f"left out images of classes that {evaluation.run} does not have: {classes}")
    return notes
