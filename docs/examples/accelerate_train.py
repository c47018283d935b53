"""Train on a folder root/domain/class/image with Hugging Face Accelerate. The lines marked with + add LDAT.

accelerate launch accelerate_train.py photos --epochs 5
"""

import argparse
from bisect import bisect_right
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

from domainwise import LowRankPerturbation  # +


class Domains(ConcatDataset):
    """The images of several folders, each with its label and the index of its folder."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image, label, bisect_right(self.cumulative_sizes, index)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--epsilon", default="0.5/255 rms")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint"))
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    accelerator = Accelerator(gradient_accumulation_steps=args.accumulate)
    size = args.image_size
    to_tensor = transforms.Compose([transforms.Resize((size, size)), transforms.ToTensor()])
    domains = [ImageFolder(folder, to_tensor) for folder in sorted(args.root.iterdir()) if folder.is_dir()]
    loader = DataLoader(Domains(domains), args.batch_size, shuffle=True, drop_last=True)
    model = models.get_model(args.model, num_classes=len(domains[0].classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    perturbation = LowRankPerturbation(  # +
        (3, size, size), num_domains=len(domains), epsilon=args.epsilon, warmup_steps=args.epochs * len(loader) // 2
    ).to(accelerator.device)  # +
    accelerator.register_for_checkpointing(perturbation)  # +
    if args.resume:
        accelerator.load_state(str(args.checkpoint))

    for epoch in range(args.epochs):
        for x, y, domain in loader:
            with accelerator.accumulate(model):
                x = perturbation.attack(x, domain, lambda x, y=y: F.cross_entropy(model(x), y, reduction="none"))  # +
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}, radius {perturbation.radius:.3f}")
    accelerator.save_state(str(args.checkpoint))
    accelerator.end_training()


if __name__ == "__main__":
    main()
