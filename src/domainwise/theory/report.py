"""Figures of the theory (task, reliance, bound), and the report of all claims that `domainwise theory` writes."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from domainwise.errors import DomainwiseError
from domainwise.figures import render_figure
from domainwise.storage.files import write_atomic
from domainwise.theory import bounds
from domainwise.theory.bounds import Shift
from domainwise.theory.claims import ClaimCheck, check_claims, check_radius, compute_condition_limit
from domainwise.theory.dynamics import Adversary, compute_reliance, solve_flow
from domainwise.theory.problem import Floats, Task

_NAMES: dict[Adversary, str] = {"none": "ERM", "domain": "domain-wise, exact", "sample": "sample-wise AT"}
_COLORS: dict[Adversary, str] = {"none": "black", "domain": "tab:red", "sample": "tab:blue"}
_CORRELATIONS = (0.6, 0.9, 0.99)
_BETAS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class TheoryReport:
    """The checks of all claims, and the names of the files that were written."""

    radius: float
    beta: float
    checks: list[ClaimCheck]
    files: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the content of theory.json."""
        return {"radius": self.radius, "beta": self.beta, "claims": [asdict(check) for check in self.checks]}


def check_theory(radius: float = 0.3, beta: float = 1.0, *, output: Path | None = None) -> TheoryReport:
    """Check every claim of the paper's section 4.3 and appendix A, and write the figures and theory.json.

    Args:
        radius: radius of the adversaries, above 0, at most .9 and below beta.
        beta: size of the spurious feature.
        output: folder to write to (default: write nothing).
    """
    check_radius(radius, beta)
    if output is not None:
        _create_folder(output)
    report = TheoryReport(radius, beta, check_claims(radius, beta), [])
    if output is None:
        return report
    files = {"theory.json": json.dumps(report.to_json(), indent=2).encode()}
    for name, figure in plot_theory(radius, beta).items():
        for suffix in ("png", "svg"):
            files[f"{name}.{suffix}"] = render_figure(figure, suffix)
    for name, content in files.items():
        write_atomic(output / name, content)
    return TheoryReport(radius, beta, report.checks, list(files))


