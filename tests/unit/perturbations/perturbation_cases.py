"""Random perturbation settings and batches for hypothesis tests."""

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from perturbation_kinds import (
    KEPT,
    ONE_PASS,
    SHAPE,
    UNPROJECTED,
    WITHOUT_DRAWS,
    build,
    state_of,
)
from torch import Tensor, nn

repeatable = settings(derandomize=True, deadline=None, max_examples=10)

NORMS = st.sampled_from(["l2", "linf"])
ASCENTS = st.sampled_from(["normalized", "gradient", "sign"])
RADII = st.sampled_from([0.0, 1e-3, 0.1, 0.7, 5.0])
ENDLESS = 1e4
USES = [(kind, "attack") for kind in KEPT] + [(kind, "one pass") for kind in ONE_PASS]
FREE = [kind for kind in WITHOUT_DRAWS if kind not in UNPROJECTED]


@dataclass
class Case:
    """A batch of mixed domains, and settings of a perturbation for it."""

    domain: Tensor
    double: bool
    seed: int
    settings: dict[str, Any]
    x: Tensor = field(init=False)
    slopes: Tensor = field(init=False)

    def __post_init__(self) -> None:
        source = torch.Generator().manual_seed(self.seed)
        dtype = torch.float64 if self.double else torch.float32
        self.x = torch.rand(len(self.domain), *SHAPE, generator=source, dtype=dtype)
        self.slopes = torch.randn(self.x.shape, generator=source, dtype=dtype)

    def build(self, kind: str, **settings: Any) -> Any:
        return build(kind, seed=self.seed, double=self.double, **(self.settings | settings))

    @property
    def present(self) -> list[int]:
        return self.domain.unique().tolist()

    @property
    def closeness(self) -> dict[str, float]:
        return {"rtol": 0, "atol": 1e-9} if self.double else {"rtol": 1e-5, "atol": 2e-5}


@st.composite
def cases(draw: st.DrawFn, **fixed: Any) -> Case:
    num_domains = draw(st.integers(1, 4))
    chosen = {
        "num_domains": num_domains,
        "norm": draw(NORMS),
        "ascent": draw(ASCENTS),
        "epsilon": draw(st.sampled_from([1e-3, 0.1, 0.7, 5.0])),
        "step_size": draw(st.sampled_from([1e-3, 0.1, 2.0])),
        "bounds": draw(st.sampled_from([None, (0.0, 1.0)])),
        "count": draw(st.integers(1, 4)),
        "rank": draw(st.integers(1, 3)),
    }
    domain = draw(st.lists(st.integers(0, num_domains - 1), min_size=1, max_size=12))
    return Case(torch.tensor(domain), draw(st.booleans()), draw(st.integers(0, 999)), chosen | fixed)


def assert_same_state(first: nn.Module, second: nn.Module, **closeness: float) -> None:
    one, other = state_of(first), state_of(second)
    assert one.keys() == other.keys()
    if "directions" in one and any(closeness.values()):
        # Singular vectors have no sign of their own.
        one["directions"], other["directions"] = (
            state["directions"].flatten(2).mT @ state["directions"].flatten(2) for state in (one, other)
        )
    for name in one:
        torch.testing.assert_close(one[name], other[name], **closeness)
