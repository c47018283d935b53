"""`domainwise refit`: train a run again on all images of its training domains, holdouts included."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli.options import DataDir, Device, OwnAlgorithm, OwnNetwork, Quiet
from domainwise.cli.train import run_training

EXAMPLES = """
Examples:

domainwise train --dataset pacs --test-domain sketch --algorithm ermplusplus --output runs/first

domainwise refit runs/first --output runs/second
"""


def refit(
    run: Annotated[Path, typer.Argument(help="Finished run.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Run folder (default: RUN-refit).")] = None,
    dataset: Annotated[str | None, typer.Option(help="The run's dataset, if it is a folder or file.")] = None,
    weights: Annotated[str | None, typer.Option(help="The run's weights, if they are a file.")] = None,
    algorithm: OwnAlgorithm = None,
    network: OwnNetwork = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train again with the settings and learning rates of a run, on all images of its training domains.

    This is the second stage of ERM++. Select hyperparameters before it: without holdouts, nothing is left to select by.
    """
    from domainwise.storage.sweep_folder import place_derived_run
    from domainwise.training.loading import make_refit_config

    config = make_refit_config(
        run,
        output or place_derived_run(run, "refit", "refits"),
        dataset=dataset,
        weights=weights,
        algorithm=algorithm,
        network=network,
    )
    run_training(config, quiet, data_dir=data_dir, device=device)
