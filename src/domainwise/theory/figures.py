"""The theory in pictures: the task, reliance over time and over p, and where the bound falls."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from domainwise.theory import bounds
from domainwise.theory.bounds import Shift
from domainwise.theory.claims import limit_of_condition
from domainwise.theory.dynamics import Adversary, flow, reliance
from domainwise.theory.problem import Floats, Task

NAMES: dict[Adversary, str] = {"none": "ERM", "domain": "domain-wise, exact", "sample": "sample-wise AT"}
COLOURS: dict[Adversary, str] = {"none": "black", "domain": "tab:red", "sample": "tab:blue"}
SHOWN = (0.6, 0.9, 0.99)
MAPPED = (0.5, 1.0, 2.0)


def draw_all(radius: float, beta: float) -> dict[str, Figure]:
    """Every figure, by the name of its file."""
    return {
        "task": draw_task(Task(0.9, beta)),
        "reliance_over_time": draw_over_time(radius, beta),
        "reliance_over_p": draw_over_p(radius, beta),
        "bound": draw_bound(),
        "map": draw_map(),
    }


def draw_task(task: Task) -> Figure:
    """The paper's Figure 3: four groups, their area their share, with the directions of ERM at two times."""
    figure = Figure((4.6, 4.2), layout="constrained")
    axes = figure.subplots()
    points = task.population()
    for label, colour, animal in ((1, "tab:brown", "cow, y = 1"), (-1, "tab:orange", "camel, y = -1")):
        inside = points.y == label
        axes.scatter(
            points.spurious[inside], points.invariant[inside, 0], s=3000 * points.weight[inside], c=colour, alpha=0.7
        )
        axes.plot([], [], "o", color=colour, alpha=0.7, label=animal)
    for time, style in ((10.0, "--"), (1e6, "-")):
        w_inv, w_sp = flow(points, [time])[0]
        reach = 1.6 * task.beta
        axes.plot([-reach, reach], [w_sp / w_inv * reach, -w_sp / w_inv * reach], "k" + style)
        axes.plot([], [], "k" + style, label=f"ERM, t = {time:g}")
    axes.axvline(0, color="gray", linewidth=0.8)
    axes.set(xlabel="x_sp: desert | grass", ylabel="x_inv", xlim=(-1.6 * task.beta, 1.6 * task.beta), ylim=(-1.9, 1.9))
    axes.set_title(f"p = {task.p:g}, beta = {task.beta:g}", fontsize=10)
    axes.legend(fontsize=8, loc="upper left", ncols=2)
    return figure


def draw_over_time(radius: float, beta: float) -> Figure:
    figure = Figure((10.5, 3.4), layout="constrained")
    grid = figure.subplots(1, len(SHOWN), sharey=True)
    times = np.logspace(-1, 7, 160)
    for axes, p in zip(grid, SHOWN, strict=True):
        points = Task(p, beta).population()
        for adversary, name in NAMES.items():
            ratio = reliance(flow(points, times, adversary, radius), beta)
            axes.plot(times, ratio, color=COLOURS[adversary], label=name)
        fixed = reliance(flow(points.moved(radius), times), beta)
        axes.plot(times, fixed, color="tab:green", linestyle="--", label=f"fixed delta = {radius:g}")
        late = times >= 1
        low, high = bounds.reliance_bounds(p, times[late], Shift(0.0, beta=beta))
        axes.fill_between(times[late], low, np.minimum(high, 1.5), color="gray", alpha=0.12, label="Theorem 2 (ERM)")
        axes.set(xscale="log", xlabel="time t", title=f"p = {p:g}", ylim=(-0.15, 1.25))
        axes.grid(alpha=0.3)
    grid[0].set_ylabel("reliance, w_sp beta / |w_inv x_inv|")
    grid[0].legend(fontsize=8)
    return figure


