"""SWAD: the mean of all weights within a valley of the holdout loss (Cha et al. 2021, Algorithm 1)."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from domainwise.averaging.running import MeasureLoss, WeightAverage

Weights = dict[str, Tensor]


class LossValley:
    """Decides which segments of a run SWAD averages, from the holdout loss at the end of each.

    With E_i the loss of segment i: the valley starts at the first i with E_i = min(E_i .. E_{i + patience - 1}); the
    threshold is (1 + tolerance) times the mean of these losses; the valley ends before the first i after its start with
    min(E_i .. E_{i + end_patience - 1}) above the threshold.

    Args:
        patience, end_patience, tolerance: N_s, N_e and r - 1 in the paper.
        variant: `paper`, or `released`: the bookkeeping of the authors' code. It also averages segments just before the
            start that are below the threshold, and counts some segments several times.
    """

    def __init__(
        self,
        *,
        patience: int = 3,
        end_patience: int = 6,
        tolerance: float = 0.3,
        variant: Literal["paper", "released"] = "paper",
    ) -> None:
        self.patience, self.end_patience, self.tolerance, self.variant = patience, end_patience, tolerance, variant
        self.losses: list[float] = []
        self.start: int | None = None
        self.threshold = 0.0
        self.is_ended = False

    @property
    def window(self) -> int:
        """Number of the latest segments that may still be averaged."""
        return max(self.patience, self.end_patience)

    def add_loss(self, loss: float) -> list[int]:
        """Take in the loss at the end of a segment, and return the segments that now belong to the average for good."""
        if self.is_ended:
            return []
        self.losses.append(loss)
        last = len(self.losses) - 1
        found_now = self.start is None and self._find_start()
        if self.start is None:
            return []
        if self.variant == "released":
            return self._released_start() if found_now else self._released_step()
        # Segment i is decided once the `end_patience` losses from it on are known.
        first_open = self.start if found_now else last - self.end_patience + 1
        decided: list[int] = []
        for index in range(max(first_open, self.start), last - self.end_patience + 2):
            if index > self.start and min(self.losses[index : index + self.end_patience]) > self.threshold:
                self.is_ended = True
                break
            decided.append(index)
        return decided

    def open_segments(self) -> list[int]:
        """Return the segments that belong to the average as well if training ends now."""
        count = len(self.losses)
        if self.is_ended or not count:
            return []
        if self.start is None:
            return [count - 1]
        if self.variant == "paper":
            return list(range(max(self.start, count - self.end_patience + 1), count))
        taken: list[int] = []
        for index in range(max(0, count - self.end_patience) + 1, count):
            if min(self.losses[index:]) > self.threshold:
                break
            taken.append(index)
        return taken

    def state(self) -> dict[str, Any]:
        names = ("losses", "start", "threshold", "is_ended")
        return {name: getattr(self, name) for name in names}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, list(value) if isinstance(value, list) else value)

    def _find_start(self) -> bool:
        latest = self.losses[-self.patience :]
        if len(latest) < self.patience or latest[0] > min(latest):
            return False
        self.start = len(self.losses) - self.patience
        self.threshold = (1 + self.tolerance) * sum(latest) / len(latest)
        return True

    def _released_start(self) -> list[int]:
        assert self.start is not None
        if self.end_patience <= self.patience:
            return list(range(self.start + 1, self.start + 1 + self.patience - self.end_patience))
        oldest = max(0, len(self.losses) - self.end_patience)
        # The segments up to the start, counted from the oldest that is remembered.
        up_to_start = list(range(oldest, min(oldest + self.end_patience - self.patience + 1, len(self.losses))))
        above = [place for place, index in enumerate(up_to_start) if self.losses[index] > self.threshold]
        first = above[-1] + 1 if above else 0
        return up_to_start[first + 1 :]

    def _released_step(self) -> list[int]:
        oldest = max(0, len(self.losses) - self.end_patience)
        assert self.start is not None
        if oldest < self.start:
            return []
        if min(self.losses[oldest:]) > self.threshold:
            self.is_ended = True
            return []
        return [oldest]


class SWAD(WeightAverage):
    """Stochastic weight averaging, densely: the mean of the weights after every update within a valley of the loss.

    A run is cut into segments of `every` updates. Until the valley is found, the average is that of the last segment;
    once it has ended, the average no longer changes. Segments are averaged as they come, so that memory holds at most
    max(patience, end_patience) + 3 copies of the network.

    Args:
        every: Number of updates per segment; the loss is measured at the end of each.
        patience, end_patience, tolerance, variant: As for `LossValley`.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        every: int = 100,
        patience: int = 3,
        end_patience: int = 6,
        tolerance: float = 0.3,
        variant: Literal["paper", "released"] = "paper",
    ) -> None:
        for name, value in (("every", every), ("patience", patience), ("end_patience", end_patience)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not tolerance >= 0:
            raise ValueError(f"tolerance must be at least 0, got {tolerance}")
        if variant not in ("paper", "released"):
            raise ValueError(f"variant must be 'paper' or 'released', got {variant!r}")
        super().__init__(network)
        self.every = every
        self.valley = LossValley(patience=patience, end_patience=end_patience, tolerance=tolerance, variant=variant)
        self.segment = WeightAverage(network)
        # The mean of the segments that were decided on, how many they are, and the latest segments by index.
        self.total: Weights | None = None
        self.count = 0
        self.latest: dict[int, Weights] = {}

    def update_(self, network: nn.Module, measure_loss: MeasureLoss | None = None) -> None:
        if measure_loss is None:
            raise ValueError("SWAD needs the holdout loss: update_(network, measure_loss)")
        if self.valley.is_ended:
            return
        self.segment.update_(network)
        if self.segment.n_averaged < self.every:
            return
        self._close_segment(measure_loss())

    @torch.no_grad()
    def averaged_network(self) -> nn.Module:
        weights, count = self.total, self.count
        for index in self.valley.open_segments():
            weights, count = _add_to_mean(weights, count, self.latest[index]), count + 1
        if weights is None:
            weights = self._fallback()
        self.module.load_state_dict(weights)
        return super().averaged_network()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.averaged_network()(*args, **kwargs)

    def get_extra_state(self) -> dict[str, Any]:
        return {"valley": self.valley.state(), "total": self.total, "count": self.count, "latest": self.latest}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        device = next(self.module.parameters()).device
        self.valley.load_state(state["valley"])
        self.total = None if state["total"] is None else _move_weights(state["total"], device)
        self.count = state["count"]
        self.latest = {index: _move_weights(weights, device) for index, weights in state["latest"].items()}

    @torch.no_grad()
    def _close_segment(self, loss: float) -> None:
        valley = self.valley
        self.latest[len(valley.losses)] = _copy_weights(self.segment.module)
        self.segment.n_averaged.zero_()
        for index in valley.add_loss(loss):
            self.total = _add_to_mean(self.total, self.count, self.latest[index])
            self.count += 1
        if valley.is_ended:
            self.total = self.total or self._fallback()
            self.latest.clear()
        for index in [each for each in self.latest if each <= len(valley.losses) - 1 - valley.window]:
            del self.latest[index]

    def _fallback(self) -> Weights:
        """Return the average if no segment belongs to it: as released, that where the valley starts."""
        if self.valley.start is None:
            return _copy_weights(self.segment.module)
        return self.latest[self.valley.start]


def _copy_weights(network: nn.Module) -> Weights:
    return {name: value.clone() for name, value in network.state_dict().items()}


def _move_weights(weights: Weights, device: torch.device) -> Weights:
    return {name: value.to(device) for name, value in weights.items()}


def _add_to_mean(mean: Weights | None, count: int, weights: Weights) -> Weights:
    """Return the mean of `count` weights and one more; integers are those of the last."""
    if mean is None:
        return weights
    share = 1 / (count + 1)
    return {
        name: mean[name].lerp(value, share) if value.is_floating_point() else value for name, value in weights.items()
    }
