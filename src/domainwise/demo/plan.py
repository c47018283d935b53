"""Which runs the demo makes: every method at every radius, for every seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domainwise.errors import DomainwiseError, unknown
from domainwise.runs import RunConfig

METHODS = ("erm", "at", "uat", "mat", "ldat")
RADII = (0.2, 0.5, 2.0)
STEP_SIZE = 0.5
STEPS = 700


@dataclass(frozen=True)
class Row:
    """One row of the table: a method at a radius, which ERM does not have."""

    method: str
    radius: float | None


@dataclass(frozen=True)
class Plan:
    """What to compare. The seed draws data, patterns and network alike, so seeds are whole repetitions."""

    methods: Sequence[str] = METHODS
    radii: Sequence[float] = RADII
    seed: int = 0
    seeds: int = 1
    variant: str = "standard"
    schedule: str = "two_pass"
    steps: int = STEPS
    output: Path = Path("runs/demo")

    def __post_init__(self) -> None:
        for method in self.methods:
            if method not in METHODS:
                raise unknown("method of the demo", method, METHODS)
        if self.seeds < 1 or not self.methods or not self.radii:
            raise DomainwiseError("the demo needs at least one method, one radius and one seed")

    def title(self) -> str:
        seeds = f"seed {self.seed}" if self.seeds == 1 else f"mean of {self.seeds} seeds from {self.seed}"
        return f"{self.variant}, {self.schedule}, {seeds}"

    def rows(self) -> list[Row]:
        radii: dict[str, Sequence[float | None]] = {"erm": (None,)}
        return [Row(method, radius) for method in self.methods for radius in radii.get(method, self.radii)]

    def configs(self) -> Iterator[tuple[Row, RunConfig]]:
        """Seed by seed, the slowest methods first so that the last worker does not finish alone."""
        for seed in range(self.seed, self.seed + self.seeds):
            for row in sorted(self.rows(), key=lambda row: row.method == "erm"):
                yield row, self._config(row, seed)

    def _config(self, row: Row, seed: int) -> RunConfig:
        # ERM is the same run whatever the others do, so it is made once.
        which = "" if row.radius is None else f"-{row.radius:g}-{self.variant}-{self.schedule}"
        name = f"{row.method}{which}-{self.steps}-seed{seed}"
        return RunConfig(
            dataset="silhouettes",
            algorithm=row.method,
            hparams=self._hparams(row),
            trial_seed=seed,
            steps=self.steps,
            record_every=max(1, self.steps // 4),
            device="cpu",
            output=self.output / name,
            keep_perturbations=row.radius is not None and row.method != "at",
        )

    def _hparams(self, row: Row) -> dict[str, Any]:
        if row.radius is None:
            return {}
        hparams: dict[str, Any] = {"epsilon": row.radius, "variant": self.variant, "schedule": self.schedule}
        if row.method == "at":
            # One step from the image to the sphere, the textbook's attack; the released variant has its own start.
            hparams |= {"step_size": row.radius}
            hparams |= {} if self.variant == "released" else {"start": "zero"}
        else:
            hparams |= {"step_size": STEP_SIZE}
        if row.method == "ldat":
            hparams |= {"step_scale": 1.0}
        return hparams
