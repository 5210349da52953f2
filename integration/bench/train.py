"""One rank of a small training run, as make bench-train measures it.

A plain PyTorch script: a dataset over ImageFolder's tree, a sampler, a DataLoader,
a linear model. It says "ready", and then waits for a line on standard input; so it
does after each step ("step") and each epoch ("epoch"), in place of the all-reduce
of a real job. At the end it prints its measurements as one line of JSON.
"""

import argparse
import json
import os
import sys
import time
import zlib

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):
    """The samples of a tree as torchvision's ImageFolder numbers them."""

    def __init__(self, root):
        classes = sorted(e.name for e in os.scandir(root) if e.is_dir())
        self.samples = [
            (os.path.join(root, c, name), label)
            for label, c in enumerate(classes)
            for name in sorted(os.listdir(os.path.join(root, c)))
            if name.endswith(".jpg")
        ]
        self.targets = [label for _, label in self.samples]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        path, label = self.samples[i]
        began = time.monotonic()
        with open(path, "rb", buffering=0) as f:
            data = f.readall()
            # As with a dataset that is larger than memory: no page is there in the next epoch.
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        pixels = numpy.frombuffer(data, numpy.uint8, 1024).astype(numpy.float32) / 255
        return torch.from_numpy(pixels), label, i, zlib.crc32(data), time.monotonic() - began


def sampler_of(kind, dataset, a):
    ranks = dict(num_replicas=a.world, rank=a.rank)
    if kind == "torch":
        return DistributedSampler(dataset, shuffle=True, seed=a.seed, **ranks)
    import bivouac.torch as camp

    if kind == "bivouac":
        return camp.DistributedSampler(dataset, shuffle=True, seed=a.seed, **ranks)
    if kind == "locality":
        here = list(range(a.world))  # rank i is on node i
        return camp.LocalitySampler(dataset, batch_size=a.batch, shuffle=True, seed=a.seed, rank_nodes=here, **ranks)
    # A rank has eight chunks of this small set; half of these are shuffled together.
    return camp.ChunkShuffleSampler(dataset, group=4, chunk=64, batch_size=a.batch, seed=a.seed, **ranks)


def meet(what):
    """Waits until all ranks are here."""
    print(what, flush=True)
    if not sys.stdin.readline():
        sys.exit("train.py: the bench is gone")


def train(a):
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    model = torch.nn.Linear(1024, 100)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    meet("ready")
    dataset = Images(a.data)
    sampler = sampler_of(a.sampler, dataset, a)
    loader = DataLoader(dataset, a.batch, sampler=sampler, num_workers=a.workers, persistent_workers=True)
    epochs, loss = [], None
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        waits, indices, sums, reads = [], [], [], 0.0
        began, batches = time.monotonic(), iter(loader)
        while True:
            asked = time.monotonic() if waits else began
            batch = next(batches, None)
            if batch is None:
                break
            got = time.monotonic()
            x, label, index, crc, took = batch
            waits.append(got - asked)
            indices.append(index.tolist())
            sums.append(crc.tolist())
            reads += float(took.sum())
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), label)
            loss.backward()
            optimiser.step()
            time.sleep(max(0.0, got + a.step - time.monotonic()))
            meet("step")
        epochs.append(dict(seconds=time.monotonic() - began, waits=waits, indices=indices, sums=sums, reads=reads))
        meet("epoch")
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(json.dumps(dict(files=len(dataset), epochs=epochs, loss=float(loss).hex(), model=zlib.crc32(weights))), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--data", required=True, help="the tree: a directory for each class")
    p.add_argument("--sampler", choices=["torch", "bivouac", "locality", "chunk"], default="torch")
    p.add_argument("--rank", type=int, default=int(os.environ.get("RANK", 0)))
    p.add_argument("--world", type=int, default=int(os.environ.get("WORLD_SIZE", 1)))
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--step", type=float, default=0.0, help="seconds of a training step")
    p.add_argument("--seed", type=int, default=0)
    train(p.parse_args())


if __name__ == "__main__":
    main()
