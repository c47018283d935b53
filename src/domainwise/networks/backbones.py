"""Any classification network of torchvision, or of timm, as the featurizer of ours."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as AnyBatchNorm

from domainwise.errors import DomainwiseError, unknown
from domainwise.networks.network import Network, Normalize
from domainwise.networks.weights import is_file, load_all_but_head, published_state, read_state

BatchNorm = Literal["frozen", "live"]

TIMM = "timm:"
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# Heads that only served to train the original are left out of the network, and of its weights.
_AUXILIARY = ("aux1", "aux2", "AuxLogits")
_SETTINGS: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "transform_input": True, "init_weights": False},
    "inception_v3": {"aux_logits": False, "transform_input": True, "init_weights": False},
}


class Backbone(nn.Module):
    """A published network without its last layer: images in [0, 1] to features, (b, num_features).

    Args:
        batch_norm: `frozen` keeps the statistics as they came and trains scales and shifts; `live` updates them too.
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
        if self.batch_norm == "frozen":
            for module in self.modules():
                if isinstance(module, AnyBatchNorm):
                    module.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.dropout(self.model(self.normalize(x)).flatten(1))
        return features


def backbone(
    name: str,
    input_shape: Sequence[int],
    num_classes: int,
    dropout: float = 0.0,
    *,
    weights: str = "none",
    batch_norm: BatchNorm = "live",
) -> Network:
    """A backbone and a fresh classifier on top of its features.

    Args:
        name: of a torchvision model, or `timm:` and the name of a timm model.
        weights: `none`; a file; a name that torchvision publishes weights under; `pretrained` for timm's own.
        batch_norm: as for `Backbone`.
    """
    if len(input_shape) != 3 or input_shape[0] != 3:
        raise DomainwiseError(f"{name} takes images of three channels, not of shape {tuple(input_shape)}")
    build = _timm_model if name.startswith(TIMM) else _torchvision_model
    try:
        model, (mean, std) = build(name, tuple(input_shape), weights)
        featurizer = Backbone(model, mean=mean, std=std, dropout=dropout, batch_norm=batch_norm)
        num_features = _num_features(featurizer, input_shape)
    except DomainwiseError:
        raise
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        size = f"{input_shape[1]} x {input_shape[2]}"
        raise DomainwiseError(f"{name} cannot be built for images of {size}: {str(error).splitlines()[0]}") from error
    classifier = nn.Linear(num_features, num_classes)
    return Network(featurizer, classifier, input_shape=input_shape, num_features=num_features)


def is_backbone(name: str) -> bool:
    return name.startswith(TIMM) or name in known_backbones()


@cache
def known_backbones() -> tuple[str, ...]:
    """The classification models of torchvision."""
    # Imported where it is needed: it takes a second that most commands can do without.
    import torchvision

    return tuple(torchvision.models.list_models(module=torchvision.models))


Statistics = tuple[Sequence[float], Sequence[float]]


def _torchvision_model(name: str, input_shape: tuple[int, ...], weights: str) -> tuple[nn.Module, Statistics]:
    import torchvision
    from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

    if name not in known_backbones():
        raise unknown("torchvision model", name, known_backbones())
    settings = dict(_SETTINGS.get(name, {}))
    if name.startswith("vit_"):
        settings["image_size"] = input_shape[1]
    if name.startswith("maxvit"):
        settings["input_size"] = input_shape[1:]
    model: nn.Module = torchvision.models.get_model(name, weights=None, **settings)
    head = _without_head(model)
    if weights != "none":
        state = read_state(Path(weights)) if is_file(weights) else published_state(name, weights)
        if isinstance(model, VisionTransformer) and "encoder.pos_embedding" in state:
            state = interpolate_embeddings(input_shape[1], model.patch_size, dict(state))
        what = f"the weights in {weights}" if is_file(weights) else f"the weights {weights}"
        load_all_but_head(model, state, heads=(head, *_AUXILIARY), what=what, name=name)
    return model, _IMAGENET


def _without_head(model: nn.Module) -> str:
    """Takes out the last layer, and the dropout right before it: ours stands there. Returns the layer's name."""
    layers: list[str] = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    # SqueezeNet classifies by a convolution.
    layers = layers or [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    parent_name, _, own_name = layers[-1].rpartition(".")
    parent = model.get_submodule(parent_name)
    siblings = list(parent.named_children())
    place = [name for name, _ in siblings].index(own_name)
    setattr(parent, own_name, nn.Identity())
    if place > 0 and isinstance(siblings[place - 1][1], nn.Dropout):
        setattr(parent, siblings[place - 1][0], nn.Identity())
    return layers[-1]


def _timm_model(name: str, input_shape: tuple[int, ...], weights: str) -> tuple[nn.Module, Statistics]:
    try:
        import timm
    except ImportError as error:
        raise DomainwiseError(f"{name} needs timm: pip install 'domainwise[timm]'") from error
    model_name = name.removeprefix(TIMM)
    if not timm.is_model(model_name):
        raise unknown("timm model", model_name, timm.list_models(), shown="what timm.list_models() lists")
    settings: dict[str, Any] = {"num_classes": 0, "pretrained": weights != "none"}
    if is_file(weights):
        # timm fits position embeddings to the image's size by itself.
        settings["pretrained_cfg_overlay"] = {"state_dict": read_state(Path(weights))}
    elif weights not in ("none", "pretrained"):
        raise unknown(f"weights of {name}", weights, ("none", "pretrained", "a file"))
    try:
        try:
            model = timm.create_model(model_name, img_size=input_shape[1], **settings)
        except TypeError:  # only networks that are built for one size of image take it
            model = timm.create_model(model_name, **settings)
    except OSError as error:
        raise DomainwiseError(
            f"the weights of {name} cannot be downloaded ({error}); give a file as --weights FILE, or --weights none"
        ) from error
    except RuntimeError as error:
        if not is_file(weights):
            raise
        raise _misfit(weights, name, str(error).splitlines()[:2][-1].strip().rstrip(".")) from error
    if is_file(weights):
        # timm leaves out what it does not find.
        given = settings["pretrained_cfg_overlay"]["state_dict"]
        # Which only counts batches, and is not in every file.
        lacking = [key for key in model.state_dict() if key not in given and not key.endswith("num_batches_tracked")]
        if lacking:
            raise _misfit(weights, name, f"they lack {lacking[0]}")
    facts: Any = model.pretrained_cfg
    return model, (facts["mean"], facts["std"])


def _misfit(weights: str, name: str, fault: str) -> DomainwiseError:
    return DomainwiseError(f"the weights in {weights} do not fit {name}: {fault}. Are they of another architecture?")


def _num_features(featurizer: Backbone, input_shape: Sequence[int]) -> int:
    was_training = featurizer.training
    featurizer.eval()
    with torch.no_grad():
        count = featurizer(torch.zeros(1, *input_shape)).shape[1]
    featurizer.train(was_training)
    return int(count)
