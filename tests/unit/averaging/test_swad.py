"""SWAD: which segments it averages, against the definition, and the weights it ends with."""

import io
import random
from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from domainwise.averaging import SWAD, LossValley

USUAL = [2.0, 1.7, 1.4, 1.2, 1.05, 0.95, 0.8, 0.82, 0.84, 0.9, 0.88, 0.95, 1.0, 1.02, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8]


def segments_of(losses: list[float], **options: object) -> Counter[int]:
    """How often each segment is averaged."""
    valley = LossValley(**options)  # type: ignore[arg-type]
    counts: Counter[int] = Counter()
    for loss in losses:
        counts.update(valley.add_loss(loss))
    counts.update(valley.open_segments())
    return counts


def segments_by_definition(losses: list[float], patience: int, end_patience: int, tolerance: float) -> range:
    """The paper's rule, over the whole curve at once."""
    count = len(losses)
    starts = [i for i in range(count - patience + 1) if losses[i] == min(losses[i : i + patience])]
    if not starts:
        return range(count - 1, count)
    start = starts[0]
    threshold = (1 + tolerance) * sum(losses[start : start + patience]) / patience
    ends = [i for i in range(start + 1, count - end_patience + 1) if min(losses[i : i + end_patience]) > threshold]
    return range(start, ends[0] if ends else count)


@pytest.mark.parametrize(("patience", "end_patience"), [(3, 6), (3, 3), (5, 2), (1, 1), (2, 5), (1, 4)])
def test_the_paper_form_is_the_definition_on_random_curves(patience: int, end_patience: int) -> None:
    draw = random.Random(10 * patience + end_patience)
    lengths = Counter[bool]()
    for _ in range(300):
        count, tolerance = draw.randint(1, 40), draw.choice([0.0, 0.1, 0.3])
        # A valley with noise, and some equal losses.
        low = draw.uniform(0, 40)
        noise = draw.choice([0.05, 0.5])
        losses = [round(0.5 + abs(i - low) / 20 + draw.uniform(0, noise), 1 + draw.randint(0, 1)) for i in range(count)]
        expected = segments_by_definition(losses, patience, end_patience, tolerance)
        taken = segments_of(losses, patience=patience, end_patience=end_patience, tolerance=tolerance)
        assert taken == Counter(expected), (losses, tolerance)
        lengths[expected.stop < count] += 1
    assert min(lengths[True], lengths[False]) > 20  # valleys that end, and others


def test_the_paper_form_by_hand() -> None:
    # Starts at 1 (1 <= 1.1 <= 1.2), threshold 1.3 * 1.1 = 1.43; from 4 on, everything is above.
    losses = [2.0, 1.0, 1.1, 1.2, 1.5, 1.6, 1.5]
    assert segments_of(losses, end_patience=3) == Counter([1, 2, 3])
    # With a loss below the threshold within three, it goes on.
    assert segments_of([*losses[:6], 1.4, 1.5, 1.5], end_patience=3) == Counter(range(1, 9))


def test_a_valley_never_starts_while_the_loss_falls() -> None:
    falling = [1 / (1 + index) for index in range(12)]
    for variant in ("paper", "released"):
        assert segments_of(falling, variant=variant) == Counter([11])


def test_the_usual_curve() -> None:
    assert segments_of(USUAL) == Counter(range(6, 14))
    assert segments_of(USUAL, variant="released") == Counter([5, 6, 6, *range(7, 14)])


def test_the_released_code_counts_early_segments_repeatedly() -> None:
    losses = [0.5, 0.6, 0.61, 0.62, 0.7, 0.5, 0.8, *[2.0] * 6]
    assert segments_of(losses, variant="released") == Counter({0: 3, 1: 2, 2: 2, 3: 1, 4: 1, 5: 1})
    assert segments_of(losses) == Counter(range(6))


class ReleasedLossValley:
    """The queues of the authors' code, with indices in place of models."""

    def __init__(self, patience: int, end_patience: int, tolerance: float) -> None:
        self.patience, self.end_patience, self.tolerance = patience, end_patience, tolerance
        self.converge_queue: list[tuple[int, float]] = []
        self.smooth_queue: list[tuple[int, float]] = []
        self.start: int | None = None
        self.threshold = 0.0
        self.is_dead = False
        self.added: list[int] = []

    def update(self, index: int, loss: float) -> None:
        if self.is_dead:
            return
        self.converge_queue = [*self.converge_queue, (index, loss)][-self.patience :]
        self.smooth_queue = [*self.smooth_queue, (index, loss)][-self.end_patience :]
        if self.start is None:
            losses = [each for _, each in self.converge_queue]
            if len(losses) < self.patience or losses.index(min(losses)) != 0:
                return
            self.start = self.converge_queue[0][0]
            self.threshold = (1 + self.tolerance) * sum(losses) / len(losses)
            if self.end_patience < self.patience:
                for i in range(self.patience - self.end_patience):
                    self.added.append(self.converge_queue[1 + i][0])
            elif self.end_patience > self.patience:
                queue = self.smooth_queue[: self.end_patience - self.patience + 1]
                first = 0
                for i in reversed(range(len(queue))):
                    if queue[i][1] > self.threshold:
                        first = i + 1
                        break
                self.added += [each for each, _ in queue[first + 1 :]]
            return
        if self.smooth_queue[0][0] < self.start:
            return
        if min(each for _, each in self.smooth_queue) > self.threshold:
            self.is_dead = True
            return
        self.added.append(self.smooth_queue[0][0])

    def finish(self) -> list[int]:
        if self.start is None:
            return [self.converge_queue[-1][0]]
        if not self.is_dead:
            self.smooth_queue.pop(0)
            while self.smooth_queue and min(each for _, each in self.smooth_queue) <= self.threshold:
                self.added.append(self.smooth_queue.pop(0)[0])
        # The average starts as a copy of that segment, which the first update of it replaces.
        return self.added or [self.start]


