"""A run's perturbation as a picture: a row a domain, from the image it is added to, to how it moved in training."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from domainwise.explain.perturbations import Movement, Portrait
from domainwise.explain.ranks import numerical_rank

CHANNELS = {1: ("0.3",), 3: ("tab:red", "tab:green", "tab:blue")}


def draw(portrait: Portrait, movement: Movement) -> Figure:
    """The perturbation of every training domain. What there is nothing to show of is left out."""
    has_norms, has_snapshots = bool(movement.steps), bool(movement.kept_steps)
    columns = 5 + has_norms + has_snapshots
    rows = len(portrait.domains)
    figure = Figure((2.35 * columns + 0.6, 2.35 * rows + 0.9), layout="constrained", dpi=120)
    figure.suptitle(_title(portrait), fontsize=12)
    panels = figure.subplots(rows, columns, squeeze=False, width_ratios=[1, 1.2, 1, 1, *[1.35] * (columns - 4)])
    for index, row in enumerate(panels):
        delta = portrait.delta[index]
        show(row[0], portrait.image[index])
        row[0].set_ylabel(portrait.domains[index], fontsize=10)
        _signed(figure, row[1], delta)
        show(row[2], around_gray(delta))
        show(row[3], portrait.perturbed[index])
        _singular_values(row[4], portrait, index)
        if has_norms:
            _norms(row[5], portrait, movement, index)
        if has_snapshots:
            _directions(row[-1], movement, index)
    titles = [
        "training image",
        "perturbation\n(mean of channels)",
        "perturbation\n(scaled to its largest)",
        "image and\nperturbation",
    ]
    titles += [
        "singular values\na channel",
        *["size over training"] * has_norms,
        *["direction, cosine"] * has_snapshots,
    ]
    for panel, title in zip(panels[0], titles, strict=True):
        panel.set_title(title, fontsize=9)
    return figure


def show(panel: Axes, image: Tensor) -> None:
    """An image (C, H, W) in [0, 1]; of other than three channels their mean, in gray."""
    panel.imshow(_pixels(image), interpolation="nearest", cmap="gray", vmin=0, vmax=1)
    panel.set(xticks=[], yticks=[])


def around_gray(delta: Tensor) -> Tensor:
    """A perturbation as an image: gray is no change, and its largest entry reaches black or white."""
    return 0.5 + 0.5 * delta / delta.abs().max().clamp(min=1e-12)


def _title(portrait: Portrait) -> str:
    ball = "" if portrait.norm == "l2" else " (largest entry)"
    of = "kept a domain" if portrait.is_kept else "made anew for each image; here of the one shown"
    limit = "" if portrait.rank is None else f", rank at most {portrait.rank}"
    return f"{portrait.run}: {portrait.method.upper()}, epsilon {portrait.epsilon:g}{ball}{limit}, {of}"


def _pixels(image: Tensor) -> NDArray[np.generic]:
    pixels: NDArray[np.generic] = image.permute(1, 2, 0).numpy() if len(image) == 3 else image.mean(0).numpy()
    return pixels


def _signed(figure: Figure, panel: Axes, delta: Tensor) -> None:
    mean = delta.mean(0).numpy()
    reach = max(float(np.abs(mean).max()), 1e-12)
    drawn = panel.imshow(mean, cmap="RdBu_r", vmin=-reach, vmax=reach, interpolation="nearest")
    panel.set(xticks=[], yticks=[])
    bar = figure.colorbar(drawn, ax=panel, shrink=0.85, pad=0.03)
    bar.set_ticks([-reach, 0, reach], labels=[f"{-reach:.1g}", "0", f"{reach:.1g}"])
    bar.ax.tick_params(labelsize=7)


def _singular_values(panel: Axes, portrait: Portrait, index: int) -> None:
    """Those above zero; what rounding leaves of the others is not drawn."""
    values = portrait.singular_values[index]
    colours: Sequence[str] = CHANNELS.get(len(values)) or [f"C{index}" for index in range(len(values))]
    for channel, colour, count in zip(values, colours, numerical_rank(values, portrait.delta.shape[-2:]), strict=True):
        there = channel[: int(count)].tolist()
        panel.plot(range(1, len(there) + 1), there, ".-", color=colour, linewidth=1, markersize=4)
    if portrait.rank is not None:
        panel.axvline(portrait.rank, color="black", linestyle="--", linewidth=0.9, label=f"rank {portrait.rank}")
        panel.legend(fontsize=7, loc="upper right")
    panel.set(yscale="log", xlim=(0.4, values.shape[1] + 0.6))
    panel.set_xlabel("number", fontsize=8)
    _plain(panel)


def _norms(panel: Axes, portrait: Portrait, movement: Movement, index: int) -> None:
    panel.plot(movement.steps, movement.norms[:, index].tolist(), color="tab:purple", label="l2 norm")
    label = "largest singular\nvalue (mean)"
    panel.plot(movement.steps, movement.leading[:, index].tolist(), color="tab:orange", label=label)
    if portrait.norm == "l2":
        panel.axhline(portrait.epsilon, color="black", linestyle="--", linewidth=0.9, label="epsilon")
    panel.set_ylim(0, 1.15 * max(panel.get_ylim()[1], portrait.epsilon * (portrait.norm == "l2")))
    panel.set_xlabel("step", fontsize=8)
    if index == 0:
        panel.legend(fontsize=7)
    _plain(panel)


def _directions(panel: Axes, movement: Movement, index: int) -> None:
    for cosines, colour, label in (
        (movement.to_previous, "tab:green", "with the record before"),
        (movement.to_last, "tab:blue", "with the last"),
    ):
        panel.plot(movement.kept_steps, cosines[:, index].tolist(), color=colour, label=label)
    panel.set_ylim(min(-0.05, float(movement.to_last.min()) - 0.05), 1.05)
    panel.set_xlabel("step", fontsize=8)
    if index == 0:
        panel.legend(fontsize=7, loc="lower right")
    _plain(panel)


def _plain(panel: Axes) -> None:
    panel.grid(alpha=0.25)
    panel.tick_params(labelsize=7)


_ACROSS = 10


def draw_components(portrait: Portrait) -> Figure:
    """A block a domain: bars of the mixing weights, and below them each component, all on one scale a domain."""
    assert portrait.components is not None
    domains, count = portrait.components.shape[:2]
    across, lines = min(count, _ACROSS), -(-count // _ACROSS)
    has_weights = portrait.mixing_weights is not None
    height = domains * (1.5 * has_weights + 1.45 * lines + 0.5) + 0.5
    figure = Figure((max(6.5, 1.25 * across + 1), height), layout="constrained", dpi=120)
    figure.suptitle(f"{portrait.run}: the {count} perturbations that each domain mixes", fontsize=11)
    blocks = figure.subfigures(domains, 1, squeeze=False)[:, 0]
    for index, (block, name) in enumerate(zip(blocks, portrait.domains, strict=True)):
        alike = f"mean cosine of two of them {portrait.component_cosines[index]:.2f}"
        block.suptitle(f"{name}: {alike}", fontsize=9.5, x=0.01, ha="left")
        grid = block.add_gridspec(has_weights + lines, across, height_ratios=[1.1] * has_weights + [1.3] * lines)
        if has_weights:
            _weights(block.add_subplot(grid[0, :]), portrait, index)
        # One scale for all, so that they can be compared.
        colours = around_gray(portrait.components[index])
        for number in range(count):
            panel = block.add_subplot(grid[has_weights + number // across, number % across])
            show(panel, colours[number])
            norm = float(portrait.component_norms[index, number])
            panel.set_title(f"{number + 1}: norm {norm:.2g}", fontsize=7.5, pad=3)
    return figure


def _weights(panel: Axes, portrait: Portrait, index: int) -> None:
    assert portrait.mixing_weights is not None
    weights = portrait.mixing_weights[index].tolist()
    numbers = range(1, len(weights) + 1)
    bars = panel.bar(numbers, weights, color="tab:blue", width=0.6)
    panel.bar_label(bars, fmt="%.2f", fontsize=7, padding=1)
    panel.axhline(1 / len(weights), color="gray", linestyle=":", linewidth=0.9)
    panel.set(xlim=(0.5, len(weights) + 0.5), xticks=list(numbers), ylim=(0, 1.25 * max(weights)))
    panel.set_ylabel("weight", fontsize=8)
    panel.tick_params(labelsize=7)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
