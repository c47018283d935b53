"""`domainwise train`: train one run, or resume it."""

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TimeRemainingColumn

from domainwise.cli.console import (
    DataProgress,
    PlainConsole,
    interruptible,
    make_console,
    print_table,
    text_column,
)
from domainwise.cli.options import Quiet, add_run_options, list_run_settings
from domainwise.storage.sweep_folder import check_new_run
from domainwise.training.config import OPTION_SETTINGS, RunConfig

if TYPE_CHECKING:
    from domainwise.storage.run_folder import Record

EXAMPLES = """
Examples:

domainwise train --dataset silhouettes --algorithm mat

domainwise train --algorithm ldat -H epsilon=1 -H rank=5 --trial-seed 3 --output runs/ldat-1

domainwise train --algorithm mat -H variant=released --dataset-option image_size=48

domainwise train --dataset pacs --test-domain sketch --backbone resnet18 --algorithm mat

domainwise train --dataset path/to/images --test-domain night --image-size 96 --weights resnet18.pth

domainwise train --algorithm my_package.my_module:MyMethod

domainwise train --dataset pacs --test-domain sketch --backbone timm:vit_small_patch16_dinov3 --lora 8

torchrun --nproc-per-node 4 -m domainwise train --dataset pacs --test-domain sketch --batch-size 64
"""


@add_run_options(OPTION_SETTINGS)
def train(
    settings: dict[str, Any],
    quiet: Quiet = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the settings as the table in the docs, and exit.")
    ] = False,
) -> None:
    """Train one classifier into a run folder. Rerun the same command to resume."""
    if markdown:
        print_table(("option", "default", "meaning"), list_run_settings(), is_markdown=True)
        return
    pairs = settings.pop("hparams")
    config = RunConfig.of(**settings)
    config = dataclasses.replace(config, hparams=config.algorithm_class().Hparams.parse(pairs))
    check_new_run(config.folder())
    run_training(config, quiet)


def run_training(config: RunConfig, quiet: bool, **placement: Any) -> None:
    """Train a run with a progress bar.

    Args:
        placement: settings for where and how it computes.
    """
    from domainwise import training
    from domainwise.training.device import keep_freed_memory
    from domainwise.training.distributed import is_distributed, watch_interrupt

    config = dataclasses.replace(config, **placement)
    keep_freed_memory()
    console = make_console(quiet)
    with watch_interrupt() if is_distributed() else interruptible() as is_interrupted, _TrainProgress(console) as bar:

        def on_data(task: str, done: int, total: int) -> None:
            if is_interrupted():
                raise KeyboardInterrupt
            bar.data.report(task, done, total)

        result = training.train(
            config,
            on_data=on_data,
            on_network=bar.on_network,
            on_start=bar.on_start,
            on_step=bar.on_step,
            on_record=bar.on_record,
            should_stop=is_interrupted,
        )
    if not bar.records:
        console.print_line(_format_record(result.last))
    console.print_line(("done", "bold"), f": {result.folder}")


class _TrainProgress:
    """A progress bar with step, loss, images per second and time left, and one line per record above it."""

    def __init__(self, console: PlainConsole) -> None:
        self.console = console
        self.progress = Progress(
            text_column("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            text_column("loss {task.fields[loss]:.3f}  {task.fields[speed]:.0f} images/s"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        self.data = DataProgress(console)
        self.records = 0

    def __enter__(self) -> "_TrainProgress":
        return self

    def __exit__(self, *_: Any) -> None:
        self.data.stop()
        if self.progress.tasks:
            self.progress.stop()

    def on_network(self, parameters: int, trained: int) -> None:
        if trained < parameters:
            share = f"{100 * trained / parameters:.3g}%"
            self.console.print_line(f"training {trained:,} of {parameters:,} parameters ({share})")

    def on_start(self, config: RunConfig, step: int) -> None:
        assert config.batch_size is not None
        self.data.stop()
        self.progress.start()
        self.images_per_step = config.batch_size * len(config.train_domains)
        self.task = self.progress.add_task("", total=config.steps, completed=step, loss=float("nan"), speed=0.0)
        self.console.print_line((config.algorithm_name, "bold"), f" into {config.folder()}")
        self.last_time, self.seconds_per_step = time.perf_counter(), 0.0

    def on_step(self, step: int, loss: float) -> None:
        now = time.perf_counter()
        seconds = now - self.last_time
        self.seconds_per_step = 0.9 * self.seconds_per_step + 0.1 * seconds if self.seconds_per_step else seconds
        self.last_time = now
        speed = self.images_per_step / max(self.seconds_per_step, 1e-9)
        self.progress.update(self.task, completed=step, loss=loss, speed=speed)

    def on_record(self, record: "Record") -> None:
        self.records += 1
        self.console.print_line(_format_record(record))


def _format_record(record: "Record") -> str:
    accuracy = record["accuracy"]
    holdout = [accuracy[name]["holdout"] for name in record["train_domains"] if "holdout" in accuracy[name]]
    parts = [f"step {record['step']:>5}", f"loss {record['loss']:.4f}"]
    if holdout:
        parts.append(f"holdout {sum(holdout) / len(holdout):.3f}")
    tested = [*record["validation_domains"], *record["test_domains"]]
    parts += [f"{name} {accuracy[name]['main']:.3f}" for name in tested]
    return "  ".join(parts)
