"""Trains a small classifier on an ImageFolder, with DistributedDataParallel.

On each node of a job that was submitted with --bivouac-stage-in=/lustre/me/images.tar:

    torchrun --nnodes $SLURM_NNODES --node_rank $SLURM_NODEID ... imagefolder.py --data $BIVOUAC_DATA/images/train

With --sampler torch the script uses only Bivouac's path, like an unchanged script.
"""

import argparse
import os
from typing import Any, List

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


def sampler_of(kind: str, dataset: Any, batch: int) -> Any:
    """The sampler by its name on the command line."""
    if kind == "torch":
        from torch.utils.data import DistributedSampler as Plain

        return Plain(dataset, seed=42)
    from bivouac.torch import DistributedSampler, LocalitySampler

    if kind == "bivouac":
        return DistributedSampler(dataset, seed=42)
    return LocalitySampler(dataset, batch, seed=42, rank_nodes="gather")


def train(data: str, kind: str, epochs: int = 3, batch: int = 8, workers: int = 1) -> List[float]:
    """Trains, and returns the mean loss of each epoch over all ranks."""
    torch.manual_seed(0)
    dataset = ImageFolder(data, transforms.ToTensor())
    sampler = sampler_of(kind, dataset, batch)
    loader = DataLoader(dataset, batch_size=batch, sampler=sampler, num_workers=workers)
    if kind != "torch":
        from bivouac.torch import watch

        loader = watch(loader)
    sample = dataset[0][0]
    model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(sample.numel(), len(dataset.classes))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2, dtype=torch.float64)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(labels), len(labels)])
        dist.all_reduce(total)
        losses.append(float(total[0] / total[1]))
    return losses


def main() -> None:
    """Reads the command line and trains."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", default=os.environ.get("BIVOUAC_DATA", ".") + "/images/train")
    p.add_argument("--sampler", choices=["torch", "bivouac", "locality"], default="bivouac")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--workers", type=int, default=1)
    a = p.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    losses = train(a.data, a.sampler, a.epochs, a.batch, a.workers)
    if dist.get_rank() == 0:
        print("losses:", *losses)


if __name__ == "__main__":
    main()
