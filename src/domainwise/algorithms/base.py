"""The interface of all methods, and helpers to look at one batch per domain as one batch or domain by domain."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Adam, Optimizer

from domainwise.algorithms.sharpness import Sharpness
from domainwise.errors import DomainwiseError
from domainwise.hparams import Hparams as CommonHparams
from domainwise.networks import Network
from domainwise.networks.finetuning import find_lr_scales
from domainwise.perturbations.device import send_to
from domainwise.perturbations.distributed import average_gradients_

# One (x, y) per training domain, in order; a domain may have no samples.
Batches = Sequence[tuple[Tensor, Tensor]]
# What a step minimizes, and what the update reports: `loss`, the cross-entropy, and the method's own terms.
Objective = tuple[Tensor, dict[str, Tensor]]
# A float, or a tensor that becomes one when it is read.
Number = float | Tensor
Group = Literal["adversarial", "invariance", "alignment", "meta-learning", "augmentation", "optimization"]
# What the methods of a group have in common, in the order of lists.
GROUPS: Mapping[Group, str] = {
    "adversarial": "train on worst-case perturbations of the images",
    "invariance": "aim at the same losses, gradients or predictors in all domains",
    "alignment": "make features look the same in all domains",
    "meta-learning": "rehearse the change of domain in every update",
    "augmentation": "mix, mask or restyle images or features",
    "optimization": "change how weights are updated or regularized",
}


class Measurements(Mapping[str, float]):
    """What an update measured, by name. Floats that are read from the device when they are first looked at.

    To read them at once, after every update, would let the device wait for the host.
    """

    def __init__(self, **numbers: Number) -> None:
        self.numbers = {name: measure(each) for name, each in numbers.items()}

    def __getitem__(self, name: str) -> float:
        return read_measurements([self])[0][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return repr(dict(self))


def measure(number: Number) -> Number:
    """Return a copy of the number in double precision: a float if reading is free, on the CPU; otherwise a tensor."""
    if not isinstance(number, Tensor):
        return number
    if number.device.type == "cpu":
        return number.item()
    # Apple GPUs have no double precision.
    dtype = torch.float32 if number.device.type == "mps" else torch.float64
    return number.detach().reshape(()).to(dtype, copy=True)


def read_measurements(measurements: Iterable[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return what several updates measured as plain floats. The device is waited for once."""
    numbers = [each.numbers if isinstance(each, Measurements) else dict(each) for each in measurements]
    unread = [(each, name) for each in numbers for name, value in each.items() if isinstance(value, Tensor)]
    if unread:
        values = torch.stack([cast(Tensor, each[name]) for each, name in unread]).tolist()
        for (each, name), value in zip(unread, values, strict=True):
            each[name] = value
    return [cast(dict[str, float], dict(each)) for each in numbers]


