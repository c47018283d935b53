"""What trained models attend to, what their perturbations look like, and how they fare under attack."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from domainwise.explain.attention import measure_attention, measure_object_attention, tabulate_attention
    from domainwise.explain.gradcam import compute_gradcam, find_target_layer
    from domainwise.explain.perturbations import measure_ranks, read_perturbation_history, summarize_perturbation
    from domainwise.explain.plots.accuracy import plot_accuracy, plot_accuracy_by_epsilon, plot_robustness
    from domainwise.explain.plots.gradcam import plot_gradcam, sample_examples
    from domainwise.explain.plots.perturbations import plot_components, plot_perturbation, plot_ranks
    from domainwise.explain.robustness import attack_run, average_by_epsilon, read_accuracy_by_epsilon
    from domainwise.explain.runs import attack_runs, explain_runs, plot_perturbations, summarize_perturbations

_MODULES = {
    "attention": ("measure_attention", "measure_object_attention", "tabulate_attention"),
    "gradcam": ("compute_gradcam", "find_target_layer"),
    "perturbations": ("measure_ranks", "read_perturbation_history", "summarize_perturbation"),
    "plots.accuracy": ("plot_accuracy", "plot_accuracy_by_epsilon", "plot_robustness"),
    "plots.gradcam": ("plot_gradcam", "sample_examples"),
    "plots.perturbations": ("plot_components", "plot_perturbation", "plot_ranks"),
    "robustness": ("attack_run", "average_by_epsilon", "read_accuracy_by_epsilon"),
    "runs": ("attack_runs", "explain_runs", "plot_perturbations", "summarize_perturbations"),
}

__all__ = [
    "attack_run",
    "attack_runs",
    "average_by_epsilon",
    "compute_gradcam",
    "explain_runs",
    "find_target_layer",
    "measure_attention",
    "measure_object_attention",
    "measure_ranks",
    "plot_accuracy",
    "plot_accuracy_by_epsilon",
    "plot_components",
    "plot_gradcam",
    "plot_perturbation",
    "plot_perturbations",
    "plot_ranks",
    "plot_robustness",
    "read_accuracy_by_epsilon",
    "read_perturbation_history",
    "sample_examples",
    "summarize_perturbation",
    "summarize_perturbations",
    "tabulate_attention",
]


def __getattr__(name: str) -> Any:
    """Import a function when it is first used, because torch and matplotlib take seconds."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"domainwise.explain.{module}"), name)
    raise AttributeError(f"module 'domainwise.explain' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
