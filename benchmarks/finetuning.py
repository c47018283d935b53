"""What each way to fine-tune a backbone costs: time and peak memory of one update, side by side.

Every row is measured in a process of its own, in turn with all others, `--repeats` times; the table has medians.

    python benchmarks/finetuning.py
"""

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

ROWS: dict[str, dict[str, Any]] = {
    "everything": {},
    "--layer-decay 0.75": {"layer_decay": 0.75},
    "--freeze all": {"freeze": ("all",)},
    # Everything before the frozen blocks, too: otherwise the backward pass still goes through them.
    "--freeze patch_embed --freeze cls_token --freeze pos_embed --freeze 'blocks.[0-5]'": {
        "freeze": ("patch_embed", "cls_token", "pos_embed", "blocks.[0-5]")
    },
    "--lora 8": {"lora": 8},
    "--gradient-checkpointing": {"gradient_checkpointing": True},
    "--lora 8 --gradient-checkpointing": {"lora": 8, "gradient_checkpointing": True},
}


def measure(row: str, backbone: str, size: int, batch_size: int, updates: int) -> dict[str, float]:
    """Return seconds per update, the growth of the peak memory since the network was built, and what is trained."""
    import resource
    import time

    import torch

    from domainwise.algorithms import ERM
    from domainwise.networks import build_backbone
    from domainwise.networks.finetuning import count_parameters, prepare_network_

    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = build_backbone(backbone, (3, size, size), 7)
    prepare_network_(network, **ROWS[row])
    algorithm = ERM(network, num_domains=3, lr=1e-5).train()
    x, y = torch.rand(batch_size, 3, size, size), torch.arange(batch_size) % 7
    batches = [(x, y)] * 3
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    algorithm.update(batches)
    seconds = []
    for _ in range(updates):
        start = time.perf_counter()
        algorithm.update(batches)
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # The fastest of several updates is the one that other processes disturbed least.
    return {"seconds": min(seconds), "megabytes": (peak - before) / 1024, "trained": count_parameters(network)[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="timm:vit_tiny_patch16_224")
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=16, help="Per domain; there are three.")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        sizes = (given.image_size, given.batch_size, given.updates)
        print(json.dumps(measure(given.row, given.backbone, *sizes)))
        return
    results: dict[str, list[dict[str, float]]] = {row: [] for row in ROWS}
    for repeat in range(given.repeats):
        for row, measured in results.items():
            print(f"repeat {repeat + 1}/{given.repeats}: {row}", file=sys.stderr)
            command = [sys.executable, *sys.argv, f"--row={row}"]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            measured.append(json.loads(output.splitlines()[-1]))
    medians = {
        row: {key: statistics.median(each[key] for each in measured) for key in measured[0]}
        for row, measured in results.items()
    }
    base = medians["everything"]
    print("| options | trained parameters | seconds per update | time | memory of an update, MB | memory |")
    print("|---|---:|---:|---:|---:|---:|")
    for row, median in medians.items():
        time_ratio, memory_ratio = (median[key] / base[key] for key in ("seconds", "megabytes"))
        label = row if row == "everything" else f"`{row}`"
        print(
            f"| {label} | {median['trained']:,.0f} | {median['seconds']:.3f} | {time_ratio:.2f} | "
            f"{median['megabytes']:.0f} | {memory_ratio:.2f} |"
        )


if __name__ == "__main__":
    main()
