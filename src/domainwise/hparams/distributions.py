"""What a search draws values from, by the legacy generator of numpy that DomainBed uses."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class Distribution(Protocol):
    """What a search draws a value from."""

    def draw(self, random: np.random.RandomState) -> Any: ...


@dataclass(frozen=True)
class Uniform:
    """U(low, high), cut down to a whole number where `whole`."""

    low: float
    high: float
    whole: bool = False

    def __str__(self) -> str:
        return _worded(f"U({self.low:g}, {self.high:g})", self.whole)

    def draw(self, random: np.random.RandomState) -> float:
        value = float(random.uniform(self.low, self.high))
        return int(value) if self.whole else value


@dataclass(frozen=True)
class Power:
    """base ** U(low, high), cut down to a whole number where `whole`."""

    base: float
    low: float
    high: float
    whole: bool = False

    def __str__(self) -> str:
        return _worded(f"{self.base:g}^U({self.low:g}, {self.high:g})", self.whole)

    def draw(self, random: np.random.RandomState) -> float:
        value = float(self.base ** random.uniform(self.low, self.high))
        return int(value) if self.whole else value


@dataclass(frozen=True)
class Choice:
    """One of the options, all alike."""

    options: tuple[Any, ...]

    def __str__(self) -> str:
        return " or ".join(map(str, self.options))

    def draw(self, random: np.random.RandomState) -> Any:
        return self.options[random.choice(len(self.options))]


def _worded(distribution: str, whole: bool) -> str:
    return f"int {distribution}" if whole else distribution
