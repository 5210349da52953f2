"""The same global batches, and each rank takes the samples that its node holds."""

import os
import zlib
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from .._control import ControlError, StrPath, log
from .._layout import rank_nodes as rank_nodes_of
from .._map import Map, fetch_map, persist
from .._plan import Source, find_source
from .._reporter import Plan
from ._sampler import DistributedSampler

_NO_MAP = (
    "this rank cannot tell which samples are its own: start training again when bivouac status shows all nodes, "
    'or give LocalitySampler rank_nodes="gather"'
)


class LocalitySampler(DistributedSampler):
    """DistributedSampler's global batches, with each sample read where it lies.

    A global batch is the samples of all ranks for one step: batch_size of each. As sets, the
    global batches are DistributedSampler's, with the same arguments, so that gradients averaged over
    the ranks are the same up to rounding. Within a global batch each rank takes samples that its node
    holds. The surplus of a node goes to ranks that have too few. Every rank
    computes this for itself, from the plan and the map of the dataset, and all come to the same.

    Batch normalisation sees a difference: a rank's own batch is no longer a random part of the global
    batch. A node always reads the same part of the dataset. Files are placed by a hash, so this part is
    as mixed as the dataset, but running statistics of each rank are of its part alone. Use
    SyncBatchNorm, or average the statistics over the ranks before evaluation.

    batch_size is the DataLoader's. rank_nodes says on which node each rank is: by default it is found
    out from the environment of Slurm or torchrun. Give a list with a host name or a number of a node
    for each rank, or "gather": then the ranks tell each other once, through torch.distributed, when the
    sampler is made, and every rank must make it. Use this with torchrun, which may number its agents in
    another order than Slurm numbers the nodes.

    The map does not change when a node is lost: its samples are dealt as before, and
    are read from their new place. Outside a job, and if the dataset is not of the job, this is
    DistributedSampler. If the mount of one node fails, or its daemon gives no map, its ranks must not fall
    back alone, since global batches would differ from those of the others: the sampler raises an OSError after
    half a minute. With "gather", all ranks take torch's samples instead.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        num_replicas: Optional[int] = None,
        rank: Optional[int] = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        rank_nodes: Union[None, str, Sequence[Union[str, int]]] = None,
        data: Optional[StrPath] = None,
        paths: Optional[Sequence[StrPath]] = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: give the batch size of the DataLoader")
        self.batch_size = batch_size
        self._rank_nodes = rank_nodes
        self._map: Optional[Map] = None
        self._matcher: Optional[Matcher] = None
        self._dealt: Optional[Tuple[Tuple[int, int], torch.Tensor]] = None  # last result of _deal, by epoch and start
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last, data=data, paths=paths)

    def _find(self, dataset: Any, data: Optional[StrPath], paths: Optional[Sequence[StrPath]]) -> Optional[Source]:
        try:
            return persist(lambda: find_source(dataset, data, paths, alike=True))
        except OSError as e:
            self._no_map(e)
            return None

    def _no_map(self, e: OSError) -> None:
        """Raises ControlError if other ranks may have a map, and would not hear that this one has none."""
        if self._rank_nodes != "gather" and self.num_replicas > 1:
            raise ControlError(f"{e}: {_NO_MAP}") from e
        log.warning("no map of the dataset on this rank: %s", e)

    def _prepare(self) -> None:
        if self._source is not None:
            try:
                self._map = fetch_map(self._source)
            except OSError as e:
                self._no_map(e)
        nodes = self._nodes()
        if self._map is not None and nodes is not None:
            self._matcher = Matcher(torch.tensor(self._map.owner), nodes)
        super()._prepare()

    def _nodes(self) -> Optional[List[int]]:
        """The node of each rank, alike on all ranks; None if it is not known."""
        given, m = self._rank_nodes, self._map
        if given == "gather":  # also without a map, or outside a job: the other ranks wait for this one
            return self._gather()
        if m is None:
            return None
        if given is None:
            nodes = rank_nodes_of(self.num_replicas, m.nodes)
            if nodes is None:
                log.warning(
                    'cannot tell which rank is on which node: give LocalitySampler rank_nodes="gather" or a list'
                )
                return None
        elif isinstance(given, str) or len(given) != self.num_replicas:
            ranks = self.num_replicas
            raise ValueError(f'rank_nodes={given!r}: give "gather", or a node for each of the {ranks} ranks')
        else:
            nodes = [_number(n, m.nodes) for n in given]
        if nodes[self.rank] != m.this:
            log.warning(
                "rank %d is on node %s, and rank_nodes has it on %s: batches are right, but read from other nodes; "
                'give rank_nodes="gather" to LocalitySampler',
                self.rank,
                m.nodes[m.this],
                m.nodes[nodes[self.rank]],
            )
        return nodes

    def _gather(self) -> Optional[List[int]]:
        """Gathers the nodes of all ranks, and checks that all have the same map."""
        if not (dist.is_available() and dist.is_initialized()):
            if self._source is not None or os.environ.get("BIVOUAC"):
                log.warning(
                    "each rank takes torch's samples: call init_process_group before LocalitySampler can gather"
                )
            return None
        mine = None if self._map is None else (self._map.this, zlib.crc32(self._map.owner.tobytes()))
        answers: List[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(answers, mine)
        if len(answers) != self.num_replicas or None in answers or len({a[1] for a in answers}) > 1:
            if any(a is not None for a in answers):
                log.warning("the ranks have no common map of the dataset: each takes torch's samples")
            return None
        return [a[0] for a in answers]

    # Samples.

    def _mine(self, start: int) -> Sequence[int]:
        if self._matcher is None:
            return super()._mine(start)
        mine: List[int] = self._deal(start)[self.rank :: self.num_replicas].tolist()
        return mine

    def _deal(self, start: int) -> torch.Tensor:
        """The samples of all ranks from start on: rank r has every num_replicas-th, from the r-th on."""
        assert self._matcher is not None
        key = (self.epoch, start)
        if self._dealt is None or self._dealt[0] != key:
            order = torch.tensor(self._left(start), dtype=torch.int64)
            batches = order.split(self.batch_size * self.num_replicas)
            shares = [self._matcher.match(b).t().reshape(-1) for b in batches]
            self._dealt = key, torch.cat(shares) if shares else order
        return self._dealt[1]

    def _follow(self, start: int) -> Tuple[int, int]:
        if self._matcher is None or self._source is None:
            return super()._follow(start)
        self._feed = self._feed or self._new_feed(self._source)
        self._feed.follow(self._list_plan(self._deal(start)))
        return 0, 0

    def _epoch_plan(self) -> Plan:
        if self._matcher is None:
            return super()._epoch_plan()
        return self._list_plan(self._deal(self._resume))

    def _done(self, trained: int) -> int:
        """Only whole global batches count: a partial last one is done again."""
        if self._matcher is not None and trained < self._length():
            trained -= trained % self.batch_size
        return super()._done(trained)

    def _length(self) -> int:
        """How many samples of this rank the newest iterator has."""
        return -(-max(int(self.total_size) - self._start, 0) // int(self.num_replicas))


def _number(node: Union[str, int], nodes: Sequence[str]) -> int:
    if isinstance(node, int) and 0 <= node < len(nodes):
        return node
    short = [n.split(".")[0] for n in nodes]
    if isinstance(node, str) and node.split(".")[0] in short:
        return short.index(node.split(".")[0])
    raise ValueError(f"rank_nodes: {node!r} is no node of the job: give one of {', '.join(nodes)}, or its number")


class Matcher:
    """Shares out global batches: surplus of one node to deficit of another, by fixed rules."""

    def __init__(self, owner: torch.Tensor, nodes: Sequence[int]) -> None:
        """owner is the node of each sample, nodes that of each rank."""
        there = sorted(set(nodes))
        row = torch.full((0x10000,), len(there), dtype=torch.int64)  # nodes without ranks share a row
        for i, n in enumerate(there):
            row[n] = i
        self._row = row[owner.to(torch.int64)]  # of each sample
        self._ranks = len(nodes)
        self._of = [[r for r, n in enumerate(nodes) if n == t] for t in there]

    def match(self, batch: torch.Tensor) -> torch.Tensor:
        """The samples of a global batch by rank: a row for each rank, all of the same length."""
        each = len(batch) // self._ranks
        out = torch.empty((self._ranks, each), dtype=batch.dtype)
        rows = self._row[batch]
        fill = torch.zeros(self._ranks, dtype=torch.int64)
        surplus = [batch[rows == len(self._of)]]
        for i, ranks in enumerate(self._of):
            held = batch[rows == i]
            room = each * len(ranks)
            surplus.append(held[room:])
            held = held[:room]
            for k, r in enumerate(ranks):  # round the ranks of the node
                part = held[k :: len(ranks)]
                out[r, : len(part)] = part
                fill[r] = len(part)
        rest = torch.cat(surplus)
        at = 0
        for r in range(self._ranks):
            need = each - int(fill[r])
            if need > 0:
                out[r, each - need :] = rest[at : at + need]
                at += need
        return out
