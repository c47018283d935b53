"""One of two processes that share a batch: attacks its half and saves the perturbation it ends with.

python rank.py <rank> <meeting file> <output file>
"""

import sys

import torch
import torch.distributed as dist
from two_ranks import CASES, attacked, one_pass

if __name__ == "__main__":
    rank, meeting, output = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    half = slice(rank, None, 2)
    states = {f"{name} {use.__name__}": use(CASES[name](), half) for name in CASES for use in (attacked, one_pass)}
    torch.save(states, output)
    dist.destroy_process_group()
