"""What trained models attend to, what their perturbations look like, and how they fare under attack."""

from typing import TYPE_CHECKING

from domainwise.lazy import export_lazily

if TYPE_CHECKING:
    from domainwise.explain.attention import measure_attention, measure_object_attention, tabulate_attention
    from domainwise.explain.gradcam import compute_gradcam, find_target_layer
    from domainwise.explain.perturbations import measure_ranks, read_perturbation_history, summarize_perturbation
    from domainwise.explain.plots.accuracy import plot_accuracy, plot_accuracy_by_epsilon, plot_robustness
    from domainwise.explain.plots.gradcam import plot_gradcam, sample_examples
    from domainwise.explain.plots.perturbations import plot_components, plot_perturbation, plot_ranks
    from domainwise.explain.robustness import attack_run, average_attacks, average_by_epsilon, read_accuracy_by_epsilon
    from domainwise.explain.runs import attack_runs, explain_runs, plot_perturbations, summarize_perturbations

__all__ = [
    "attack_run",
    "attack_runs",
    "average_attacks",
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

__getattr__ = export_lazily(
    __name__,
    {
        "attack_run": "robustness",
        "attack_runs": "runs",
        "average_attacks": "robustness",
        "average_by_epsilon": "robustness",
        "compute_gradcam": "gradcam",
        "explain_runs": "runs",
        "find_target_layer": "gradcam",
        "measure_attention": "attention",
        "measure_object_attention": "attention",
        "measure_ranks": "perturbations",
        "plot_accuracy": "plots.accuracy",
        "plot_accuracy_by_epsilon": "plots.accuracy",
        "plot_components": "plots.perturbations",
        "plot_gradcam": "plots.gradcam",
        "plot_perturbation": "plots.perturbations",
        "plot_perturbations": "runs",
        "plot_ranks": "plots.perturbations",
        "plot_robustness": "plots.accuracy",
        "read_accuracy_by_epsilon": "robustness",
        "read_perturbation_history": "perturbations",
        "sample_examples": "plots.gradcam",
        "summarize_perturbation": "perturbations",
        "summarize_perturbations": "runs",
        "tabulate_attention": "attention",
    },
)


def __dir__() -> list[str]:
    return __all__
