"""From a recipe and a scale to runs: one small sweep per row and dataset, in a folder of its own."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from domainwise.data.dataset import Dataset
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError
from domainwise.explain.corruptions import check_corruptible
from domainwise.reproduction.recipe import Block, Claim, Recipe, Row, Scale
from domainwise.storage.run_folder import RunFolder
from domainwise.sweeps.plan import Plan, plan_sweep
from domainwise.sweeps.spec import SweepSpec
from domainwise.training.registry import DatasetCache, dataset_name, find_algorithm, resolve_config


@dataclass(frozen=True)
class RowPlan:
    """The runs of one row on one dataset, and the rule that selects a model from them."""

    row: Row
    dataset: str
    selection: str
    runs: Plan

    def list_finished(self) -> list[Path]:
        """Return the folders of the finished runs."""
        return [run.folder for run in self.runs if RunFolder(run.folder).is_done]


@dataclass(frozen=True)
class RecipePlan:
    """The runs of a recipe.

    Args:
        folder: where its result is written.
        skipped: datasets that could not be opened, and why.
        file_name: name of the result's files, without suffix.
        is_sequential: trials are added until the claims are decided, so these are judged by a sequential test.
    """

    recipe: Recipe
    scale: Scale
    folder: Path
    row_plans: tuple[RowPlan, ...]
    skipped: Mapping[str, str]
    data_dir: Path | None = None
    file_name: str = "result"
    is_sequential: bool = False

    @property
    def runs(self) -> Plan:
        """All runs, trial by trial; a run that several rows or blocks share is listed once."""
        return merge_plans(row_plan.runs for row_plan in self.row_plans)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims that these runs can decide: both rows are planned, on all datasets of a claim that needs them."""
        planned = {(row_plan.row.name, dataset_name(row_plan.dataset)) for row_plan in self.row_plans}

        def is_planned(claim: Claim, dataset: str) -> bool:
            return {(claim.better, dataset), (claim.worse, dataset)} <= planned

        return tuple(
            claim
            for claim in self.recipe.claims
            for choose in [all if claim.needs_all else any]
            if choose(is_planned(claim, name) for name in claim.datasets or self.recipe.datasets)
        )

    def limit_trials(self) -> "RecipePlan":
        """Return the plan without the runs of trials that no row has begun."""
        started = [run.trial for run in self.runs if RunFolder(run.folder).read_stored_status().state != "pending"]
        last = max(started, default=self.scale.first_trial)
        row_plans = [
            replace(each, runs={run: config for run, config in each.runs.items() if run.trial <= last})
            for each in self.row_plans
        ]
        scale = replace(self.scale, trials=last - self.scale.first_trial + 1)
        return replace(self, row_plans=tuple(row_plans), scale=scale)


def move_recipe(recipe: Recipe, dataset: str) -> Recipe:
    """Return the recipe on another dataset, a name or a path, with the hyperparameters of PACS.

    It has no published values. Claims about the same two rows become one, even if the paper has opposite ones for
    different datasets.
    """
    if not recipe.blocks or any(block.train_domains for block in recipe.blocks):
        raise DomainwiseError(f"{recipe.key} cannot run on another dataset; only tables of methods or settings can")
    rows = (replace(row, space="paper:pacs") if row.space == "paper" else row for row in recipe.rows)
    pairs: dict[frozenset[str], tuple[str, str]] = {}
    for claim in recipe.claims:
        pairs.setdefault(frozenset((claim.better, claim.worse)), (claim.better, claim.worse))
    name = dataset_name(dataset)
    return replace(
        recipe,
        key=f"{recipe.key}-{name}",
        about=f"{recipe.about}; here on {name}",
        published=None,
        note="",
        rows=tuple(rows),
        blocks=(Block((dataset,), "training_domain"),),
        claims=tuple(Claim(f"{better} is above {worse}", better, worse, (name,)) for better, worse in pairs.values()),
    )


def merge_plans(plans: Iterable[Plan]) -> Plan:
    """Return the runs of several plans, trial by trial, each folder once."""
    by_folder = {run.folder: (run, config) for plan in plans for run, config in plan.items()}
    return dict(sorted(by_folder.values(), key=lambda pair: pair[0].trial))


