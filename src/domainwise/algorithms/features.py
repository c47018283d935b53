"""What methods that look inside a network ask of it."""

from typing import Any, cast

from torch import nn

from domainwise.networks import Network


def two_parts(network: nn.Module, method: str) -> Network:
    """The network, if it has a featurizer and a classifier to look between."""
    for part in ("featurizer", "classifier", "num_features"):
        if not hasattr(network, part):
            raise ValueError(
                f"{method} works on features: its network needs a {part}, as domainwise.networks.Network has"
            )
    return cast(Network, network)


def new_head(network: Network, method: str, num_features: int) -> nn.Linear:
    """A fresh classifier of `num_features` features into the classes that the network's own tells apart."""
    if not isinstance(network.classifier, nn.Linear):
        kind = type(network.classifier).__name__
        raise ValueError(f"{method} adds a linear classifier to a network whose own is one, not {kind}")
    return nn.Linear(num_features, network.classifier.out_features, **like(network))


def like(network: nn.Module) -> dict[str, Any]:
    """Device and dtype of the network, for tensors that meet its outputs."""
    parameter = next(network.parameters())
    return {"device": parameter.device, "dtype": parameter.dtype}
