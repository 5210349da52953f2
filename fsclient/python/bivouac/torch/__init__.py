"""Samplers for PyTorch that know where the data is, and measurements of waiting.

    DistributedSampler   torch's, and the daemons prefetch its samples
    LocalitySampler      the same global batches; each rank takes the samples that its node holds
    ChunkShuffleSampler  for datasets larger than the nodes' room: shuffles runs of neighbours
    watch                measures how long training waits for a DataLoader

Outside a Bivouac job the samplers hand out the same samples, without a daemon.
"""

from ._chunks import ChunkShuffleSampler, Quality
from ._locality import LocalitySampler
from ._sampler import DistributedSampler
from ._watch import Epoch, Watched, watch

__all__ = [
    "ChunkShuffleSampler",
    "DistributedSampler",
    "Epoch",
    "LocalitySampler",
    "Quality",
    "Watched",
    "watch",
]
