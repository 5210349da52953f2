"""torch's DistributedSampler, with a plan for the daemons and a state to resume from."""

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.utils.data

from .._control import StrPath
from .._plan import Source, find_source
from .._reporter import Feed, Plan, Progress


class DistributedSampler(torch.utils.data.DistributedSampler):  # type: ignore[misc]
    """torch.utils.data.DistributedSampler, with the same arguments and the same samples.

    In a Bivouac job it tells the daemons its order (the plan) and how far it is, so that they
    prefetch the next samples of each rank. This is done in the background. If the daemon does not
    answer, there is one warning, and training goes on.

    The files of the samples are found from the dataset: an ImageFolder, a Subset of one, or
    anything with a root directory and samples. Otherwise say it: data is the name of a dataset of
    the job, or a path in it, and paths is the path of each sample. Without any of this, and outside
    a job, the sampler is just torch's.

    state_dict and load_state_dict resume in mid-epoch, as StatefulDataLoader of torchdata expects. The
    number of workers may be another, and so may that of ranks: each sample of the epoch is still handed
    out once. An ordinary DataLoader with workers fetches ahead of the training, and
    the sampler cannot see how far: tell state_dict how many samples this rank has trained on.
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: Optional[int] = None,
        rank: Optional[int] = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        data: Optional[StrPath] = None,
        paths: Optional[Sequence[StrPath]] = None,
    ) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        self._resume = 0  # samples of the epoch that all ranks have handed out before the next iterator
        self._start = 0  # the same, before the newest iterator
        self._progress: Optional[Progress] = None  # of the newest iterator; None before its first sample
        self._before = 0  # the count of its progress when it began
        self.indices: Sequence[int] = ()  # all that the newest iterator hands out
        self._source = self._find(dataset, data, paths)
        self._feed: Optional[Feed] = None
        self._plan: Optional[Plan] = None
        self._prepare()

    def _find(self, dataset: Any, data: Optional[StrPath], paths: Optional[Sequence[StrPath]]) -> Optional[Source]:
        return find_source(dataset, data, paths)

    def _prepare(self) -> None:
        """Offers the plan of the first epoch, so that prefetch begins before the first batch."""
        if self._source is not None:
            self._feed = self._new_feed(self._source)
            self._feed.offer(self._epoch_plan())

    # Samples.

    def __iter__(self) -> Iterator[int]:
        start = self._resume
        mine = self._mine(start)
        plan_epoch, before = self._follow(start)
        if start > 0 and not mine:  # the epoch was done: so it is for one iterator, even if that is thrown away
            self._begin(mine, start, Progress(plan_epoch, before))
            return iter(())
        return self._hand_out(mine, start, Progress(plan_epoch, before))

    def _mine(self, start: int) -> Sequence[int]:
        """The samples of this rank when start samples of the epoch were handed out before."""
        if start == 0:
            return list(super().__iter__())
        mine: List[int] = self._left(start)[self.rank :: self.num_replicas]
        return mine

    def _left(self, start: int) -> List[int]:
        """The samples of all ranks from start on, as torch pads or cuts an epoch."""
        order, ranks = self._order(), int(self.num_replicas)
        left = order[start:]
        if self.drop_last:
            return left[: len(left) // ranks * ranks]
        missing = -len(left) % ranks
        return left + (order * (missing // max(len(order), 1) + 1))[:missing]

    def _order(self) -> List[int]:
        """The whole epoch, before the ranks share it."""
        n = len(self.dataset)
        if not self.shuffle:
            return list(range(n))
        g = torch.Generator()
        g.manual_seed(self.seed + self.epoch)
        order: List[int] = torch.randperm(n, generator=g).tolist()
        return order

    def _begin(self, mine: Sequence[int], start: int, progress: Progress) -> None:
        """Makes the iterator of mine the newest."""
        self._start, self._before, self._progress, self._resume = start, progress.position, progress, 0
        self.indices = mine
        if self._feed is not None:
            self._feed.progress = progress

    def _hand_out(self, mine: Sequence[int], start: int, progress: Progress) -> Iterator[int]:
        """Yields mine. Nothing happens before the first sample: an iterator may be discarded unused."""
        self._begin(mine, start, progress)
        for i in mine:
            progress.position += 1
            yield i

    # Plans for the daemon.

    def _follow(self, start: int) -> Tuple[int, int]:
        """Tells the daemon the plan of the epoch that begins: its number there, and this rank's position."""
        if self._source is None:
            return self.epoch, 0
        self._feed = self._feed or self._new_feed(self._source)
        if start % self.num_replicas == 0:
            self._feed.follow(self._epoch_plan())
            return self.epoch, start // self.num_replicas
        self._feed.follow(self._list_plan(torch.tensor(self._left(start))))
        return 0, 0

    def _new_feed(self, source: Source) -> Feed:
        return Feed(source.control, source.name, int(self.rank))

    def _epoch_plan(self) -> Plan:
        return self._same_plan("torch")

    def _same_plan(self, kind: str, **more: int) -> Plan:
        """The plan of all epochs: always the same object, unless the sampler was changed."""
        assert self._source is not None
        plan = self._source.plan(
            kind,
            seed=int(self.seed) % 2**64,
            ranks=int(self.num_replicas),
            shuffle=bool(self.shuffle),
            drop_last=bool(self.drop_last),
            **more,
        )
        if self._plan is None or self._plan != plan:
            self._plan = plan
        return self._plan

    def _list_plan(self, order: torch.Tensor) -> Plan:
        """The plan of one epoch, as a list of which rank r reads order[r::ranks]."""
        assert self._source is not None
        ranks = int(self.num_replicas)
        return self._source.plan("list", seed=0, shuffle=False, ranks=ranks, indices=order.tolist(), first_only=True)

    # Where to resume.

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, as torch's sampler does. A state loaded for another epoch is void."""
        if epoch != self.epoch:
            self._resume, self._progress = 0, None
        super().set_epoch(epoch)

    def state_dict(self, trained: Optional[int] = None) -> Dict[str, int]:
        """The state to resume from: the epoch, and how many of its samples all ranks have done.

        trained is how many samples of the newest iterator this rank has trained on; by default,
        how many the iterator has handed out.
        """
        if self._progress is None:
            return {"epoch": self.epoch, "done": self._resume}
        if trained is None:
            trained = self._progress.position - self._before
        return {"epoch": self.epoch, "done": self._start + self._done(trained)}

    def _done(self, trained: int) -> int:
        """How many samples all ranks have done when this one has done so many."""
        return trained * int(self.num_replicas)

    def load_state_dict(self, state: Dict[str, int]) -> None:
        """Resumes: the next iterator begins after the samples that state counts.

        If they are all of the epoch, the next iterator is empty, unless the sampler has been set to a later
        epoch: StatefulDataLoader loads the state when it is iterated, after set_epoch.
        """
        epoch, done = int(state["epoch"]), int(state["done"])
        if epoch < 0 or done < 0:
            raise ValueError(f"{state} is not the state of a sampler")
        left = len(self.dataset) - done
        if self.epoch > epoch and left < (self.num_replicas if self.drop_last else 1):
            epoch, done = self.epoch, 0
        super().set_epoch(epoch)
        self._resume, self._progress = done, None

    def __getstate__(self) -> Dict[str, Any]:
        state = self.__dict__.copy()
        state["_feed"] = None  # a copy tells the daemon nothing until it is iterated
        return state
