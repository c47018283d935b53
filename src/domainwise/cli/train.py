"""`domainwise train`: one run, or the rest of one that was stopped."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from domainwise import training
from domainwise.cli.console import DataProgress, interruptible
from domainwise.cli.options import literals, pairs
from domainwise.storage.run_folder import Record
from domainwise.training import RunConfig
from domainwise.training.device import keep_freed_memory
from domainwise.training.distributed import is_one_of_several, stop_asked

EXAMPLES = """
Examples:

domainwise train --dataset silhouettes --algorithm mat

domainwise train --algorithm ldat -H epsilon=1 -H rank=5 --trial-seed 3 --output runs/ldat-1

domainwise train --algorithm mat -H variant=released --dataset-option image_size=48

domainwise train --dataset pacs --test-domain sketch --backbone resnet18 --algorithm mat

domainwise train --dataset path/to/images --test-domain night --image-size 96 --weights resnet18.pth

domainwise train --algorithm my_package.my_module:MyMethod

torchrun --nproc-per-node 4 -m domainwise train --dataset pacs --test-domain sketch --batch-size 64
"""


def train(
    dataset: Annotated[
        str,
        typer.Option(
            help="From `domainwise data list`; a folder root/domain/class/image; a CSV file with columns path, label, "
            "domain; or package.module:function."
        ),
    ] = "silhouettes",
    algorithm: Annotated[str, typer.Option(help="From `domainwise algorithms`, or package.module:Class.")] = "mat",
    network: Annotated[
        str | None,
        typer.Option(
            "--network",
            "--backbone",
            help="A torchvision model (resnet18, mobilenet_v2, ...), timm:NAME, small_cnn, mnist_cnn, mlp, or "
            "package.module:function.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="What a backbone starts from: a file (state dict or safetensors), a name that torchvision publishes "
            "(IMAGENET1K_V1), `pretrained` (timm), or `none`."
        ),
    ] = None,
    batch_norm: Annotated[
        str | None,
        typer.Option(help="`frozen`: statistics of a backbone stay as they came (default with weights); `live`."),
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    augment: Annotated[
        bool | None, typer.Option("--augment/--no-augment", help="Train on random views (default for photographs).")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the datasets lie; otherwise $DOMAINWISE_DATA, or the user's cache.")
    ] = None,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave out images that cannot be read, and say how many.")
    ] = False,
    hparam: Annotated[
        list[str] | None, typer.Option("--hparam", "-H", help="A hyperparameter, name=value. Repeatable.")
    ] = None,
    dataset_option: Annotated[
        list[str] | None, typer.Option(help="An option of the dataset, name=value. Repeatable.")
    ] = None,
    train_domain: Annotated[list[str] | None, typer.Option(help="Train on this domain only. Repeatable.")] = None,
    test_domain: Annotated[
        list[str] | None, typer.Option(help="Leave this domain out, test on it. Repeatable.")
    ] = None,
    trial_seed: Annotated[int, typer.Option(help="Draws splits, and the embedded data.")] = 0,
    hparams_seed: Annotated[int, typer.Option(help="Which draw of a search the hyperparameters are; recorded.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Updates; by default what suits the data, as below.")] = None,
    record_every: Annotated[int | None, typer.Option(help="Steps between records.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a domain and step.")] = None,
    dropout: Annotated[float, typer.Option(help="Before the classifier.")] = 0.0,
    evaluate: Annotated[str, typer.Option(help="`selection`: what model selection needs; `all`.")] = "selection",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    precision: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    threads: Annotated[int | None, typer.Option(help="Threads of the CPU.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder; by default one under runs.")
    ] = None,
    logger: Annotated[
        str | None, typer.Option(help="Send records to tensorboard, wandb or mlflow too; off by default.")
    ] = None,
    keep_perturbations: Annotated[
        bool, typer.Option("--keep-perturbations", help="Keep the perturbation at every record, to look at later.")
    ] = False,
) -> None:
    """Train one classifier into a run folder. Stopped or killed, the same command goes on where it was."""
    config = RunConfig.of(
        dataset=dataset,
        algorithm=algorithm,
        network=network,
        weights=weights,
        batch_norm=batch_norm,
        augment=augment,
        data_dir=data_dir,
        dataset_options={
            **({} if image_size is None else {"image_size": image_size}),
            **({"skip_broken": True} if skip_broken else {}),
            **literals(dataset_option or [], "--dataset-option"),
        },
        train_domains=tuple(train_domain or ()),
        test_domains=tuple(test_domain or ()),
        trial_seed=trial_seed,
        hparams_seed=hparams_seed,
        steps=steps,
        record_every=record_every,
        batch_size=batch_size,
        dropout=dropout,
        evaluate=evaluate,
        device=device,
        precision=precision,
        threads=threads,
        output=output,
        logger=logger,
        keep_perturbations=keep_perturbations,
    )
    words = pairs(hparam or [], "--hparam")
    config = replace(config, hparams=config.algorithm_class().Hparams.parse(words))
    keep_freed_memory()
    console = Console()
    with stop_asked() if is_one_of_several() else interruptible() as is_interrupted, _Line(console) as line:

        def on_data(what: str, done: int, total: int) -> None:
            if is_interrupted():
                raise KeyboardInterrupt
            line.data.report(what, done, total)

        result = training.train(
            config,
            on_data=on_data,
            on_start=line.on_start,
            on_step=line.on_step,
            on_record=line.on_record,
            should_stop=is_interrupted,
        )
    if not line.records:
        for record in result.records[-1:]:
            console.print(_record_line(record), highlight=False, soft_wrap=True)
    console.print(f"[bold]done[/bold]: {result.folder}", highlight=False, soft_wrap=True)


class _Line:
    """The progress line (step, loss, images a second, time left), and a line a record above it."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.3f}  {task.fields[speed]:.0f} images/s"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        self.data = DataProgress(console)
        self.records = 0

    def __enter__(self) -> "_Line":
        return self

    def __exit__(self, *_: Any) -> None:
        self.data.stop()
        if self.progress.tasks:
            self.progress.stop()

    def on_start(self, config: RunConfig, step: int) -> None:
        assert config.batch_size is not None
        self.data.stop()
        self.progress.start()
        self.images = config.batch_size * len(config.train_domains)
        self.task = self.progress.add_task("", total=config.steps, completed=step, loss=float("nan"), speed=0.0)
        self.progress.console.print(f"[bold]{config.algorithm_name}[/bold] into {config.folder()}", highlight=False)
        self.since, self.seconds = time.perf_counter(), 0.0

    def on_step(self, step: int, loss: float) -> None:
        now = time.perf_counter()
        self.seconds = 0.9 * self.seconds + 0.1 * (now - self.since) if self.seconds else now - self.since
        self.since = now
        self.progress.update(self.task, completed=step, loss=loss, speed=self.images / max(self.seconds, 1e-9))

    def on_record(self, record: Record) -> None:
        self.records += 1
        self.progress.console.print(_record_line(record), highlight=False, soft_wrap=True)


def _record_line(record: Record) -> str:
    accuracy = record["accuracy"]
    holdout = [accuracy[name]["holdout"] for name in record["train_domains"] if "holdout" in accuracy[name]]
    parts = [f"step {record['step']:>5}", f"loss {record['loss']:.4f}"]
    if holdout:
        parts.append(f"holdout {sum(holdout) / len(holdout):.3f}")
    tested = [*record["validation_domains"], *record["test_domains"]]
    parts += [f"{name} {accuracy[name]['main']:.3f}" for name in tested]
    return "  ".join(parts)
