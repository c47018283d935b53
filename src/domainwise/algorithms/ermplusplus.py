"""ERM++: ERM with the details of training tuned (Teterwak et al. 2023)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from domainwise.algorithms.base import Batches, Measurements, concatenate_batches
from domainwise.algorithms.erm import ERM
from domainwise.hparams import Hparams, Power, hparam
from domainwise.networks import Network


@dataclass(frozen=True)
class ERMPlusPlusHparams(Hparams):
    head_steps: int = hparam(
        500,
        help="Last update, counted from 0, that trains the classifier alone; -1: none.",
        key="linear_steps",
        low=-1,
    )
    head_lr: float = hparam(
        5e-5, help="Learning rate of these updates.", search=Power(10, -5, -3.5), key="linear_lr", low=0
    )


class ERMPlusPlus(ERM):
    """ERM with a warm start of the classifier, averaged weights, live batch norm and a learning rate that falls."""

    source = "Teterwak et al. 2023"
    Hparams = ERMPlusPlusHparams
    hparams: ERMPlusPlusHparams
    network: Network
    needs_features = True
    # DomainBed starts to average at update 600.
    run_defaults = {
        "average": "sma",
        "average_options": {"start": 600},
        "batch_norm": "live",
        "lr_schedule": "plateau",
    }

    def setup(self) -> None:
        self.head_optimizer = self.build_optimizer(self.network.classifier.parameters(), lr=self.hparams.head_lr)

    @property
    def is_warming_up(self) -> bool:
        return self.updates <= self.hparams.head_steps

    def update(self, batches: Batches) -> Mapping[str, float]:
        if not self.is_warming_up:
            return super().update(batches)
        x, y, _ = concatenate_batches(batches, self.num_domains)
        with torch.no_grad():
            features = self.network.featurizer(x)
        loss = F.cross_entropy(self.network.classifier(features), y)
        self.descend_(loss, self.head_optimizer)
        self.updates += 1
        return Measurements(loss=loss)
