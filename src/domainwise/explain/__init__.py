"""What trained models attend to, what their perturbations look like, and their accuracy under attack and corruption."""

from typing import TYPE_CHECKING

from domainwise.lazy import export_lazily

if TYPE_CHECKING:
    from domainwise.explain.attention import measure_attention, measure_object_attention, tabulate_attention
    from domainwise.explain.corruption_errors import measure_corruptions, summarize_corruptions
    from domainwise.explain.corruptions import corrupt_images
    from domainwise.explain.features import embed_features, map_features, probe_features
    from domainwise.explain.gradcam import compute_gradcam, find_target_layer
    from domainwise.explain.perturbations import measure_ranks, read_perturbation_history, summarize_perturbation
    from domainwise.explain.plots.accuracy import plot_accuracy, plot_accuracy_by_epsilon, plot_robustness
    from domainwise.explain.plots.corruptions import plot_corruptions
    from domainwise.explain.plots.features import plot_features
    from domainwise.explain.plots.gradcam import plot_gradcam, sample_examples
    from domainwise.explain.plots.perturbations import plot_components, plot_perturbation, plot_ranks
    from domainwise.explain.robustness import attack_run, average_attacks, average_by_epsilon, read_accuracy_by_epsilon
    from domainwise.explain.runs import (
        attack_runs,
        corrupt_runs,
        explain_features,
        explain_runs,
        plot_perturbations,
        summarize_perturbations,
    )

__all__ = [
    "attack_run",
    "attack_runs",
    "average_attacks",
    "average_by_epsilon",
    "compute_gradcam",
    "corrupt_images",
    "corrupt_runs",
    "embed_features",
    "explain_features",
    "explain_runs",
    "find_target_layer",
    "map_features",
    "measure_attention",
    "measure_corruptions",
    "measure_object_attention",
    "measure_ranks",
    "plot_accuracy",
    "plot_accuracy_by_epsilon",
    "plot_components",
    "plot_corruptions",
    "plot_features",
    "plot_gradcam",
    "plot_perturbation",
    "plot_perturbations",
    "plot_ranks",
    "plot_robustness",
    "probe_features",
    "read_accuracy_by_epsilon",
    "read_perturbation_history",
    "sample_examples",
    "summarize_corruptions",
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
        "embed_features": "features",
        "explain_features": "runs",
        "corrupt_images": "corruptions",
        "corrupt_runs": "runs",
        "explain_runs": "runs",
        "find_target_layer": "gradcam",
        "map_features": "features",
        "measure_attention": "attention",
        "measure_corruptions": "corruption_errors",
        "measure_object_attention": "attention",
        "measure_ranks": "perturbations",
        "plot_accuracy": "plots.accuracy",
        "plot_accuracy_by_epsilon": "plots.accuracy",
        "plot_components": "plots.perturbations",
        "plot_features": "plots.features",
        "plot_corruptions": "plots.corruptions",
        "plot_gradcam": "plots.gradcam",
        "plot_perturbation": "plots.perturbations",
        "plot_perturbations": "runs",
        "plot_ranks": "plots.perturbations",
        "plot_robustness": "plots.accuracy",
        "probe_features": "features",
        "read_accuracy_by_epsilon": "robustness",
        "read_perturbation_history": "perturbations",
        "sample_examples": "plots.gradcam",
        "summarize_corruptions": "corruption_errors",
        "summarize_perturbation": "perturbations",
        "summarize_perturbations": "runs",
        "tabulate_attention": "attention",
    },
)


def __dir__() -> list[str]:
    return __all__
