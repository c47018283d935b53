"""Two processes that each see half of a batch keep the perturbation that one process with all of it has."""

import subprocess
import sys
from pathlib import Path

import torch
from two_ranks import CASES, attacked, one_pass

RANK = Path(__file__).with_name("rank.py")


def test_two_ranks_move_as_one(tmp_path: Path) -> None:
    outputs = [tmp_path / f"rank{rank}.pt" for rank in range(2)]
    processes = [
        subprocess.Popen([sys.executable, str(RANK), str(rank), str(tmp_path / "meeting"), str(output)])
        for rank, output in enumerate(outputs)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    first, second = (torch.load(output, weights_only=True) for output in outputs)
    for name, build in CASES.items():
        for use in (attacked, one_pass):
            before = dict(build().named_parameters())
            alone = use(build(), slice(None))
            for key, tensor in alone.items():
                case = f"{name} {use.__name__}"
                assert torch.equal(first[case][key], second[case][key])
                torch.testing.assert_close(first[case][key], tensor, atol=1e-6, rtol=1e-5)
                assert not torch.equal(tensor, before[key])
