"""Two processes that each have half of a batch keep the same perturbation as one process with all of it."""

from pathlib import Path

import torch
from sharded_attacks import CASES, ascend, attack
from warm_python import WarmPython

SCRIPT = Path(__file__).with_name("attack_shard.py")


def test_two_processes_move_the_perturbation_as_one(tmp_path: Path, warm_python: WarmPython) -> None:
    outputs = [tmp_path / f"rank{rank}.pt" for rank in range(2)]
    processes = [
        warm_python.start(SCRIPT, rank, tmp_path / "rendezvous", output) for rank, output in enumerate(outputs)
    ]
    for process in processes:
        assert process.wait() == 0, process.err
    first, second = (torch.load(output, weights_only=True) for output in outputs)
    for name, build in CASES.items():
        for use in (attack, ascend):
            case = f"{name} {use.__name__}"
            start = dict(build().named_parameters())
            for key, tensor in use(build(), slice(None)).items():
                assert torch.equal(first[case][key], second[case][key])
                torch.testing.assert_close(first[case][key], tensor, atol=1e-6, rtol=1e-5)
                assert not torch.equal(tensor, start[key])
