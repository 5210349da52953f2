"""Reads shards in the manner of WebDataset: each rank and worker takes its own tars, front to back.

Stage the shards as they are: --bivouac-stage-in=/lustre/me/shards-{000..127}.tar:shards,unpack=no
"""

import os
import tarfile
from typing import Dict, Iterator, Tuple

import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

import bivouac

Sample = Tuple[str, Dict[str, bytes]]  # key, and the bytes by ending


def samples_of(path: str) -> Iterator[Sample]:
    """The samples of a shard: members whose names differ by the ending only belong together."""
    key, parts = "", {}
    with tarfile.open(path, "r|") as tar:
        for member in tar:
            name, _, ending = member.name.partition(".")
            if name != key and parts:
                yield key, parts
                parts = {}
            f = tar.extractfile(member)
            if f is not None:
                key, parts[ending] = name, f.read()
    if parts:
        yield key, parts


class Shards(IterableDataset):  # type: ignore[type-arg]
    """The samples of all shards of a dataset, shared out by shard among ranks and workers."""

    def __init__(self, dataset: bivouac.Dataset, rank: int, ranks: int) -> None:
        self.paths = [os.fspath(p) for p in dataset.paths("*.tar")]
        self.rank, self.ranks = rank, ranks

    def __iter__(self) -> Iterator[Sample]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for path in self.paths[self.rank * workers + worker :: self.ranks * workers]:
            yield from samples_of(path)


def keys_of_all_ranks(dataset: bivouac.Dataset, workers: int = 1) -> Dict[str, int]:
    """The size of each sample of the dataset, read by all ranks together."""
    from torch.utils.data import DataLoader

    shards = Shards(dataset, dist.get_rank(), dist.get_world_size())
    mine = {key: sum(map(len, parts.values())) for key, parts in DataLoader(shards, None, num_workers=workers)}
    parts = [{}] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return {k: v for p in parts for k, v in p.items()}
