"""Train on a folder root/domain/class/image with DistributedDataParallel. The lines marked with + add MAT.

torchrun --nproc-per-node 2 ddp_train.py photos --epochs 5
"""

import argparse
from bisect import bisect_right
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import ConcatDataset, DataLoader, DistributedSampler
from torchvision import models, transforms
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
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--epsilon", default="0.5/255 rms")
    parser.add_argument("--output", type=Path, default=Path("model.pt"))
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else "cpu"
    size = args.image_size
    to_tensor = transforms.Compose([transforms.Resize((size, size)), transforms.ToTensor()])
    domains = [ImageFolder(folder, to_tensor) for folder in sorted(args.root.iterdir()) if folder.is_dir()]
    dataset = Domains(domains)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, num_workers=0, drop_last=True)

    network = models.get_model(args.model, num_classes=len(domains[0].classes)).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    perturbation = MultiplePerturbation(  # +
        (3, size, size), num_domains=len(domains), epsilon=args.epsilon, warmup_steps=args.epochs * len(loader) // 2
    ).to(device)  # +

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y, domain in loader:
            x, y = x.to(device), y.to(device)
            x = perturbation.attack(x, domain, lambda x, y=y: F.cross_entropy(model(x), y, reduction="none"))  # +
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, radius {perturbation.radius:.3f}", flush=True)
    if rank == 0:
        torch.save({"model": network.state_dict(), "perturbation": perturbation.state_dict()}, args.output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
