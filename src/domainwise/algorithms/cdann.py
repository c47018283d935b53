"""CDANN: features from which a second network that knows the class cannot predict the domain (Li et al. 2018, ECCV)."""

from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import count_classes, factory_kwargs
from domainwise.algorithms.dann import DANN


class CDANN(DANN):
    """Conditional domain-adversarial training: the discriminator also sees the class, and classes have equal weight."""

    source = "Li et al. 2018 (ECCV)"

    @property
    def is_exact_over_ranks(self) -> bool:
        return False  # a sample's weight depends on the labels in the batch

    def setup(self) -> None:
        super().setup()
        sizes = count_classes(self.network), self.network.num_features
        self.class_embeddings = nn.Embedding(*sizes, **factory_kwargs(self.network))
        self.discriminator_optimizer.add_param_group({"params": self.class_embeddings.parameters()})

    def compute_discriminator_loss(self, features: Tensor, y: Tensor, domain: Tensor) -> Tensor:
        if self.hparams.gradient_penalty:
            features.requires_grad_()
        scores = self.discriminator(features + self.class_embeddings(y))
        sample_losses = F.cross_entropy(scores, domain, reduction="none")
        class_sizes = (y[:, None] == y).sum(1)
        loss = (sample_losses / (class_sizes * (1 + y.max()))).sum()
        if self.hparams.gradient_penalty:
            loss = loss + self.compute_gradient_penalty(sample_losses, features)
        return loss
