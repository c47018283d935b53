"""Networks by name: our small ones, and any of torchvision or timm as a backbone."""

from collections.abc import Mapping

from domainwise.networks.backbones import BatchNorm, backbone, is_backbone, known_backbones
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
    "backbone",
    "is_backbone",
    "known_backbones",
    "mlp",
    "mnist_cnn",
    "small_cnn",
]