class Algorithm(nn.Module, ABC):
    """A training method for `network`. Its `state_dict` is complete, so training resumes from it exactly.

    Subclasses implement `update`. Those with parameters, buffers or optimizers of their own create them in `setup`.

    Args:
        network: Maps images in [0, 1] to logits.
        num_domains: Number of training domains.
        input_shape: Shape of one image. Taken from the network by default.
        domain_sizes: Number of images per training domain, for methods that add images to it.
        num_steps: Number of updates in the whole training, for methods that follow a schedule over it. None: unknown,
            and such schedules are off.
        augment: Maps a batch of images to another view of them, for methods that compare two views.
        generator: Source of all random draws other than the network's own.
        sharpness: Take each step with the gradient at the worst nearby weights (SAM, SAGM). Not all methods support it.
        hparams: Hyperparameters by name, i.e. fields of the method's `Hparams`.
    """

    Hparams: ClassVar[type[CommonHparams]] = CommonHparams
    # Methods are listed by group; required for those in `ALGORITHMS`.
    group: ClassVar[Group]
    # The publication, and the smallest number of training domains that the method is meaningful for.
    source: ClassVar[str] = ""
    min_domains: ClassVar[int] = 1
    # Whether every step of the network goes through `minimize_`, so that SAM can repeat it at other weights.
    supports_sharpness: ClassVar[bool] = False
    # Settings of `RunConfig` that belong to the method; what a run sets itself takes precedence.
    run_defaults: ClassVar[Mapping[str, Any]] = {}
    # Whether the method accesses the network's featurizer and classifier separately.
    needs_features: ClassVar[bool] = False
    # Whether `descend_` computes all gradients that move the network, so that fp16 can scale its losses.
    supports_scaling: ClassVar[bool] = True

    def __init__(
        self,
        network: nn.Module,
        *,
        num_domains: int,
        input_shape: Sequence[int] | None = None,
        domain_sizes: Sequence[int] | None = None,
        num_steps: int | None = None,
        augment: Callable[[Tensor], Tensor] | None = None,
        generator: torch.Generator | None = None,
        sharpness: Sharpness | None = None,
        **hparams: Any,
    ) -> None:
        super().__init__()
        method = type(self).__name__
        if num_domains < self.min_domains:
            raise ValueError(
                f"{method} compares domains and needs at least {self.min_domains} training domains, got {num_domains}"
            )
        self.network = require_features(network, method) if self.needs_features else network
        self.num_domains = num_domains
        self.domain_sizes = domain_sizes
        self.num_steps = num_steps
        self.augment = augment
        self.generator = generator
        self.sharpness = sharpness
        self.hparams = self.Hparams.build(**hparams)
        shape = input_shape if input_shape is not None else getattr(network, "input_shape", None)
        self.input_shape = None if shape is None else tuple(shape)
        self.updates = 0  # counted by methods that follow a schedule
        # What all learning rates are multiplied by, for schedules.
        self.lr_factor = 1.0
        # Scales losses so that their gradients do not underflow in half precision (fp16).
        self.scaler: GradScaler | None = None
        # Seed of dropout, and whatever else the network itself draws in an update; None leaves torch's state alone.
        self.dropout_seed: int | None = None
        self.optimizer: Optimizer = self.build_optimizer(network.parameters())
        self.setup()
        if self.sharpness is not None and not self.supports_sharpness:
            raise ValueError(f"{method} cannot be combined with SAM or SAGM: its update is not one step on one loss")

    def setup(self) -> None:
        """Create what the method needs besides the network; called at the end of `__init__`."""

    @property
    def is_exact_over_ranks(self) -> bool:
        """Whether several ranks with equal shares of every domain's batch train like one with the full batch.

        Up to random draws. It is False for methods that compare the images of a batch, as each rank sees only its own.
        """
        return False

    @property
    def is_warming_up(self) -> bool:
        """Whether the method has not begun to train the whole network; learning-rate schedules wait for it."""
        return False

    @abstractmethod
    def update(self, batches: Batches) -> Mapping[str, float]:
        """Perform one update from one (x, y) per domain and return what it measured.

        `loss` is the cross-entropy that was minimized, so that methods can be compared; a method's own terms are
        separate entries. `Measurements(loss=loss)` takes tensors and reads them from the device on first access. A dict
        of floats works too, but creating it synchronizes with the device.
        """

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits (b, num_classes), computed in eval mode."""
        with eval_mode(self):
            logits: Tensor = self.network(x)
            return logits

    def describe(self) -> dict[str, Any]:
        """Return what a record should contain about the method's own state, ready for JSON."""
        return {}

    def build_optimizer(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float | None = None,
        weight_decay: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> Adam:
        """Return an Adam optimizer. By default, `lr` and `weight_decay` are the hyperparameters of that name.

        If the network's learning rates depend on the depth, there is one parameter group per rate.
        """
        lr = self.hparams.lr if lr is None else lr
        scales = find_lr_scales(self)
        groups: dict[float, list[nn.Parameter]] = {}
        for parameter in parameters:
            groups.setdefault(scales.get(parameter, 1.0), []).append(parameter)
        return Adam(
            [{"params": each, "lr": scale * lr} for scale, each in groups.items()],
            lr=lr,
            betas=betas,
            weight_decay=self.hparams.weight_decay if weight_decay is None else weight_decay,
            fused=True,
        )

    def descend_(self, loss: Tensor, *optimizers: Optimizer) -> None:
        """Take one descent step on the loss with each optimizer; by default, with the network's."""
        optimizers = optimizers or (self.optimizer,)
        for optimizer in optimizers:
            optimizer.zero_grad()
        if self.scaler is None:
            loss.backward()
            for optimizer in optimizers:
                self.step_(optimizer)
            return
        self.scaler.scale(loss).backward()
        stepped = [self.step_(optimizer, is_scaled=True) for optimizer in optimizers]
        if any(stepped):
            self.scaler.update()

    def minimize_(self, compute: Callable[[], Objective]) -> Measurements:
        """Take one step on the loss that `compute` returns, and return what it reports."""
        if self.sharpness is None:
            loss, measurements = compute()
            self.descend_(loss)
        else:
            measurements = self.sharpness.descend_(self, compute)
        return Measurements(**measurements)

    def seed_dropout_(self, index: int = 0) -> None:
        """Let the next pass through the network draw the dropout that every other method has in this update.

        Methods with a pass before the one that trains call it in between, with the index of the pass that trains.
        """
        if self.dropout_seed is not None:
            seed = self.dropout_seed + index
            # Where CUDA is not in use, `torch.manual_seed` also stores the call stack as text, in one or two ms.
            if next(self.network.parameters()).device.type == "cpu":
                torch.default_generator.manual_seed(seed)
            else:
                torch.manual_seed(seed)

    def scale_losses_(self, scaler: GradScaler) -> None:
        """Scale the losses of all steps from now on, for training in fp16; the scaler becomes a part of the state."""
        if not self.supports_scaling or self.sharpness is not None:
            raise self._scaling_error()
        self.scaler = scaler

    def _scaling_error(self) -> DomainwiseError:
        method = "SAM" if self.sharpness is not None else type(self).__name__
        return DomainwiseError(f"{method} computes gradients of its own and does not support fp16; use bf16 or fp32")

    def apply_gradients_(self, gradients: Iterable[Tensor]) -> None:
        """Take one step of the network's optimizer along the given gradients of its trainable parameters."""
        for parameter, gradient in zip(trainable_parameters(self.network).values(), gradients, strict=True):
            # Fused Adam reads both in the order of memory, so their layouts must be the same.
            is_aligned = gradient.stride() == parameter.stride()
            parameter.grad = gradient if is_aligned else torch.empty_like(parameter).copy_(gradient)
        self.step_(self.optimizer)

    def step_(self, optimizer: Optimizer, *, is_scaled: bool = False) -> bool:
        """Average the gradients over ranks and step. All optimizer steps of all methods go through here.

        Args:
            is_scaled: The gradients are those of a loss that `scaler` has scaled. If one is infinite or not a number,
                nothing changes; the averages are the same on all ranks, and so is the decision.

        Returns:
            Whether there are gradients to step along.
        """
        if self.scaler is not None and not is_scaled:
            raise self._scaling_error()
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        average_gradients_(parameters)
        for group in optimizer.param_groups:
            if self.lr_factor != 1 or "initial_lr" in group:
                group["lr"] = self.lr_factor * group.setdefault("initial_lr", group["lr"])
        has_gradients = any(parameter.grad is not None for parameter in parameters)
        if self.scaler is None:
            optimizer.step()
        elif has_gradients:
            self.scaler.step(optimizer)
        return has_gradients

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers().items()},
            "generator": None if self.generator is None else self.generator.get_state(),
            "updates": self.updates,
            **({} if self.scaler is None else {"scaler": self.scaler.state_dict()}),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        if type(state["updates"]) is not int or state["updates"] < 0:
            raise ValueError(f"updates must be an integer of at least 0, got {state['updates']!r}")
        for name, optimizer in self.optimizers().items():
            optimizer.load_state_dict(state["optimizers"][name])
            _check_shapes(name, optimizer)
        if self.generator is not None and state["generator"] is not None:
            self.generator.set_state(state["generator"].cpu())
        self.updates = state["updates"]
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])

    def optimizers(self) -> dict[str, Optimizer]:
        """Return every attribute that is an optimizer, so that none can be missing from the state."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Optimizer)}


def _check_shapes(name: str, optimizer: Optimizer) -> None:
    """Raise an error unless the state fits the parameters, which torch does not check: fused Adam would crash."""
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.ndim and value.shape != parameter.shape:
                shapes = f"{tuple(value.shape)}, not {tuple(parameter.shape)}"
                raise ValueError(f"{key} of {name} has shape {shapes}")


class LossAlgorithm(Algorithm):
    """A method whose update is one descent step on one loss. Subclasses implement `compute_loss`."""

    supports_sharpness = True

    @abstractmethod
    def compute_loss(self, batches: Batches) -> Objective:
        """Return the loss of one update, and what it reports. SAM calls this twice per update."""

    def begin_update_(self) -> None:
        """Do what happens once per update, before the loss is computed; `updates` is the number of updates so far."""

    def update(self, batches: Batches) -> Mapping[str, float]:
        self.begin_update_()
        measurements = self.minimize_(lambda: self.compute_loss(batches))
        self.updates += 1
        return measurements


def nonempty_batches(batches: Batches, num_domains: int) -> list[tuple[Tensor, Tensor]]:
    """Return the batches that have samples, after checking that there is one batch per domain."""
    if len(batches) != num_domains:
        raise ValueError(f"update() expects one (x, y) per domain: {num_domains}, got {len(batches)}")
    nonempty = [(x, y) for x, y in batches if len(y)]
    if not nonempty:
        raise ValueError("update() expects at least one sample")
    return nonempty


def nonempty_domains(batches: Batches, device: torch.device) -> Tensor:
    """Return the indices of the domains that have samples, in the order of `split_by_domain`."""
    return send_to(device, torch.tensor([index for index, (_, y) in enumerate(batches) if len(y)]))


def concatenate_batches(batches: Batches, num_domains: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the images, labels and domain indices of all domains as one batch."""
    nonempty_batches(batches, num_domains)
    x = torch.cat([x for x, _ in batches])
    y = torch.cat([y for _, y in batches])
    return x, y, send_to(x.device, repeat_indices([len(labels) for _, labels in batches]))


