"""The paper's tables, figures and theorem, and the demo, as recipes: run, compared with the paper and judged."""

from typing import TYPE_CHECKING

from domainwise.lazy import export_lazily

if TYPE_CHECKING:
    from domainwise.reproduction.comparison import ClaimVerdict
    from domainwise.reproduction.demo import run_demo
    from domainwise.reproduction.method_study import Study, study
    from domainwise.reproduction.recipe import (
        Recipe,
        Scale,
        estimate_cost,
        find_recipe,
        find_scale,
        list_paper_recipes,
        load_recipes,
    )
    from domainwise.reproduction.results import RecipeResult
    from domainwise.reproduction.runner import Reproduction, ReproductionCallbacks, plan_recipes, reproduce

__all__ = [
    "ClaimVerdict",
    "Recipe",
    "RecipeResult",
    "Reproduction",
    "ReproductionCallbacks",
    "Scale",
    "Study",
    "estimate_cost",
    "find_recipe",
    "find_scale",
    "list_paper_recipes",
    "load_recipes",
    "plan_recipes",
    "reproduce",
    "run_demo",
    "study",
]

__getattr__ = export_lazily(
    __name__,
    {
        "ClaimVerdict": "comparison",
        "Recipe": "recipe",
        "RecipeResult": "results",
        "Reproduction": "runner",
        "ReproductionCallbacks": "runner",
        "Scale": "recipe",
        "Study": "method_study",
        "estimate_cost": "recipe",
        "find_recipe": "recipe",
        "find_scale": "recipe",
        "list_paper_recipes": "recipe",
        "load_recipes": "recipe",
        "plan_recipes": "runner",
        "reproduce": "runner",
        "run_demo": "demo",
        "study": "method_study",
    },
)


def __dir__() -> list[str]:
    return __all__
