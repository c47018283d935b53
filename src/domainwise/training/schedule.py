"""Learning rates over a run: constant, falling when the holdout loss no longer does, or repeating an earlier run's."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from domainwise.storage.run_folder import Record

# The reduction at which training ends (ERM++).
MAX_REDUCTIONS = 3


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
