"""Finds out which files of a Bivouac dataset the samples of a training dataset are.

The daemon numbers the files of a dataset as torchvision's ImageFolder does it. If the samples are in
that order, the plan needs no list of paths; otherwise it names the path of each sample.
"""

import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ._control import Control, StrPath, find_control, log, place

IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # as torchvision has them


class Source:
    """The dataset of the job that a training dataset reads, and how its samples are numbered."""

    def __init__(self, control: Control, name: str, root: str, files: int, paths: Optional[List[str]]) -> None:
        self.control = control
        self.name = name
        self.root = root  # of the numbering, below the dataset's; "" is the dataset's
        self.files = files
        self.paths = paths  # of each sample, below root; None if they are numbered as ImageFolder does it

    def plan(self, kind: str, **more: Any) -> Dict[str, Any]:
        """A plan over these files, as the daemon takes it."""
        p = {"dataset": self.name, "kind": kind, "files": self.files, "root": self.root, "paths": self.paths, **more}
        return {k: v for k, v in p.items() if k in ("seed", "shuffle") or v}


def find_source(
    dataset: Any, data: Optional[StrPath] = None, paths: Optional[Sequence[StrPath]] = None, alike: bool = False
) -> Optional[Source]:
    """Which dataset of the job dataset reads; None outside a job, or if it cannot be found out.

    data says it: the name of a dataset of the job or a path in it; paths is the path of each sample.
    A failure is only a warning: the samples do not depend on the plan. If they do, all ranks must come to alike
    results: then a mount that fails raises OSError, since other ranks may find the dataset.
    """
    try:
        return _find(dataset, data, None if paths is None else [os.fspath(p) for p in paths])
    except Exception as e:  # the mount is gone, or the dataset is of an unknown kind
        if alike and isinstance(e, OSError):
            raise
        log.warning("cannot tell which dataset of the job a sampler reads (%s): it is not prefetched", e)
        return None


def _find(dataset: Any, data: Optional[StrPath], given: Optional[List[str]]) -> Optional[Source]:
    control = find_control()
    root: Optional[StrPath] = _root(dataset) if data is None else data
    if data is not None and "/" not in os.fspath(data) and control is not None:
        root = os.path.join(control.mount, "data", os.fspath(data))
    if root is None and control is not None:
        samples = given if given is not None else sample_paths(dataset)
        if samples and all(map(os.path.isabs, samples)):
            root = os.path.dirname(os.path.commonprefix(samples))
        else:
            log.warning("cannot tell which dataset of the job a sampler reads: give data=NAME, or it is not prefetched")
    there = None if root is None else place(root)
    if there is None:
        return None
    below = _below(dataset, given, os.fspath(root or ""))
    return None if below is None else Source(there.control, there.name, there.below, len(dataset), below or None)


def _below(dataset: Any, given: Optional[List[str]], root: str) -> Optional[List[str]]:
    """The path of each sample below root, none if they are numbered as ImageFolder does it; None on errors."""
    samples = given if given is not None else sample_paths(dataset)
    if samples is None:
        return []
    if len(samples) != len(dataset):
        log.warning("there are %d paths for %d samples: they are not prefetched", len(samples), len(dataset))
        return None
    below = _without(samples, root)
    if below is None:
        log.warning("there are samples outside %s: give paths= or data=, or they are not prefetched", root)
    return [] if below is not None and given is None and numbered_as_folder(below) else below


def _root(dataset: Any) -> Optional[str]:
    """The directory that a dataset says it reads, through Subset and the like."""
    for _ in range(16):
        root = getattr(dataset, "root", None)
        if isinstance(root, (str, os.PathLike)):
            return os.fspath(root)
        if not hasattr(dataset, "dataset"):
            return None
        dataset = dataset.dataset
    return None


def sample_paths(dataset: Any) -> Optional[List[str]]:
    """The path of each sample of an ImageFolder or of a Subset of one; None if it has none."""
    inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if inner is not None and indices is not None:
        all_paths = sample_paths(inner)
        return None if all_paths is None else [all_paths[int(i)] for i in indices]
    samples = getattr(dataset, "samples", None)
    if not isinstance(samples, (list, tuple)) or not samples:
        return None
    first = samples[0]
    if isinstance(first, (tuple, list)) and first and isinstance(first[0], (str, os.PathLike)):
        return [os.fspath(s[0]) for s in samples]
    if isinstance(first, (str, os.PathLike)):
        return [os.fspath(s) for s in samples]
    return None


def _without(samples: List[str], root: str) -> Optional[List[str]]:
    """The paths of samples without root; None if one is elsewhere."""
    prefix = root.rstrip("/") + "/"
    cut = len(prefix)
    out = []
    for s in samples:
        if s.startswith(prefix):
            out.append(s[cut:])
        elif not os.path.isabs(s):
            out.append(s)
        else:
            return None
    return out


def numbered_as_folder(paths: List[str]) -> bool:
    """Whether paths are all images, in the order in which ImageFolder numbers them."""
    last: Tuple[str, str, str] = ("", "", "")
    for p in paths:
        directory, _, name = p.rpartition("/")
        key = (p.partition("/")[0], directory, name)
        if not directory or key <= last or not name.lower().endswith(IMAGES):
            return False
        last = key
    return True
