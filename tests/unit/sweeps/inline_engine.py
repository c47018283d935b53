"""An engine without processes, for tests."""

from collections.abc import Sequence

from domainwise.errors import RunInterrupted
from domainwise.sweeps.engine import EngineCallbacks, format_failure
from domainwise.training import RunConfig, train


class InlineEngine:
    """Trains in this process, one run after the other."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, configs: Sequence[RunConfig], callbacks: EngineCallbacks) -> None:
        for index, config in enumerate(configs):
            if callbacks.should_stop():
                raise RunInterrupted("stopped")
            self.names.append(config.folder().name)
            try:
                result = train(
                    config,
                    on_step=lambda step, loss, index=index: callbacks.on_progress(index, step),
                    should_stop=callbacks.should_stop,
                )
            except RunInterrupted:
                raise
            except Exception as error:
                callbacks.on_failed(index, format_failure(error))
            else:
                callbacks.on_done(index, result)
