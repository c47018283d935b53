"""The domains that the field makes from MNIST: digits in two colours, and digits turned."""

from domainwise.data.mnist.colored import colored_mnist
from domainwise.data.mnist.rotated import rotated_mnist

__all__ = ["colored_mnist", "rotated_mnist"]
