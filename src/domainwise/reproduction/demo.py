"""The demo: its recipe with other methods, radii or seeds, run like every other recipe."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.reproduction.plan import plan_recipe
from domainwise.reproduction.recipe import Recipe, Row, find_recipe, find_scale, vary_row
from domainwise.reproduction.results import RecipeResult
from domainwise.reproduction.runner import ReproductionCallbacks, run_recipe_plans
from domainwise.storage.sweep_folder import SweepFolder
from domainwise.sweeps.engine import Engine

STEPS = 700


def build_demo(
    *,
    algorithms: Sequence[str] = (),
    radii: Sequence[float] = (),
    variant: str = "standard",
    schedule: str = "two_pass",
    seed: int = 0,
    trials: int = 1,
    pictures: bool = True,
) -> Recipe:
    """Return the demo's recipe, with the methods and radii that it has or with others.

    Args:
        algorithms: methods of the demo (default: all that support the schedule).
        pictures: show Grad-CAM, perturbations and attacks on the page.
    """
    recipe = find_recipe("demo")
    methods = list(dict.fromkeys(row.algorithm for row in recipe.rows))
    for name in algorithms:
        if name not in methods:
            raise unknown_choice("method of the demo", name, methods)
    by_method: dict[str, list[Row]] = {}
    for row in recipe.rows:
        if (not algorithms or row.algorithm in algorithms) and _supports(row, variant, schedule):
            by_method.setdefault(row.method, []).append(row)
    rows = [row for group in by_method.values() for row in _fill_radii(group, radii)]
    seeds = f"seed {seed}" if trials == 1 else f"mean of {trials} seeds from {seed}"
    return replace(
        recipe,
        about=f"Accuracy under unseen shift ({variant}, {schedule}, {seeds})",
        rows=tuple(_set_variant(row, variant, schedule) for row in rows),
        gallery=recipe.gallery if pictures else "",
    )


def _supports(row: Row, variant: str, schedule: str) -> bool:
    """Return whether a row makes sense with this variant and schedule."""
    is_standard = variant == "standard"
    if schedule == "simultaneous" and (row.algorithm == "at" or (row.method == "mat" and is_standard)):
        return False  # a sample's perturbation depends on its gradient
    return is_standard or not row.label or not row.varied


def _fill_radii(rows: Sequence[Row], radii: Sequence[float]) -> list[Row]:
    template = rows[0]
    if not radii or not template.varied:
        return list(rows)
    named = replace(template, name=f"{template.method}, epsilon {{:g}}")
    return [vary_row(named, [radius] * len(template.varied)) for radius in dict.fromkeys(radii)]


def _set_variant(row: Row, variant: str, schedule: str) -> Row:
    if not row.varied:
        return row
    suffix = "".join(f", {name}" for name in (variant, schedule) if name not in ("standard", "two_pass"))
    return replace(row, name=row.name + suffix, hparams={**row.hparams, "variant": variant, "schedule": schedule})


def run_demo(
    output: str | Path = "runs/demo",
    *,
    algorithms: Sequence[str] = (),
    radii: Sequence[float] = (),
    variant: str = "standard",
    schedule: str = "two_pass",
    seed: int = 0,
    trials: int = 1,
    steps: int = STEPS,
    pictures: bool = True,
    engine: Engine | None = None,
    callbacks: ReproductionCallbacks | None = None,
) -> RecipeResult:
    """Train ERM, AT, UAT, MAT and LDAT on synthetic images and report how each holds up as the shift grows.

    Writes demo.md, demo.png and demo.html to `output`, next to the runs. Call it again to resume.

    Args:
        algorithms, radii: the methods and radii to compare (default: those of the recipe).
        variant, schedule: hyperparameters of the adversarial methods.
        seed: first seed; it determines data, patterns and network alike.
        trials: number of seeds.
        pictures: show Grad-CAM, perturbations and attacks on the page.
        engine: see `domainwise.sweeps.runner.make_engine` (default: two worker processes).
    """
    callbacks = callbacks or ReproductionCallbacks()
    folder = Path(output)
    recipe = build_demo(
        algorithms=algorithms,
        radii=radii,
        variant=variant,
        schedule=schedule,
        seed=seed,
        trials=trials,
        pictures=pictures,
    )
    scale = replace(find_scale("cpu", trials), name="demo", about=f"{steps} steps", first_trial=seed)
    plan = plan_recipe(
        recipe,
        scale,
        folder,
        folder / f"{steps}-steps",
        settings={"steps": steps, "record_every": max(1, steps // 4)},
        device="cpu",
        on_data=callbacks.on_data,
    )
    plan = replace(plan, file_name="demo")
    reproduction = run_recipe_plans([plan], SweepFolder(folder), engine=engine, retry_failed=True, callbacks=callbacks)
    for error in reproduction.errors.values():
        raise DomainwiseError(error)
    return reproduction.results[recipe.key]