def _create_folder(path: Path) -> None:
    """Create the folder before the work, so that a wrong path fails at once."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DomainwiseError(f"folder {path} could not be created: {error.strerror}") from error


def plot_theory(radius: float, beta: float) -> dict[str, Figure]:
    """Plot every figure, by file name."""
    return {
        "task": plot_task(Task(0.9, beta)),
        "reliance_over_time": plot_reliance_over_time(radius, beta),
        "reliance_over_p": plot_reliance_over_p(radius, beta),
        "bound": plot_bound(),
        "map": plot_slope_map(),
    }


def plot_task(task: Task) -> Figure:
    """Plot the four groups of the paper's Figure 3, with areas by weight, and ERM's decision boundary at two times."""
    figure = Figure((4.6, 4.2), layout="constrained")
    axes = figure.subplots()
    points = task.population()
    for label, color, animal in ((1, "tab:brown", "cow, y = 1"), (-1, "tab:orange", "camel, y = -1")):
        inside = points.y == label
        axes.scatter(
            points.spurious[inside], points.invariant[inside, 0], s=3000 * points.weight[inside], c=color, alpha=0.7
        )
        axes.plot([], [], "o", color=color, alpha=0.7, label=animal)
    for time, style in ((10.0, "--"), (1e6, "-")):
        w_inv, w_sp = solve_flow(points, [time])[0]
        limit = 1.6 * task.beta
        axes.plot([-limit, limit], [w_sp / w_inv * limit, -w_sp / w_inv * limit], "k" + style)
        axes.plot([], [], "k" + style, label=f"ERM, t = {time:g}")
    axes.axvline(0, color="gray", linewidth=0.8)
    axes.set(xlabel="x_sp: desert | grass", ylabel="x_inv", xlim=(-1.6 * task.beta, 1.6 * task.beta), ylim=(-1.9, 1.9))
    axes.set_title(f"p = {task.p:g}, beta = {task.beta:g}", fontsize=10)
    axes.legend(fontsize=8, loc="upper left", ncols=2)
    return figure


def plot_reliance_over_time(radius: float, beta: float) -> Figure:
    """Plot reliance against time under each adversary, one panel per p."""
    figure = Figure((10.5, 3.4), layout="constrained")
    grid = figure.subplots(1, len(_CORRELATIONS), sharey=True)
    times = np.logspace(-1, 7, 160)
    for axes, p in zip(grid, _CORRELATIONS, strict=True):
        points = Task(p, beta).population()
        for adversary, name in _NAMES.items():
            ratio = compute_reliance(solve_flow(points, times, adversary, radius), beta)
            axes.plot(times, ratio, color=_COLORS[adversary], label=name)
        fixed = compute_reliance(solve_flow(points.translate(radius), times), beta)
        axes.plot(times, fixed, color="tab:green", linestyle="--", label=f"fixed delta = {radius:g}")
        late = times >= 1
        low, high = bounds.compute_reliance_bounds(p, times[late], Shift(0.0, beta=beta))
        axes.fill_between(times[late], low, np.minimum(high, 1.5), color="gray", alpha=0.12, label="Theorem 2 (ERM)")
        axes.set(xscale="log", xlabel="time t", title=f"p = {p:g}", ylim=(-0.15, 1.25))
        axes.grid(alpha=0.3)
    grid[0].set_ylabel("reliance, w_sp beta / |w_inv x_inv|")
    grid[0].legend(fontsize=8)
    return figure


def plot_reliance_over_p(radius: float, beta: float) -> Figure:
    """Plot reliance against p under each adversary, one panel per time."""
    times = (3.0, 30.0, 1e3, 1e6)
    figure = Figure((11, 3.2), layout="constrained")
    grid = figure.subplots(1, len(times))
    correlations = np.linspace(0.5, 0.995, 30)
    for adversary, name in _NAMES.items():
        flows = [solve_flow(Task(p, beta).population(), times, adversary, radius) for p in correlations]
        ratio = np.stack([compute_reliance(weights, beta) for weights in flows])
        for axes, column in zip(grid, ratio.T, strict=True):
            axes.plot(correlations, column, color=_COLORS[adversary], label=name)
    for axes, time in zip(grid, times, strict=True):
        axes.set(xlabel="p", title=f"t = {time:g}", ylim=(0, None))
        axes.grid(alpha=0.3)
    grid[0].set_ylabel("reliance")
    grid[0].legend(fontsize=8)
    return figure


def plot_bound() -> Figure:
    """Plot how the bound changes with p for shifts against the label, dotted where its proof does not apply."""
    figure = Figure((6, 3.8), layout="constrained")
    axes = figure.subplots()
    p = np.linspace(0.5, 0.999, 400)
    for ratio, color in ((0.0, "black"), (0.3, "tab:blue"), (0.7, "tab:orange"), (0.9, "tab:red")):
        shift = Shift(ratio, label=-1)
        bound = bounds.compute_lower_bound(p, shift)
        start, bound = bound[0], bound - bound[0]
        applies = bounds.compute_upper_bound(p, shift) > 0
        label = f"delta y = {-ratio:.1f}, from {start:.2f}" if ratio else f"ERM, from {start:.2f}"
        axes.plot(p, np.where(applies, bound, np.nan), color=color, label=label)
        axes.plot(p, np.where(applies, np.nan, bound), color=color, linestyle=":")
    axes.set(xlabel="p", ylabel="bound on w_sp minus its value at p = 1/2", ylim=(-0.01, 0.1))
    axes.set_title("beta = M = 1; dotted: w_0 < 0, not a bound", fontsize=10)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return figure


def plot_slope_map() -> Figure:
    """Plot the bound's least slope over delta y / beta, M and beta, and below it that of its average over y."""
    figure = Figure((10.5, 5.6), layout="constrained")
    grid = figure.subplots(2, len(_BETAS), sharey=True)
    margins = np.logspace(0, 1.5, 40)
    signed, sizes = np.linspace(-0.99, 0.99, 199), np.linspace(0.01, 0.99, 50)
    for column, beta in enumerate(_BETAS):
        # delta is positive, against the label or along it, so that 2 M (1 + delta) > 1 always.
        single = [
            [bounds.compute_least_slope(Shift(abs(x) * beta, 1 if x > 0 else -1, beta, m)) for x in signed]
            for m in margins
        ]
        averaged = [[_compute_least_averaged_slope(x * beta, beta, m) for x in sizes] for m in margins]
        mesh = _plot_slopes(grid[0, column], signed, margins, np.array(single))
        _plot_slopes(grid[1, column], sizes, margins, 100 * np.array(averaged))
        grid[0, column].axvline(compute_condition_limit(), color="black", linewidth=1)
        grid[0, column].set(title=f"beta = {beta:g}", xlabel="delta y / beta")
        grid[1, column].set(xlabel="|delta| / beta, averaged over y")
    for axes in grid[:, 0]:
        axes.set_ylabel("M")
    grid[0, 0].annotate(f"negative only left of {compute_condition_limit():.3f}", (-0.78, 1.1), fontsize=8)
    label = "arcsinh of the least slope (bottom: times 100); red: negative"
    figure.colorbar(mesh, ax=grid, label=label, shrink=0.8)
    return figure


def _compute_least_averaged_slope(delta: float, beta: float, max_margin: float) -> float:
    p = np.linspace(0.5, 0.999, 60)
    return float(np.min(np.gradient(bounds.compute_averaged_lower_bound(p, delta, 0.5, beta, max_margin), p)))


def _plot_slopes(axes: Axes, x: Floats, margins: Floats, slopes: Floats) -> QuadMesh:
    axes.set_yscale("log")
    return axes.pcolormesh(
        x, margins, np.arcsinh(slopes), cmap="RdBu", vmin=-6, vmax=6, shading="nearest", rasterized=True
    )
