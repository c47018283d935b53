"""Networks by name: three small ones, and torchvision and timm models as backbones."""

from collections.abc import Mapping

from domainwise.networks.backbones import BatchNorm, build_backbone, is_backbone, list_backbones
from domainwise.networks.network import Network, NetworkBuilder, Normalize, mlp, mnist_cnn, small_cnn

NETWORKS: Mapping[str, NetworkBuilder] = {
    "small_cnn": small_cnn,
    "mnist_cnn": mnist_cnn,
    "mlp": mlp,
}

__all__ = [
    "NETWORKS",
    "BatchNorm",
    "Network",
    "NetworkBuilder",
    "Normalize",
    "build_backbone",
    "is_backbone",
    "list_backbones",
    "mlp",
    "mnist_cnn",
    "small_cnn",
]
