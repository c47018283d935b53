"""One of two processes that share a batch: attacks its shard and saves the perturbation.

python attack_shard.py RANK RENDEZVOUS_FILE OUTPUT_FILE
"""

import sys

import torch
import torch.distributed as dist
from sharded_attacks import CASES, ascend, attack

if __name__ == "__main__":
    rank, rendezvous, output = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    shard = slice(rank, None, 2)
    states = {f"{name} {use.__name__}": use(CASES[name](), shard) for name in CASES for use in (attack, ascend)}
    torch.save(states, output)
    dist.destroy_process_group()
