"""Published classification models of torchvision and timm: as featurizers, or whole, with the classes of ImageNet."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as AnyBatchNorm

from domainwise.errors import DomainwiseError, suggest_install, unknown_choice
from domainwise.networks.network import Network, Normalize
from domainwise.networks.weights import (
    is_weights_file,
    load_except_head,
    load_published_weights,
    mismatch_error,
    read_weights,
)

BatchNorm = Literal["frozen", "live"]

TIMM = "timm:"
TORCHVISION = "torchvision:"
NUM_IMAGENET_CLASSES = 1000
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# Auxiliary heads, used only to train the original, are left out of the network and of its weights.
_AUXILIARY = ("aux1", "aux2", "AuxLogits")
_SETTINGS: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "transform_input": True, "init_weights": False},
    "inception_v3": {"aux_logits": False, "transform_input": True, "init_weights": False},
}


class Backbone(nn.Module):
    """A published model without its last layer: maps images in [0, 1] to features, (b, num_features).

    Args:
        model: The model, whose last layer has been removed.
        mean, std: Statistics that images are normalized with, per channel.
        dropout: Dropout probability after the last layer.
        batch_norm: `frozen` keeps the statistics and trains scales and shifts; `live` updates the statistics as well.
    """

    def __init__(
        self, model: nn.Module, *, mean: Sequence[float], std: Sequence[float], dropout: float, batch_norm: BatchNorm
    ) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.model = model
        self.dropout = nn.Dropout(dropout)
        self.batch_norm = batch_norm

    def train(self, mode: bool = True) -> "Backbone":
        super().train(mode)
        for module in self.modules():
            is_frozen = self.batch_norm == "frozen" or getattr(module, "keeps_statistics", False)
            if isinstance(module, AnyBatchNorm) and is_frozen:
                module.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.dropout(self.model(self.normalize(x)).flatten(1))
        return features


def build_backbone(
    name: str,
    input_shape: Sequence[int],
    num_classes: int,
    dropout: float = 0.0,
    *,
    weights: str = "none",
    batch_norm: BatchNorm = "live",
) -> Network:
    """Build a backbone with a new classifier on top.

    Args:
        name: Name of a torchvision model, or `timm:` and the name of a timm model.
        input_shape: Shape of one image.
        num_classes: Number of classes.
        dropout: Dropout probability before the classifier.
        weights: `none`, a file, a name of torchvision's published weights, or `pretrained` for timm's.
        batch_norm: As for `Backbone`.
    """
    if len(input_shape) != 3 or input_shape[0] != 3:
        raise DomainwiseError(f"{name} needs images with three channels, got shape {tuple(input_shape)}")
    build = _build_timm_model if name.startswith(TIMM) else _build_torchvision_model
    try:
        model, (mean, std) = build(name, tuple(input_shape), weights)
        featurizer = Backbone(model, mean=mean, std=std, dropout=dropout, batch_norm=batch_norm)
        num_features = _count_features(featurizer, input_shape)
    except DomainwiseError:
        raise
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        size = f"{input_shape[1]} x {input_shape[2]}"
        raise DomainwiseError(f"{name} does not support images of {size}: {str(error).splitlines()[0]}") from error
    classifier = nn.Linear(num_features, num_classes)
    return Network(featurizer, classifier, input_shape=input_shape, num_features=num_features)


@dataclass(frozen=True)
class PublishedClassifier:
    """A classifier as it was published, and the preprocessing that its published accuracy was measured with.

    Args:
        model: Maps images in [0, 1] to logits, in eval mode.
        size: Side length of its images, which are cut out of the center of the resized ones.
        resize: Length of their shorter side before that.
        interpolation: `bilinear` or `bicubic`.
        keeps_aspect: Whether the longer side stays longer.
    """

    model: nn.Module
    size: int
    resize: int
    interpolation: str
    keeps_aspect: bool = True


def is_published_classifier(name: object) -> bool:
    """Return whether a model is given as `torchvision:...` or `timm:...`."""
    return isinstance(name, str) and name.startswith((TORCHVISION, TIMM))


def load_published_classifier(name: str, weights: str | None = None) -> PublishedClassifier:
    """Load a classifier of ImageNet's 1,000 classes.

    Args:
        name: `torchvision:` or `timm:`, and the name of the model.
        weights: a file, a name of torchvision's published weights, or `pretrained` for timm's (default: the weights
            that torchvision or timm recommends).
    """
    if weights == "none":
        raise DomainwiseError(f"{name} can only be evaluated with weights: a file, or the name of published ones")
    load = _load_timm_classifier if name.startswith(TIMM) else _load_torchvision_classifier
    classifier = load(name, weights)
    with torch.no_grad():
        count = classifier.model.eval()(torch.zeros(1, 3, classifier.size, classifier.size)).shape[1]
    if count != NUM_IMAGENET_CLASSES:
        raise DomainwiseError(f"{name} has {count} outputs; expected the {NUM_IMAGENET_CLASSES:,} classes of ImageNet")
    return classifier


def _load_torchvision_classifier(name: str, weights: str | None) -> PublishedClassifier:
    import torchvision

    own_name = _check_torchvision_name(name.removeprefix(TORCHVISION))
    published = torchvision.models.get_model_weights(own_name)
    weights = weights or published.DEFAULT.name
    # A file has the name that it was published with, or is assumed to go with the first weights of the model.
    names = {each.url.rpartition("/")[2]: each.name for each in published}
    known = names.get(Path(weights).name, next(iter(published)).name) if is_weights_file(weights) else weights
    preset = published[known if known in published.__members__ else published.DEFAULT.name].transforms()
    size, resize = preset.crop_size[0], preset.resize_size[0]
    model = _create_torchvision_model(own_name, (size, size))
    _load_torchvision_weights(model, own_name, weights, size)
    return PublishedClassifier(
        nn.Sequential(Normalize(preset.mean, preset.std), model), size, resize, preset.interpolation.value
    )


def _load_timm_classifier(name: str, weights: str | None) -> PublishedClassifier:
    model = _create_timm_model(name, weights or "pretrained")
    from timm.data.config import resolve_data_config

    config: Any = resolve_data_config(model=model)  # type: ignore[no-untyped-call]
    size = config["input_size"][1]
    if config["crop_mode"] not in ("center", "squash"):
        raise DomainwiseError(f"{name} was published with crop mode {config['crop_mode']!r}, which is not supported")
    return PublishedClassifier(
        nn.Sequential(Normalize(config["mean"], config["std"]), model),
        size,
        int(size / config["crop_pct"]),
        config["interpolation"],
        keeps_aspect=config["crop_mode"] == "center",
    )


def is_backbone(name: str) -> bool:
    return name.startswith(TIMM) or name in list_backbones()


@cache
def list_backbones() -> tuple[str, ...]:
    """Return the names of torchvision's classification models."""
    # Imported here because it takes a second, and most commands do not need it.
    import torchvision

    return tuple(torchvision.models.list_models(module=torchvision.models))


