"""One of two processes that share a batch: attacks its shard and saves the perturbation.

python attack_shard.py RANK RENDEZVOUS_FILE OUTPUT_FILE
"""

import sys
from functools import partial

import torch
import torch.distributed as dist
from sharded_attacks import (
    CASES,
    EVEN,
    ONE_PASS,
    SHARES,
    WRAPPERS,
    ascend,
    attack,
    attack_from_own_starts,
    train_features,
    train_wrapped,
)
from torch.nn.parallel import DistributedDataParallel

from domainwise.perturbations.distributed import gather_over_ranks

if __name__ == "__main__":
    rank, rendezvous, output = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    states = {}
    for share, parts in SHARES.items():
        states |= {f"{name} attack {share}": attack(CASES[name](), parts[rank]) for name in CASES}
        states |= {f"{name} ascend {share}": ascend(CASES[name](), parts[rank]) for name in ONE_PASS}
        states |= {f"{name} by share {share}": ascend(CASES[name](), parts[rank], by_share=True) for name in ONE_PASS}
    for name, settings in WRAPPERS.items():
        wrap = partial(DistributedDataParallel, **settings)
        for part in ("network", "wrapper"):
            states[f"{name} {part}"] = train_wrapped(wrap, EVEN[rank], is_called_inside=part == "network")
    states["features"] = train_features(DistributedDataParallel, EVEN[rank])
    for one_pass in (False, True):
        states[f"own starts {one_pass}"] = attack_from_own_starts(rank, EVEN[rank], one_pass=one_pass)
    for counts in ((3, 3), (1, 4), (2, 0), (0, 0)):
        rows = torch.arange(2 * counts[rank]).reshape(-1, 2) + 100 * rank
        states[f"rows {counts}"] = {"float": gather_over_ranks(rows.float()), "int": gather_over_ranks(rows)}
    torch.save(states, output)
    dist.destroy_process_group()
