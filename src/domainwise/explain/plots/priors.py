"""What a radius looks like: images under random perturbations of a prior, in several sizes."""

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.explain.plots.perturbations import show_image
from domainwise.perturbations import FilterPrior, PixelPrior, Prior, SpectrumPrior, TonePrior, UniversalPerturbation
from domainwise.perturbations.base import compute_norm

RADII = (0.1, 0.5, 1.0)
PRIORS = {"pixels": PixelPrior, "filter": FilterPrior, "tone": TonePrior, "spectrum": SpectrumPrior}


def plot_priors(
    names: Sequence[str], images: Tensor, radii: Sequence[float] = RADII, draws: int = 3, seed: int = 0
) -> Figure:
    """Plot one row per prior and image (n, C, H, W) in [0, 1]: as it is, and with random perturbations of each radius.

    Each perturbation is as large as the radius allows. The draws are the same for all images and radii, except that
    each has its own size.

    Raises:
        DomainwiseError: A prior has another name, or changes no image.
    """
    rows = len(names) * len(images)
    columns = 1 + draws * len(radii)
    figure = Figure((1.25 * columns, 1.3 * rows + 0.5), layout="constrained", dpi=120)
    panels = figure.subplots(rows, columns, squeeze=False)
    panels[0][0].set_title("image", fontsize=9)
    for number, radius in enumerate(radii):
        panels[0][1 + number * draws + draws // 2].set_title(f"radius {radius:g}", fontsize=9)
    for index, name in enumerate(names):
        views = torch.stack([_draw_views(name, images, radius, draws, seed) for radius in radii]).flatten(0, 1)
        for row, image in enumerate(images, start=index * len(images)):
            panels[row][0].set_ylabel(name, fontsize=9)
            for panel, view in zip(panels[row], (image, *views[:, row - index * len(images)]), strict=True):
                show_image(panel, view)
    return figure


def _draw_views(name: str, images: Tensor, radius: float, draws: int, seed: int) -> Tensor:
    """Return the images (draws, n, C, H, W) under random perturbations of a prior."""
    if name == "features":
        raise DomainwiseError("prior 'features' changes features inside a network, which have no picture")
    if name not in PRIORS:
        raise unknown_choice("prior", name, PRIORS)
    generator = torch.Generator().manual_seed(seed)
    prior: Prior = PRIORS[name]()
    perturbation = UniversalPerturbation(
        images.shape[1:], num_domains=draws, epsilon=radius, prior=prior, adversary="random", generator=generator
    )
    with torch.no_grad():
        perturbation.deltas.mul_(radius / compute_norm(perturbation.deltas, "l2").clamp(min=1e-12))
        return torch.stack([perturbation(images, draw) for draw in range(draws)])