Statistics = tuple[Sequence[float], Sequence[float]]


def _build_torchvision_model(name: str, input_shape: tuple[int, ...], weights: str) -> tuple[nn.Module, Statistics]:
    model = _create_torchvision_model(name, input_shape[1:])
    head = _remove_head(model)
    if weights != "none":
        _load_torchvision_weights(model, name, weights, input_shape[1], heads=(head,))
    return model, _IMAGENET


def _create_torchvision_model(name: str, size: tuple[int, ...]) -> nn.Module:
    import torchvision

    settings = dict(_SETTINGS.get(_check_torchvision_name(name), {}))
    if name.startswith("vit_"):
        settings["image_size"] = size[0]
    if name.startswith("maxvit"):
        settings["input_size"] = size
    model: nn.Module = torchvision.models.get_model(name, weights=None, **settings)
    return model


def _check_torchvision_name(name: str) -> str:
    if name not in list_backbones():
        raise unknown_choice("torchvision model", name, list_backbones())
    return name


def _load_torchvision_weights(
    model: nn.Module, name: str, weights: str, image_size: int, heads: Sequence[str] = ()
) -> None:
    from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

    state = read_weights(Path(weights)) if is_weights_file(weights) else load_published_weights(name, weights)
    if isinstance(model, VisionTransformer) and "encoder.pos_embedding" in state:
        state = interpolate_embeddings(image_size, model.patch_size, dict(state))
    load_except_head(model, state, heads=(*heads, *_AUXILIARY), weights=weights, name=name)


