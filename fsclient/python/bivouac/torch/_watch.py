"""Measures how long training waits for its DataLoader."""

import logging
import math
import os
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from .._control import Control, ControlError, log
from .._map import NOWHERE, Map, fetch_map
from .._plan import Source, find_source
from .._reporter import post


class Epoch(NamedTuple):
    """The measurements of one epoch on one rank; times are in seconds."""

    epoch: int
    batches: int
    samples: int
    seconds: float  # from asking for the first batch to the end of the last step
    waited: float  # of these, in which training waited for a batch
    first_batch: float  # from asking for the first batch until it was there
    stall_p50: float  # waiting for each batch but the first
    stall_p99: float
    stall_max: float
    by_source: Dict[str, int]  # samples by where they are stored, as seen from this node: local, remote, other

    @property
    def share(self) -> float:
        """The share of the time that training waited."""
        return self.waited / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        text = (
            f"epoch {self.epoch}: {self.batches} batches in {self.seconds:.2f} s, waited {100 * self.share:.1f} %; "
            f"first batch after {self.first_batch:.3f} s; stall per batch p50 {1e3 * self.stall_p50:.2f} ms, "
            f"p99 {1e3 * self.stall_p99:.2f} ms, max {1e3 * self.stall_max:.2f} ms"
        )
        if self.by_source:
            text += "; samples: " + ", ".join(f"{n} {where}" for where, n in self.by_source.items())
        return text


def percentile(values: List[float], p: float) -> float:
    """The least value that p percent of values do not exceed; 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * p / 100) - 1)]


class Watched:
    """A DataLoader that is measured. It hands out the same batches, and has the same attributes."""

    def __init__(
        self, loader: Any, control: Optional[Control], source: Optional[Source], rank: int, quiet: bool
    ) -> None:
        self._loader = loader
        self._control = control
        self._source = source
        self._rank = rank
        self._quiet = quiet
        self._map: Optional[Map] = None
        self._mapped = False
        self.epochs: List[Epoch] = []  # the measurements

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # not yet: a copy is being made
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the loader's sampler, if that has one."""
        sampler: Any = getattr(self._loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        epoch = getattr(getattr(self._loader, "sampler", None), "epoch", len(self.epochs))
        begun = time.perf_counter()
        waits: List[float] = []
        asked = begun
        try:
            for batch in self._loader:
                now = time.perf_counter()
                waits.append(now - asked)
                yield batch
                asked = time.perf_counter()
        finally:  # also when the loop over the batches is left early
            self._finish(int(epoch), time.perf_counter() - begun, waits)

    def _finish(self, epoch: int, seconds: float, waits: List[float]) -> None:
        if not waits:
            return
        stalls = waits[1:]
        e = Epoch(
            epoch=epoch,
            batches=len(waits),
            samples=self._samples(len(waits)),
            seconds=seconds,
            waited=sum(waits),
            first_batch=waits[0],
            stall_p50=percentile(stalls, 50),
            stall_p99=percentile(stalls, 99),
            stall_max=max(stalls, default=0.0),
            by_source=self._by_source(len(waits)),
        )
        self.epochs.append(e)
        log.log(logging.DEBUG if self._quiet else logging.INFO, "rank %d, %s", self._rank, e)
        if self._control is not None and self._source is not None:
            post(self._control, "/v1/training", {"dataset": self._source.name, "rank": self._rank, **e._asdict()})

    def _samples(self, batches: int) -> int:
        size = getattr(self._loader, "batch_size", None) or 1
        try:
            return int(min(batches * size, len(self._loader.sampler)))
        except (TypeError, AttributeError):  # an iterable dataset
            return int(batches * size)

    def _by_source(self, batches: int) -> Dict[str, int]:
        """Where the samples of the epoch are stored."""
        mine = getattr(getattr(self._loader, "sampler", None), "indices", None)
        if self._source is None or not mine:
            return {}
        if not self._mapped:
            self._mapped = True
            self._map = getattr(self._loader.sampler, "_map", None)
            if self._map is None:
                try:
                    self._map = fetch_map(self._source, patience=0)
                except ControlError as e:
                    log.warning("where the samples are stored is not known: %s", e)
        m = self._map
        if m is None:
            return {}
        count = {"local": 0, "remote": 0, "other": 0}
        for i in mine[: self._samples(batches)]:
            o = m.owner[i]
            count["local" if o == m.this else "other" if o == NOWHERE else "remote"] += 1
        return count


def watch(loader: Any, rank: Optional[int] = None, quiet: bool = False) -> Watched:
    """Measures loader: iterate over the result instead.

    For each epoch it logs, to the logger "bivouac" at level INFO (DEBUG if quiet): the time to the first
    batch, how long each batch was waited for (p50, p99, max), the share of the time spent waiting, and
    where the samples are stored: on this node, on another, or neither (in the source, or striped over
    nodes). The list epochs of the result has the same numbers. In a Bivouac job they are also sent to
    the daemon, for bivouac report.

    The wait is the time that this process spends in the loader, whatever the cause: reads, decoding, too few
    workers. On a GPU, synchronise at the end of the step if the time of the step is to count.
    """
    sampler = getattr(loader, "sampler", None)
    source: Optional[Source] = getattr(sampler, "_source", None)
    if source is None:
        source = find_source(getattr(loader, "dataset", None))
    if rank is None:
        rank = getattr(sampler, "rank", None)
    if rank is None:
        rank = int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0)
    control = None if source is None else source.control
    return Watched(loader, control, source, rank, quiet)