def draw_over_p(radius: float, beta: float) -> Figure:
    times = (3.0, 30.0, 1e3, 1e6)
    figure = Figure((11, 3.2), layout="constrained")
    grid = figure.subplots(1, len(times))
    correlations = np.linspace(0.5, 0.995, 30)
    for adversary, name in NAMES.items():
        ratio = np.stack(
            [reliance(flow(Task(p, beta).population(), times, adversary, radius), beta) for p in correlations]
        )
        for axes, column in zip(grid, ratio.T, strict=True):
            axes.plot(correlations, column, color=COLOURS[adversary], label=name)
    for axes, time in zip(grid, times, strict=True):
        axes.set(xlabel="p", title=f"t = {time:g}", ylim=(0, None))
        axes.grid(alpha=0.3)
    grid[0].set_ylabel("reliance")
    grid[0].legend(fontsize=8)
    return figure


def draw_bound() -> Figure:
    """How the bound changes with p for shifts against the label, dotted where its proof does not apply."""
    figure = Figure((6, 3.8), layout="constrained")
    axes = figure.subplots()
    p = np.linspace(0.5, 0.999, 400)
    for ratio, colour in ((0.0, "black"), (0.3, "tab:blue"), (0.7, "tab:orange"), (0.9, "tab:red")):
        shift = Shift(ratio, label=-1)
        bound = bounds.lower_weight(p, shift)
        start, bound = bound[0], bound - bound[0]
        applies = bounds.upper_weight(p, shift) > 0
        label = f"delta y = {-ratio:.1f}, from {start:.2f}" if ratio else f"ERM, from {start:.2f}"
        axes.plot(p, np.where(applies, bound, np.nan), color=colour, label=label)
        axes.plot(p, np.where(applies, np.nan, bound), color=colour, linestyle=":")
    axes.set(xlabel="p", ylabel="bound on w_sp, minus that at p = 1/2", ylim=(-0.01, 0.1))
    axes.set_title("beta = M = 1; dotted: w_0 < 0, so it bounds nothing", fontsize=10)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return figure


def draw_map() -> Figure:
    """Over delta y / beta, M and beta: the least slope of the bound by p, and below it that of its average over y."""
    figure = Figure((10.5, 5.6), layout="constrained")
    grid = figure.subplots(2, len(MAPPED), sharey=True)
    margins = np.logspace(0, 1.5, 40)
    signed, sizes = np.linspace(-0.99, 0.99, 199), np.linspace(0.01, 0.99, 50)
    for column, beta in enumerate(MAPPED):
        # delta above 0, against the label or along it, so that 2 M (1 + delta) > 1 always.
        one = [[bounds.least_slope(Shift(abs(x) * beta, 1 if x > 0 else -1, beta, m)) for x in signed] for m in margins]
        both = [[_least_averaged_slope(x * beta, beta, m) for x in sizes] for m in margins]
        mesh = _draw_sign(grid[0, column], signed, margins, np.array(one))
        _draw_sign(grid[1, column], sizes, margins, 100 * np.array(both))
        grid[0, column].axvline(limit_of_condition(), color="black", linewidth=1)
        grid[0, column].set(title=f"beta = {beta:g}", xlabel="delta y / beta")
        grid[1, column].set(xlabel="|delta| / beta, averaged over y")
    for axes in grid[:, 0]:
        axes.set_ylabel("M")
    grid[0, 0].annotate(f"falls only left of {limit_of_condition():.3f}", (-0.78, 1.1), fontsize=8)
    figure.colorbar(mesh, ax=grid, label="arcsinh of the least slope (below: times 100); red: it falls", shrink=0.8)
    return figure


def _least_averaged_slope(delta: float, beta: float, max_margin: float) -> float:
    p = np.linspace(0.5, 0.999, 60)
    return float(np.min(np.gradient(bounds.averaged_lower_weight(p, delta, 0.5, beta, max_margin), p)))


def _draw_sign(axes: Axes, across: Floats, margins: Floats, slopes: Floats) -> QuadMesh:
    axes.set_yscale("log")
    return axes.pcolormesh(across, margins, np.arcsinh(slopes), cmap="RdBu", vmin=-6, vmax=6, shading="nearest")
