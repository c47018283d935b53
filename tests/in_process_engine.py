"""An engine for tests: trains one run after the other in this process."""

from collections.abc import Sequence

from domainwise.errors import RunInterrupted
from domainwise.sweeps.engine import EngineCallbacks
from domainwise.training import RunConfig, train
from domainwise.training.registry import DatasetCache


def train_in_process(configs: Sequence[RunConfig], callbacks: EngineCallbacks) -> None:
    datasets = DatasetCache()
    for index, config in enumerate(configs):
        if callbacks.should_stop():
            raise RunInterrupted("stopped")
        callbacks.on_done(index, train(config, datasets=datasets))