def _remove_head(model: nn.Module) -> str:
    """Remove the last layer and the dropout before it, which ours replaces, and return the layer's name."""
    layers: list[str] = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    # SqueezeNet's classifier is a convolution.
    layers = layers or [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    parent_name, _, own_name = layers[-1].rpartition(".")
    parent = model.get_submodule(parent_name)
    siblings = list(parent.named_children())
    place = [name for name, _ in siblings].index(own_name)
    setattr(parent, own_name, nn.Identity())
    if place > 0 and isinstance(siblings[place - 1][1], nn.Dropout):
        setattr(parent, siblings[place - 1][0], nn.Identity())
    return layers[-1]


def _build_timm_model(name: str, input_shape: tuple[int, ...], weights: str) -> tuple[nn.Module, Statistics]:
    model = _create_timm_model(name, weights, num_classes=0, img_size=input_shape[1])
    config: Any = model.pretrained_cfg
    return model, (config["mean"], config["std"])


def _create_timm_model(name: str, weights: str, **settings: Any) -> nn.Module:
    """Create a timm model and load its weights; `img_size` is for those that accept one."""
    try:
        import timm
    except ImportError as error:
        raise DomainwiseError(f"{name} needs timm; {suggest_install('timm')}") from error
    model_name = name.removeprefix(TIMM)
    if not timm.is_model(model_name):
        raise unknown_choice("timm model", model_name, timm.list_models(), summary="see timm.list_models()")
    settings["pretrained"] = weights != "none"
    if is_weights_file(weights):
        # timm itself resizes position embeddings to the image size.
        settings["pretrained_cfg_overlay"] = {"state_dict": read_weights(Path(weights))}
    elif weights not in ("none", "pretrained"):
        raise unknown_choice(f"weights of {name}", weights, ("none", "pretrained", "a file"))
    try:
        try:
            model: nn.Module = timm.create_model(model_name, **settings)
        except TypeError:  # only models with a fixed image size accept it
            settings.pop("img_size", None)
            model = timm.create_model(model_name, **settings)
    except OSError as error:
        raise DomainwiseError(
            f"weights of {name} could not be downloaded ({error}); pass --weights FILE or --weights none"
        ) from error
    except RuntimeError as error:
        if not is_weights_file(weights):
            raise
        raise mismatch_error(weights, name, str(error).splitlines()[:2][-1].strip().rstrip(".")) from error
    if is_weights_file(weights):
        # timm silently skips keys that it does not find, after it has renamed those of other projects, such as CLIP's.
        family = sys.modules[timm.model_entrypoint(model_name).__module__]
        convert = getattr(family, "checkpoint_filter_fn", lambda state, model: state)
        state = convert(settings["pretrained_cfg_overlay"]["state_dict"], model)
        # `num_batches_tracked` only counts batches and is missing from some files.
        missing = [key for key in model.state_dict() if key not in state and not key.endswith("num_batches_tracked")]
        if missing:
            raise mismatch_error(weights, name, *(f"missing key {key}" for key in missing))
    return model


def _count_features(featurizer: Backbone, input_shape: Sequence[int]) -> int:
    was_training = featurizer.training
    featurizer.eval()
    with torch.no_grad():
        count = featurizer(torch.zeros(1, *input_shape)).shape[1]
    featurizer.train(was_training)
    return int(count)