def repeat_indices(sizes: Sequence[int]) -> Tensor:
    """Return the index of each of several groups, as often as the group is large, (sum of sizes,), on the CPU."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def split_by_domain(values: Tensor, batches: Batches) -> list[Tensor]:
    """Split values of the concatenated batch, (b, ...), into one tensor per domain that has samples."""
    return [part for part in values.split([len(y) for _, y in batches]) if len(part)]


def mean_per_domain(values: Tensor, batches: Batches) -> Tensor:
    """Return the mean over each domain's samples, (domains that have samples, ...)."""
    return torch.stack([part.mean(0) for part in split_by_domain(values, batches)])


def require_features(network: nn.Module, method: str) -> Network:
    """Return the network if it has a featurizer and a classifier; raise an error otherwise."""
    for part in ("featurizer", "classifier", "num_features"):
        if not hasattr(network, part):
            raise ValueError(
                f"{method} works on features, but its network has no {part}; use a domainwise.networks.Network"
            )
    return cast(Network, network)


def build_head(network: Network, method: str, num_features: int) -> nn.Linear:
    """Return a new linear classifier from `num_features` features to the classes of the network's own."""
    if not isinstance(network.classifier, nn.Linear):
        kind = type(network.classifier).__name__
        raise ValueError(f"{method} adds a linear classifier and needs a network whose own is linear, got {kind}")
    return nn.Linear(num_features, network.classifier.out_features, **factory_kwargs(network))


@torch.no_grad()
def count_classes(network: Network) -> int:
    """Return the number of classes, which is the number of the classifier's outputs."""
    features = torch.zeros(1, network.num_features, **factory_kwargs(network))
    with eval_mode(network.classifier):
        return int(network.classifier(features).shape[1])


def factory_kwargs(network: nn.Module) -> dict[str, Any]:
    """Return the device and dtype of the network, for new tensors that are combined with its outputs."""
    parameter = next(network.parameters())
    return {"device": parameter.device, "dtype": parameter.dtype}


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Switch the module to eval mode. On exit each part gets its own mode back, as some layers may be frozen."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training


def trainable_parameters(network: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that require gradients, by name."""
    return {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}


def compute_gradients(loss: Tensor, parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradient of the loss with respect to each parameter, zero if the loss does not depend on it."""
    return list(torch.autograd.grad(loss, list(parameters), materialize_grads=True))
