"""What a sweep draws for a method on a dataset, and by which rule.

A value depends on the seed of the draw, the trial's and the hyperparameter's own name, so that one more hyperparameter
changes no other. Draw 0 is the defaults. In the space `domainbed` names, ranges and so values are DomainBed's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from domainwise.hparams.distributions import Choice, Distribution, Power
from domainwise.hparams.fields import Hparams
from domainwise.seeds import seed_hash


@dataclass(frozen=True)
class Searched:
    """One value of a search: of `distribution`, drawn by `key`; `default` in draw 0, where that is not the method's."""

    distribution: Distribution
    key: str
    default: Any = None


@dataclass(frozen=True)
class Task:
    """Whom a search is for: a method on a dataset. `suited` are ranges that suit the data better than the method's."""

    algorithm: str
    hparams: type[Hparams]
    dataset: str
    suited: Mapping[str, Distribution]


# From a task to the values that are searched, by name.
Space = Callable[[Task], dict[str, Searched]]

# A run has these beside its method's hyperparameters.
RUN_SETTINGS: Mapping[str, Searched] = {
    "batch_size": Searched(Power(2, 3, 5.5, whole=True), "batch_size"),
    "dropout": Searched(Choice((0.0, 0.1, 0.5)), "resnet_dropout"),
}


def domainbed(task: Task) -> dict[str, Searched]:
    """The ranges that stand beside the methods' defaults, but for those that the dataset replaces."""
    fields = task.hparams.names().items()
    searched = {
        name: Searched(field.metadata["search"], field.metadata["key"] or name)
        for name, field in fields
        if "search" in field.metadata
    }
    searched = {**RUN_SETTINGS, **searched}
    return {name: Searched(task.suited.get(name, each.distribution), each.key) for name, each in searched.items()}


def drawn(searched: Mapping[str, Searched], hparams_seed: int, trial_seed: int) -> dict[str, Any]:
    """The values of one draw; what keeps its default is not among them."""
    if hparams_seed == 0:
        return {name: each.default for name, each in searched.items() if each.default is not None}
    seed = seed_hash(hparams_seed, trial_seed)
    return {
        name: each.distribution.draw(np.random.RandomState(seed_hash(seed, each.key)))
        for name, each in searched.items()
    }
