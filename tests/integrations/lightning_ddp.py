"""Lightning with two processes: prints, on each rank, the perturbation and the weights after one epoch.

python lightning_ddp.py callback | one_pass
"""

import sys

import lightning
import torch
from lightning_cases import Classifier, OnePass, dataset
from torch.utils.data import DataLoader

from domainwise import LowRankPerturbation
from domainwise.integrations.lightning import AdversarialTraining

if __name__ == "__main__":
    # Unseeded, so ranks would draw different starts.
    perturbation = LowRankPerturbation((3, 6, 6), num_domains=3, epsilon=1.0, rank=2)
    is_callback = sys.argv[1] == "callback"
    module = Classifier() if is_callback else OnePass(perturbation)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[AdversarialTraining(perturbation)] if is_callback else [],
    )
    trainer.fit(module, DataLoader(dataset(), batch_size=4))
    sums = [float(tensor.double().abs().sum()) for tensor in (perturbation.deltas, module.network[4].weight)]
    print(f"outcome {perturbation.updates} {sums}", flush=True)
    torch.distributed.destroy_process_group()
