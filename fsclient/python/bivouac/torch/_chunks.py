"""Chunk-wise shuffle: a dataset that does not fit on the nodes is read from its source in runs."""

import itertools
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from .._control import StrPath
from .._reporter import Plan
from ._sampler import DistributedSampler


class Quality(NamedTuple):
    """How well an epoch is shuffled, over the batches of all ranks; full is of a full shuffle."""

    classes: float  # distinct classes per batch; 0 if the classes are not known
    full_classes: float
    same_class: float  # pairs of samples of a batch with the same class, relative to a full shuffle
    same_chunk: float  # pairs of samples of a batch from the same chunk, relative to a full shuffle

    def __str__(self) -> str:
        chunk = f"two samples of a batch are from one chunk {self.same_chunk:.1f} times as often as in a full shuffle"
        if self.full_classes == 0:
            return chunk
        return (
            f"{self.classes:.1f} classes per batch (full shuffle: {self.full_classes:.1f}); two samples of a batch "
            f"are of one class {self.same_class:.2f} times as often; {chunk}"
        )


class ChunkShuffleSampler(DistributedSampler):
    """Shuffles chunks of neighbours, and the samples of group chunks among themselves.

    For datasets larger than the nodes' room (the chunk-wise shuffle of DIESEL). A full shuffle reads
    what does not fit from the source one sample at a time. This sampler deals out whole chunks, runs
    of chunk samples that lie side by side in the source, in random order. Each rank mixes the samples
    of group chunks at a time. So the source is read in large runs, and at any time a rank needs room
    for group chunks only. All ranks have the same number of samples, as of DistributedSampler.

    Samples are taken to lie in the source in the order of their numbers, as those of an ImageFolder do
    in a tar made by "tar --sort=name". Otherwise give chunks, a list of sample numbers for each chunk.

    The shuffle is weaker: samples of one chunk tend to meet in a batch. Before the first epoch rank 0
    prints how much weaker; quality() computes it. The classes are dataset.targets, or labels. More chunks
    in a group, or smaller ones, shuffle better, and read smaller runs.

    An epoch is resumed with the same number of ranks only.
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: Optional[int] = None,
        rank: Optional[int] = None,
        seed: int = 0,
        drop_last: bool = False,
        *,
        group: int = 64,
        chunk: int = 64,
        chunks: Optional[Sequence[Sequence[int]]] = None,
        batch_size: int = 64,
        labels: Optional[Sequence[int]] = None,
        data: Optional[StrPath] = None,
        paths: Optional[Sequence[StrPath]] = None,
        verbose: bool = True,
    ) -> None:
        if group < 1 or chunk < 1 or batch_size < 1:
            raise ValueError(f"group={group}, chunk={chunk}, batch_size={batch_size}: each must be at least 1")
        n = len(dataset)
        self.group = group
        self.batch_size = batch_size  # of the DataLoader; quality() counts by it
        self._chunk = chunk if chunks is None else 0  # 0: the chunks were given
        if chunks is None:
            chunks = [range(i, min(i + chunk, n)) for i in range(0, n, chunk)]
        self._chunks = [list(c) for c in chunks]
        if sorted(i for c in self._chunks for i in c) != list(range(n)):
            raise ValueError(f"chunks: each of the {n} samples must be in one chunk")
        self._labels = labels
        self._verbose = verbose
        super().__init__(dataset, num_replicas, rank, True, seed, drop_last, data=data, paths=paths)

    # Samples.

    def _generator(self, more: int) -> torch.Generator:
        g = torch.Generator()
        g.manual_seed(((self.seed + self.epoch) * 1_000_003 + more) % 2**64)
        return g

    def _chunks_in_turn(self) -> Tuple[torch.Tensor, List[int]]:
        """The samples of the shuffled chunks, padded or cut to the total of all ranks, and where chunks begin."""
        turn = torch.randperm(len(self._chunks), generator=self._generator(0)).tolist()
        starts = list(itertools.accumulate((len(self._chunks[c]) for c in turn), initial=0))
        order = torch.tensor([i for c in turn for i in self._chunks[c]], dtype=torch.int64)
        if len(order):
            order = order.repeat(-(-self.total_size // len(order)))
        return order[: self.total_size], starts

    def _stretch(self, order: torch.Tensor, starts: List[int], rank: int) -> torch.Tensor:
        """The part of a rank, each group of chunks mixed."""
        first, last = rank * self.num_samples, (rank + 1) * self.num_samples
        cuts = [s for s in starts if first < s < last][self.group - 1 :: self.group]
        g = self._generator(1 + rank)
        parts = [order[a:b] for a, b in zip([first, *cuts], [*cuts, last])]
        return torch.cat([p[torch.randperm(len(p), generator=g)] for p in parts])

    def _mine(self, start: int) -> Sequence[int]:
        mine: List[int] = self._stretch(*self._chunks_in_turn(), self.rank).tolist()
        return mine[start // self.num_replicas :]

    def _all(self) -> torch.Tensor:
        """The samples of all ranks, a row for each."""
        order, starts = self._chunks_in_turn()
        return torch.stack([self._stretch(order, starts, r) for r in range(self.num_replicas)])

    # Plans for the daemon.

    def _prepare(self) -> None:
        super()._prepare()
        if self._verbose and self.rank == 0 and self.total_size > 0:
            print(f"bivouac: shuffle of {self.group} chunks at a time: {self.quality()}", file=sys.stderr)

    def _follow(self, start: int) -> Tuple[int, int]:
        epoch, position = super()._follow(start)
        return epoch if self._chunk else 0, position

    def _epoch_plan(self) -> Plan:
        if not self._chunk:  # the daemon does not know the chunks: a plan of one epoch
            return self._list_plan(self._all().t().reshape(-1))
        return self._same_plan("chunk", chunk=self._chunk, group=self.group)

    # Where to resume.

    def state_dict(self, trained: Optional[int] = None) -> Dict[str, int]:
        """The state to resume from, as of DistributedSampler; it is for the same number of ranks."""
        return {**super().state_dict(trained), "ranks": self.num_replicas}

    def load_state_dict(self, state: Dict[str, int]) -> None:
        """Resumes as DistributedSampler does. Raises ValueError if the state is of another number of ranks."""
        if state.get("ranks") != self.num_replicas:
            was = state.get("ranks")
            raise ValueError(
                f"the state is of {was} ranks, and there are {self.num_replicas}: begin with the next epoch"
            )
        super().load_state_dict(state)

    # How good it is.

    def quality(self, batches: int = 200) -> Quality:
        """Measures the shuffle of this epoch, over that many batches of all ranks."""
        ours = self._batches(self._all(), batches)
        full = self._batches(torch.tensor(self._left(0)).reshape(self.num_replicas, -1), batches)
        chunk_of = torch.empty(len(self.dataset), dtype=torch.int64)
        for c, samples in enumerate(self._chunks):
            chunk_of[samples] = c
        same_chunk = _same(ours, chunk_of) / max(self._expected(chunk_of), 1e-12)
        labels = getattr(self.dataset, "targets", None) if self._labels is None else self._labels
        if labels is None or len(labels) != len(self.dataset):
            return Quality(0, 0, 0, same_chunk)
        label = torch.as_tensor(labels, dtype=torch.int64)
        same_class = _same(ours, label) / max(self._expected(label), 1e-12)
        return Quality(_distinct(ours, label), _distinct(full, label), same_class, same_chunk)

    def _batches(self, rows: torch.Tensor, most: int) -> List[torch.Tensor]:
        """Batches of the ranks' rows, spread over the epoch."""
        all_batches = [b for row in rows for b in row.split(self.batch_size)]
        return all_batches[:: max(1, len(all_batches) // most)][:most]

    @staticmethod
    def _expected(value: torch.Tensor) -> float:
        """The probability that two samples of a full shuffle have the same value."""
        count = torch.bincount(value).to(torch.float64)
        n = float(len(value))
        return float((count * (count - 1)).sum() / max(n * (n - 1), 1))


def _same(batches: List[torch.Tensor], value: torch.Tensor) -> float:
    """The share of pairs of samples in batches that have the same value."""
    same = pairs = 0.0
    for b in batches:
        count = torch.unique(value[b], return_counts=True)[1].to(torch.float64)
        same += float((count * (count - 1)).sum())
        pairs += len(b) * (len(b) - 1)
    return same / max(pairs, 1)


def _distinct(batches: List[torch.Tensor], value: torch.Tensor) -> float:
    return sum(len(torch.unique(value[b])) for b in batches) / max(len(batches), 1)
