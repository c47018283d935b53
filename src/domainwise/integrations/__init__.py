"""MAT, LDAT and the other perturbations in training loops of other libraries. Each module needs its own extra."""

from typing import Any

from domainwise.perturbations import Perturbation


def check_perturbation(value: Any) -> None:
    if not isinstance(value, Perturbation):
        raise TypeError(f"perturbation must be a Perturbation, such as MultiplePerturbation(...), got {value!r}")
