"""Train on a folder root/domain/class/image with timm's model, optimizer, schedule and EMA. + marks what adds MAT.

timm's transforms normalize images, so the perturbation gets the same statistics.

python timm_train.py photos --model resnet18 --pretrained --epochs 5
"""

import argparse
from bisect import bisect_right
from pathlib import Path

import timm
import torch
from timm.data import create_transform, resolve_model_data_config
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, ModelEmaV3
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader
from torchvision.datasets import ImageFolder

from domainwise import MultiplePerturbation  # +


class Domains(ConcatDataset):
    """The images of several folders, each with its label and the index of its folder."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image, label, bisect_right(self.cumulative_sizes, index)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--pretrained", action="store_true")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--epsilon", default="0.5/255 rms")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("model.pt"))
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    classes = sorted(path.name for path in next(p for p in args.root.iterdir() if p.is_dir()).iterdir())
    model = timm.create_model(args.model, pretrained=args.pretrained, num_classes=len(classes)).to(device)
    data = {**resolve_model_data_config(model), "input_size": (3, args.image_size, args.image_size)}
    transform = create_transform(**data, is_training=True)
    domains = [ImageFolder(folder, transform) for folder in sorted(args.root.iterdir()) if folder.is_dir()]
    loader = DataLoader(Domains(domains), args.batch_size, shuffle=True, drop_last=True)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    scheduler, epochs = create_scheduler_v2(optimizer, sched="cosine", num_epochs=args.epochs)
    average = ModelEmaV3(model, decay=0.999, use_warmup=True)
    trained = torch.compile(model) if args.compile else model
    perturbation = MultiplePerturbation(  # +
        data["input_size"],
        num_domains=len(domains),
        epsilon=args.epsilon,
        warmup_steps=epochs * len(loader) // 2,
        mean=data["mean"],
        std=data["std"],
    ).to(device)  # +

    for epoch in range(epochs):
        losses = AverageMeter()
        model.train()
        for x, y, domain in loader:
            x, y = x.to(device), y.to(device)
            x = perturbation.attack(x, domain, lambda x, y=y: F.cross_entropy(trained(x), y, reduction="none"))  # +
            loss = F.cross_entropy(trained(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update(model)
            losses.update(loss.item(), len(y))
        scheduler.step(epoch + 1)
        print(f"epoch {epoch}: loss {losses.avg:.3f}, radius {perturbation.radius:.3f}", flush=True)
    torch.save({"model": model.state_dict(), "average": average.module.state_dict()}, args.output)


if __name__ == "__main__":
    main()
