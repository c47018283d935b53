"""What the entries of a checkpoint must be, before any of them is used."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from domainwise.storage.run_folder import Record

_KEYS = ("step", "measured", "records", "best", "algorithm", "random")


def check_entries(checkpoint: Mapping[str, Any], steps: int) -> None:
    """Raise a ValueError or KeyError that names the entry unless those that every run has make sense."""
    for key in _KEYS:
        if key not in checkpoint:
            raise KeyError(key)
    step, records, best, measured = (checkpoint[key] for key in ("step", "records", "best", "measured"))
    if type(step) is not int or not 0 <= step <= steps:
        raise ValueError(f"step must be an integer from 0 to {steps}, got {step!r}")
    if type(records) is not int or records < 0:
        raise ValueError(f"records must be an integer of at least 0, got {records!r}")
    if not isinstance(best, int | float) or math.isnan(best):
        raise ValueError(f"best must be a number, got {best!r}")
    is_list = isinstance(measured, list) and all(isinstance(each, dict) for each in measured)
    if not is_list or not all(isinstance(each.get("loss"), float) for each in measured):
        raise ValueError(f"measured must be a list of updates with their loss, got {measured!r}")


def check_progress(checkpoint: dict[str, Any], records: Sequence[Record]) -> None:
    """Raise a ValueError unless the step is where the records end, plus the updates measured since."""
    step, more = checkpoint["step"], len(checkpoint["measured"])
    recorded = records[-1]["step"] + 1 if records else 0
    if step != recorded + more:
        raise ValueError(
            f"step is {step}, but it has {len(records)} record{'s' * (len(records) != 1)} up to step {recorded} and "
            f"{more} more update{'s' * (more != 1)}"
        )
