"""foolbox: its attacks in our evaluation, and our perturbations as one of its attacks."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from domainwise.errors import DomainwiseError, suggest_install
from domainwise.integrations import check_perturbation, fit_perturbation
from domainwise.perturbations import Perturbation
from domainwise.perturbations.base import Norm

try:
    with warnings.catch_warnings():
        # foolbox 3.3.4 imports a deprecated module of scipy.
        warnings.simplefilter("ignore", DeprecationWarning)
        from eagerpy.astensor import astensor, astensor_
        from foolbox.attacks.base import FixedEpsilonAttack, get_criterion, raise_if_kwargs
        from foolbox.criteria import Misclassification
        from foolbox.distances import l2, linf
        from foolbox.models.pytorch import PyTorchModel
except ImportError as error:
    raise ImportError(f"foolbox is not installed; {suggest_install('foolbox')}") from error


class PerturbationAttack(FixedEpsilonAttack):
    """A perturbation as an attack of foolbox: fit it on batches, then call it as any other.

    It is fitted at its own radius. For smaller epsilons, foolbox clips the perturbed images to them.

    Args:
        perturbation: Any perturbation. One that is kept between batches, such as a `UniversalPerturbation`, is added as
            it is; a sample-wise one is computed for each batch.
        domain: Domain of the images, if the perturbation has several.
        steps: Number of ascent steps per batch.
    """

    def __init__(self, perturbation: Perturbation, *, domain: int | None = None, steps: int = 1) -> None:
        check_perturbation(perturbation)
        self.perturbation = perturbation
        self.domain = domain
        self.steps = steps

    @property
    def distance(self) -> Any:
        return linf if self.perturbation.norm == "linf" else l2

    def fit(self, model: PyTorchModel, batches: Iterable[tuple[Tensor, Tensor]]) -> "PerturbationAttack":
        """Take `steps` ascent steps on each batch of images and labels."""
        self.perturbation.to(model.device)
        fit_perturbation(self.perturbation, model, batches, self.domain, self.steps, model.device)
        return self

    def run(self, model: Any, inputs: Any, criterion: Any, *, epsilon: float, **kwargs: Any) -> Any:
        raise_if_kwargs(kwargs)
        x, restore_type = astensor_(inputs)
        criterion = get_criterion(criterion)
        if not isinstance(criterion, Misclassification):
            raise ValueError(f"PerturbationAttack needs the criterion Misclassification(labels), got {criterion!r}")
        self.perturbation.to(x.raw.device)
        steps = 0 if self.perturbation.is_kept else self.steps
        batch = [(x.raw, criterion.labels.raw)]
        x_adv = fit_perturbation(self.perturbation, model, batch, self.domain, steps, x.raw.device)
        return restore_type(astensor(x_adv))


def adapt_foolbox(attack: Any, norm: Norm) -> Callable[[nn.Module, Tensor, Tensor, float], Tensor]:
    """Return an attack of foolbox as a function of (model, x, y, epsilon), for models of images in [0, 1]."""
    try:
        distance = attack.distance
    except ValueError as error:
        raise DomainwiseError(f"{type(attack).__name__} of foolbox: {error}") from None
    if distance != (linf if norm == "linf" else l2):
        raise DomainwiseError(f"{type(attack).__name__} of foolbox is not an attack in {norm}; give its norm")

    def run(model: nn.Module, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
        wrapped = PyTorchModel(model, bounds=(0, 1), device=x.device)
        _, x_adv, _ = attack(wrapped, x, y, epsilons=epsilon)
        result: Tensor = x_adv
        return result

    return run
