"""Which rank runs on which node, as every rank can compute by itself.

Slurm and torchrun give each process the layout of all processes, in its environment. All ranks of a
job read the same values, so that all come to the same layout.
"""

import os
import re
from typing import List, Mapping, Optional, Sequence


def expand_hosts(text: str) -> List[str]:
    """The hosts of a Slurm host list: "gpu[1-3,07],login" is gpu1, gpu2, gpu3, gpu07, login."""
    out: List[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for plain, bracket in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            ends = [plain] if plain else _numbers(bracket)
            names = [n + e for n in names for e in ends]
        out += names
    return out


def _numbers(text: str) -> List[str]:
    out = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            out.append(first)
            continue
        out += [str(i).zfill(len(first)) for i in range(int(first), int(last) + 1)]
    return out


def expand_counts(text: str) -> List[int]:
    """The tasks of each node: "4(x2),3" is 4, 4, 3."""
    out: List[int] = []
    for part in text.split(","):
        m = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if m is None:
            return []
        out += [int(m[1])] * int(m[2] or 1)
    return out


def rank_nodes(ranks: int, hosts: Sequence[str], env: Optional[Mapping[str, str]] = None) -> Optional[List[int]]:
    """The node of each rank, as a number in hosts, the nodes of the job; None if it is not known."""
    given: Mapping[str, str] = os.environ if env is None else env
    if len(hosts) == 1:
        return [0] * ranks
    try:
        return _by_torchrun(ranks, hosts, given) or _by_slurm(ranks, hosts, given)
    except ValueError:  # the environment has no valid layout
        return None


def _by_slurm(ranks: int, hosts: Sequence[str], env: Mapping[str, str]) -> Optional[List[int]]:
    """One task is one rank; tasks are laid out in blocks or round the nodes."""
    counts = expand_counts(env.get("SLURM_STEP_TASKS_PER_NODE", "") or env.get("SLURM_TASKS_PER_NODE", ""))
    names = expand_hosts(env.get("SLURM_STEP_NODELIST", "") or env.get("SLURM_JOB_NODELIST", ""))
    if "SLURM_PROCID" not in env or sum(counts) != ranks or len(counts) != len(names):
        return None
    nodes = _numbers_of(names, hosts)
    way = env.get("SLURM_DISTRIBUTION", "block").split(":")[0].split(",")[0]
    if nodes is None or way not in ("block", "cyclic"):
        return None
    if way == "block":
        return [n for n, c in zip(nodes, counts) for _ in range(c)]
    return [n for turn in range(max(counts)) for n, c in zip(nodes, counts) if turn < c]


def _by_torchrun(ranks: int, hosts: Sequence[str], env: Mapping[str, str]) -> Optional[List[int]]:
    """Each agent has LOCAL_WORLD_SIZE ranks in a row; agent i is taken to be on the i-th node."""
    if "GROUP_WORLD_SIZE" not in env or "LOCAL_WORLD_SIZE" not in env:
        return None
    groups, local = int(env["GROUP_WORLD_SIZE"]), int(env["LOCAL_WORLD_SIZE"])
    nodes: Optional[List[int]] = list(range(len(hosts)))
    names = expand_hosts(env.get("SLURM_STEP_NODELIST", ""))
    if len(names) == groups:
        nodes = _numbers_of(names, hosts)
    if nodes is None or groups != len(nodes) or groups * local != ranks:
        return None
    return [n for n in nodes for _ in range(local)]


def _numbers_of(names: Sequence[str], hosts: Sequence[str]) -> Optional[List[int]]:
    short = {h.split(".")[0]: i for i, h in enumerate(hosts)}
    numbers = [short.get(n.split(".")[0], -1) for n in names]
    return None if -1 in numbers else numbers