class Scalar(nn.Module):
    """A network with one weight, to read off what was averaged."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([value], dtype=torch.float64))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


def run_swad(average: SWAD, values: list[float], losses: list[float], first: int = 0) -> list[float]:
    """Update with the given weights, and return those of the average after each update."""
    results = []
    for index, value in enumerate(values[first:], start=first):
        segment = index // average.every
        average.update_(Scalar(value), lambda segment=segment: losses[segment])
        results.append(average.averaged_network().state_dict()["weight"].item())
    return results


def draw_run(seed: int, every: int) -> tuple[list[float], list[float]]:
    draw = random.Random(seed)
    count = draw.randint(3, 30)
    low = draw.uniform(0, 15)
    losses = [round(0.5 + abs(index - low) / 8 + draw.uniform(0, 0.4), 1) for index in range(count)]
    return [draw.uniform(-5, 5) for _ in range(count * every)], losses


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize(("patience", "end_patience"), [(3, 6), (3, 3), (4, 2)])
def test_the_weights_are_the_mean_over_the_segments(variant: str, patience: int, end_patience: int) -> None:
    every = 3
    for seed in range(30):
        values, losses = draw_run(seed, every)
        average = SWAD(
            Scalar(), every=every, patience=patience, end_patience=end_patience, tolerance=0.1, variant=variant
        )
        results = run_swad(average, values, losses)
        means = [sum(values[i * every : (i + 1) * every]) / every for i in range(len(losses))]
        for done in range(1, len(losses) + 1):
            if variant == "paper":
                chosen = list(segments_by_definition(losses[:done], patience, end_patience, 0.1))
            else:
                valley = ReleasedLossValley(patience, end_patience, 0.1)
                for index in range(done):
                    valley.update(index, losses[index])
                chosen = valley.finish()
            expected = sum(means[index] for index in chosen) / len(chosen)
            assert results[done * every - 1] == pytest.approx(expected, abs=1e-9), (seed, done)
        assert max(average.latest, default=0) < len(losses)


def test_before_the_first_segment_ends_the_average_is_that_of_its_updates() -> None:
    average = SWAD(Scalar(7.0), every=4)
    assert average.averaged_network().state_dict()["weight"].item() == 7
    assert run_swad(average, [1.0, 3.0, 5.0, 7.0, 100.0], [1.0]) == [1, 2, 3, 4, 4]


def test_memory_is_bounded_and_released_at_the_end() -> None:
    for patience, end_patience in ((3, 6), (5, 2)):
        average = SWAD(Scalar(), every=1, patience=patience, end_patience=end_patience)
        sizes = []
        losses = [1 - 0.01 * index for index in range(20)] + [0.9] * 30 + [5.0] * 10
        for index, loss in enumerate(losses):
            average.update_(Scalar(float(index)), lambda loss=loss: loss)
            sizes.append(len(average.latest))
        assert max(sizes) == max(patience, end_patience)
        assert average.valley.is_ended
        assert sizes[-1] == 0


def test_after_the_end_nothing_is_measured_and_nothing_changes() -> None:
    average = SWAD(Scalar(), every=1, patience=1, end_patience=1, tolerance=0)
    run_swad(average, [2.0, 4.0, 9.0], [1.0, 1.0, 3.0])
    assert average(torch.tensor(10.0)).item() == 30

    def measure() -> float:
        raise AssertionError("the valley has ended")

    average.update_(Scalar(100.0), measure)
    assert average(torch.tensor(10.0)).item() == 30


def test_integers_are_those_of_the_last_segment() -> None:
    average = SWAD(Scalar(), every=2, patience=1)
    for index in range(6):
        network = Scalar(float(index))
        network.count.fill_(index)
        average.update_(network, lambda: 1.0)
    state = average.averaged_network().state_dict()
    assert (state["weight"].item(), state["count"].item()) == (2.5, 5)


def test_it_needs_the_loss() -> None:
    with pytest.raises(ValueError, match="SWAD needs the holdout loss"):
        SWAD(Scalar()).update_(Scalar())


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_a_stored_average_continues_to_the_bit_from_every_update(variant: str) -> None:
    every, (values, losses) = 2, draw_run(0, 2)
    options = {"every": every, "end_patience": 4, "tolerance": 0.1, "variant": variant}
    whole = SWAD(Scalar(), **options)  # type: ignore[arg-type]
    expected = run_swad(whole, values, losses)
    assert whole.valley.is_ended
    for cut in range(len(values)):
        part = SWAD(Scalar(), **options)  # type: ignore[arg-type]
        run_swad(part, values[:cut], losses)
        content = io.BytesIO()
        torch.save(part.state_dict(), content)
        content.seek(0)
        restored = SWAD(Scalar(9.0), **options)  # type: ignore[arg-type]
        restored.load_state_dict(torch.load(content, weights_only=True))
        assert restored.averaged_network().state_dict() == part.averaged_network().state_dict()
        assert run_swad(restored, values, losses, first=cut) == expected[cut:], cut
