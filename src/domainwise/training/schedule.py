"""Learning rates over a run: a warm-up, then constant, along a cosine, falling when the holdout loss no longer does, or
repeating an earlier run's."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from domainwise.storage.run_folder import Record

# The reduction at which training ends (ERM++).
MAX_REDUCTIONS = 3


def planned_factor(step: int, steps: int, schedule: str | None, warmup: int) -> float | None:
    """Return what the learning rates of an update are multiplied by, or None if that is not known in advance.

    With w the warm-up and T the number of steps: (step + 1) / w before step w. From then on, `cosine` is
    (1 + cos(pi (step - w) / (T - w))) / 2, which would reach 0 at step T, the first that is not trained.

    Args:
        step: The update, counted from 0.
        steps: Number of updates of the whole run.
        schedule: As in `RunConfig.lr_schedule`.
        warmup: Number of updates in which the rate rises linearly.
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "cosine":
        return (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2
    return None


class PlateauSchedule:
    """Divides the learning rate by 10 after two records in a row without a lower holdout loss; ends at the third time.

    `factor` multiplies the method's own learning rates; 0 means that training has ended.
    """

    def __init__(self) -> None:
        # torch's scheduler moves the learning rate of an optimizer; this one has no other purpose.
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        self.scheduler = ReduceLROnPlateau(optimizer, "min", patience=1)
        self.factor = 1.0

    def step(self, loss: float) -> None:
        """Take in the holdout loss of a record."""
        if self.factor == 0:
            return
        self.scheduler.step(loss)
        self.factor = float(self.scheduler.get_last_lr()[0])
        if self.factor < 10 ** (0.5 - MAX_REDUCTIONS):
            self.factor = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self.factor, "scheduler": self.scheduler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.factor = state["factor"]
        self.scheduler.load_state_dict(state["scheduler"])
        self.scheduler.optimizer.param_groups[0]["lr"] = state["scheduler"]["_last_lr"][0]


def read_factors(records: Sequence[Record]) -> dict[int, float]:
    """Return the factor that each record of a run ended with, by step; runs with a constant rate have none."""
    return {record["step"]: record["lr_factor"] for record in records if "lr_factor" in record}
