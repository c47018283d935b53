"""Training batches from the cache of decoded images, compared with torchvision's ImageFolder and DataLoader.

Both apply the same augmentation to the same images: PACS without sketch. The DataLoader has two workers. Measured at 96
and 224 pixels: images per second once everything is warm, and the time to build the cache next to one epoch of the
DataLoader. Then, at 96 pixels, the share of one ERM step of MobileNetV2 that is spent on data.

    python benchmarks/data_pipeline.py --data-dir DATA

The two alternate for several rounds, and the best round counts.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from domainwise.algorithms import ALGORITHMS
from domainwise.data import Dataset
from domainwise.data.batches import draw_batches
from domainwise.data.cache import clear_cache
from domainwise.data.image_datasets import PUBLISHED, build_image_dataset
from domainwise.data.paths import CACHE_VARIABLE
from domainwise.networks import build_backbone
from domainwise.reports.formats import format_markdown_table
from domainwise.training.device import keep_freed_memory

DOMAINS = ("art_painting", "cartoon", "photo")
BATCH_SIZE = 32
GENERATOR = torch.Generator().manual_seed(0)
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="Folder that contains PACS.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[96, 224])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as cache:
        os.environ[CACHE_VARIABLE] = cache
        rows = [row for size in options.sizes for row in compare(size, options)]
        print(format_markdown_table(("", "domainwise", "torchvision", "ratio"), rows, numeric=3))
        data, update = measure_step(options)
    print(f"\none ERM step of MobileNetV2 at 96 px, 3 x 16 images, {torch.get_num_threads()} threads:")
    print(f"data {data * 1e3:.1f} ms, update {update * 1e3:.1f} ms, data {data / (data + update):.1%} of both")


def compare(size: int, options: argparse.Namespace) -> list[tuple[str, str, str, str]]:
    loader = build_torchvision_loader(options.data_dir, size)
    run_epoch(loader)  # starts the workers and fills the file cache
    count = len(loader.dataset)  # type: ignore[arg-type]
    steps = round(count / (len(DOMAINS) * BATCH_SIZE))
    ours, theirs, builds = [], [], []
    for _ in range(options.rounds):
        clear_cache()
        builds.append(measure_seconds(lambda: load_dataset(options.data_dir, size)))
        theirs.append(measure_seconds(lambda: run_epoch(loader)))
        dataset = load_dataset(options.data_dir, size)
        draw_batches_repeatedly(dataset, steps)  # maps the cache into memory
        ours.append(measure_seconds(lambda: draw_batches_repeatedly(dataset, steps)))  # noqa: B023
    speed, their_speed = steps * len(DOMAINS) * BATCH_SIZE / min(ours), count / min(theirs)
    build, their_epoch = min(builds), min(theirs)
    return [
        (f"images/s at {size} px", f"{speed:.0f}", f"{their_speed:.0f}", f"{speed / their_speed:.2f}"),
        (
            f"s to decode {count} images into the cache at {size} px, next to one epoch",
            f"{build:.1f}",
            f"{their_epoch:.1f}",
            f"{build / their_epoch:.2f}",
        ),
    ]


def build_torchvision_loader(data_dir: Path, size: int) -> DataLoader[tuple[torch.Tensor, int]]:
    augmentation = transforms.Compose(
        [
            transforms.RandomResizedCrop(size, scale=(0.7, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.3, 0.3, 0.3, 0.3),
            transforms.RandomGrayscale(),
            transforms.ToTensor(),
        ]
    )
    folders = ConcatDataset([ImageFolder(str(data_dir / "PACS" / name), augmentation) for name in DOMAINS])
    return DataLoader(folders, len(DOMAINS) * BATCH_SIZE, shuffle=True, num_workers=2, persistent_workers=True)


def run_epoch(loader: DataLoader[tuple[torch.Tensor, int]]) -> None:
    for _ in loader:
        pass


def load_dataset(data_dir: Path, size: int) -> Dataset:
    """Load the three domains through the cache."""
    listing = PUBLISHED["pacs"].load_listing(data_dir)
    listing = replace(listing, domains=tuple(each for each in listing.domains if each.name in DOMAINS))
    return build_image_dataset(listing, image_size=size, skip_broken=False)


def draw_batches_repeatedly(dataset: Dataset, steps: int) -> None:
    for _ in range(steps):
        draw(dataset, BATCH_SIZE)


def draw(dataset: Dataset, batch_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    domains = [(domain, torch.arange(len(domain))) for domain in dataset.domains]
    return draw_batches(domains, batch_size, GENERATOR, CPU, augmentation=GENERATOR)


def measure_step(options: argparse.Namespace) -> tuple[float, float]:
    """Return the median seconds per training step spent on data and on the update."""
    dataset = load_dataset(options.data_dir, 96)
    network = build_backbone("mobilenet_v2", (3, 96, 96), 7, batch_norm="frozen").to(memory_format=torch.channels_last)
    algorithm = ALGORITHMS["erm"](network, num_domains=len(DOMAINS)).train()
    algorithm.update(draw(dataset, 16))
    data, update = [], []
    for _ in range(10 * options.rounds):
        started = time.perf_counter()
        batches = draw(dataset, 16)
        data.append(time.perf_counter() - started)
        update.append(measure_seconds(lambda: algorithm.update(batches)))  # noqa: B023
    return float(torch.tensor(data).median()), float(torch.tensor(update).median())


def measure_seconds(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