def plan_recipe(
    recipe: Recipe,
    scale: Scale,
    folder: Path,
    runs_folder: Path,
    *,
    data_dir: Path | None = None,
    datasets: Collection[str] = (),
    rows: Collection[str] = (),
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    threads: int | None = None,
    on_data: OnProgress = ignore_progress,
    cache: DatasetCache | None = None,
    is_sequential: bool = False,
) -> RecipePlan:
    """Plan the runs of a recipe.

    Args:
        folder: where the result is written.
        runs_folder: where the runs are; recipes with the same `runs_folder` share runs.
        datasets, rows: the recipe's datasets and rows to run (default: all).
        settings: replace the scale's settings; `weights` only for networks that are not trained from scratch.
        threads: CPU threads per run (default: the engine's).
        cache: builds the datasets; share one between several plans.
        is_sequential: see `RecipePlan`.
    """
    if recipe.kind == "threats" and (scale.draws or 1) > 1:
        raise DomainwiseError(
            f"{recipe.key} has one hyperparameter draw, as no threat may select a model; omit --draws"
        )
    row_plans: list[RowPlan] = []
    skipped: dict[str, str] = {}
    chosen = [row for row in recipe.rows if not rows or row.name in rows]
    for row in chosen:  # before data is read, which may take minutes
        find_algorithm(row.algorithm).Hparams.build(**row.hparams)
    cache = cache or DatasetCache()
    given = {"device": device, "data_dir": data_dir, "threads": threads}
    placement = {name: value for name, value in given.items() if value is not None}
    for block in scale.select_blocks(recipe):
        for dataset in [name for name in block.datasets if not datasets or name in datasets]:
            run_settings = _merge_settings(scale, dataset, settings or {})
            try:
                config = SweepSpec((dataset,), ("erm",), settings=run_settings).make_config(dataset, "erm", **placement)
                built = cache.build(config, on_data)
                if recipe.kind == "threats":
                    check_corruptible(built.image_shape)
            except DomainwiseError as error:
                skipped[dataset] = str(error)
                continue
            test_domains = _choose_test_domains(block, scale, built)
            for row in chosen:
                spec = _build_spec(block, row, dataset, scale, run_settings, test_domains)
                subfolder = _name_runs(row, spec, block, _resolve_defaults(spec, row, placement, cache))
                plan = plan_sweep(
                    spec,
                    runs_folder / subfolder,
                    first_trial=scale.first_trial,
                    placement={**placement, "keep_perturbations": row.keep_perturbations},
                    on_data=on_data,
                    datasets=cache,
                )
                runs = {replace(run, name=f"{subfolder}/{run.name}"): config for run, config in plan.items()}
                row_plans.append(RowPlan(row, dataset, block.selection, runs))
    return RecipePlan(recipe, scale, folder, tuple(row_plans), skipped, data_dir, is_sequential=is_sequential)


def _merge_settings(scale: Scale, dataset: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a sweep, where the image size is an option of the dataset."""
    settings = scale.get_settings(dataset)
    is_pretrained = settings.get("weights", "none") != "none"
    settings |= {name: value for name, value in overrides.items() if name != "weights" or is_pretrained}
    image_size = settings.pop("image_size", None)
    if image_size is not None:
        settings["dataset_options"] = {**settings.get("dataset_options", {}), "image_size": image_size}
    return settings


def _choose_test_domains(block: Block, scale: Scale, built: Dataset) -> tuple[str, ...]:
    """Return the domains to hold out in turn (empty: all)."""
    if block.test_domains or block.train_domains or not scale.is_one_cell:
        return block.test_domains
    return tuple(domain.name for domain in built.domains if domain.role in (None, "test"))[:1]


def _build_spec(
    block: Block, row: Row, dataset: str, scale: Scale, settings: Mapping[str, Any], test_domains: tuple[str, ...]
) -> SweepSpec:
    train_domains = {"train_domains": block.train_domains} if block.train_domains else {}
    return SweepSpec(
        datasets=(dataset,),
        algorithms=(row.algorithm,),
        selection=(block.selection,),
        draws=scale.draws or block.draws,
        trials=scale.first_trial + scale.trials,
        space=row.space,
        test_domains=test_domains,
        hparams=row.hparams,
        settings={**settings, **train_domains, **row.settings},
    )


def _name_runs(row: Row, spec: SweepSpec, block: Block, defaults: Mapping[str, Any]) -> str:
    """Name the runs of a row by what they are: what several recipes have in common under any name is run once."""
    values = {**row.settings, **row.hparams}
    if spec.draws == 1:  # nothing is drawn, so a value that is the default anyway makes no difference
        values = {name: value for name, value in values.items() if value != defaults[name]}
    parts = [row.algorithm, *(f"{name}_{value}" for name, value in sorted(values.items()))]
    parts += [f"from_{name}" for name in block.train_domains]
    return "-".join(parts).replace(" ", "_").replace("/", "-")  # a radius may be 1/255 rms


def _resolve_defaults(spec: SweepSpec, row: Row, placement: Mapping[str, Any], cache: DatasetCache) -> dict[str, Any]:
    """Return every setting and hyperparameter of the row's first draw if the row fixed none."""
    settings = {name: value for name, value in spec.settings.items() if name not in row.settings}
    plain = replace(spec, draws=1, trials=1, hparams={}, settings=settings)
    config = next(iter(plan_sweep(plain, Path(), placement=placement, datasets=cache).values()))
    resolved, _ = resolve_config(config, cache.build(config))
    return {**vars(resolved), **resolved.hparams}
