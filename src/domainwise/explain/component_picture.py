"""MAT's perturbations one by one: what each domain mixes, and with which weights."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from domainwise.explain.perturbation_picture import around_gray, show
from domainwise.explain.perturbations import Portrait

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
