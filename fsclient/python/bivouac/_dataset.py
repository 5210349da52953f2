"""Datasets of the job: where they are, on which nodes, and whether they are ready."""

import os
import re
import time
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

from ._control import Control, ControlError, Refused, StrPath, find_control

_XATTR = "user.bivouac.node"
_POLL = 0.2  # seconds between two looks at a dataset that is being staged


class StageInFailed(RuntimeError):
    """A dataset could not be staged; the text says why."""


def locate(path: StrPath) -> Tuple[str, ...]:
    """The hosts that hold a file's data; none if the file is not on a mount of Bivouac."""
    try:
        value = os.getxattr(path, _XATTR)
    except OSError:
        if not os.path.exists(path):
            raise FileNotFoundError(path) from None
        return ()
    return tuple(h for h in value.decode().split(",") if h)


class Dataset:
    """A dataset by name. Outside a job it is an ordinary directory that is always ready."""

    def __init__(self, name: str, path: Path, control: Optional[Control]) -> None:
        self.name = name
        self.path = path  # of its root directory
        self.control = control  # None outside a job

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, path={str(self.path)!r})"

    def paths(self, pattern: str = "**/*") -> Iterator[Path]:
        """The paths of its files that match a pattern, sorted."""
        return iter(sorted(p for p in self.path.glob(pattern) if p.is_file()))

    def locate(self, path: StrPath) -> Tuple[str, ...]:
        """The hosts that hold the data of a file; path is below the dataset's root or absolute."""
        return locate(self.path / path)

    def status(self) -> Optional[Dict[str, Any]]:
        """The daemon's status of the dataset; None outside a job, or if no dataset has the name."""
        if self.control is None:
            return None
        found = None
        for d in self.control.status().get("datasets") or ():
            if d.get("name") == self.name:
                found = d  # a later one of the name counts
        return found

    def wait(self, until: str = "readable", timeout: Optional[float] = None) -> "Dataset":
        """Waits until the tree is readable, or with until="all" until every file is on the nodes.

        Returns the dataset. Raises StageInFailed if it cannot be staged, TimeoutError after timeout
        seconds. It also waits for a daemon that is being restarted.
        """
        if until not in ("readable", "all"):
            raise ValueError(f"until={until!r}: give 'readable' or 'all'")
        end = None if timeout is None else time.monotonic() + timeout
        while self.control is not None:
            why = f"there is no dataset {self.name}: stage it with --bivouac-stage-in or bivouac.stage_in"
            try:
                d = self.status()
            except Refused:
                raise
            except ControlError as e:
                d, why = None, str(e)
            if d is not None:
                why = f"dataset {self.name} is {d.get('phase')}"
                if d.get("phase") in ("failed", "removed"):
                    raise StageInFailed(f"dataset {self.name}: {d.get('error') or 'the stage-in failed'}")
                if d.get("ready") or until == "readable" and d.get("readable"):
                    break
            left = _POLL if end is None else min(_POLL, end - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"{why}; stage-ins go on in the background: bivouac status shows them")
            time.sleep(left)
        return self


def dataset(name: str, otherwise: Optional[StrPath] = None) -> Dataset:
    """The dataset $BIVOUAC_DATA/name; outside a job, the directory otherwise (default: name)."""
    control = find_control()
    if control is None:
        return Dataset(name, Path(name if otherwise is None else otherwise), None)
    return Dataset(name, Path(control.mount, "data", name), control)


_ENDINGS = re.compile(r"(?<=.)\.(tar|tar\.gz|tgz|tar\.zst|tar\.xz|tar\.bz2|zip)$")
_SUFFIX = re.compile(r"(?<=.)\.[^.0-9][^.]*$")  # the .2 of a version is none
_PATTERN = re.compile(r"[*?\[]|\{\d+\.\.\d+\}")


def _default_name(source: str, unpack: Optional[str] = None) -> str:
    if unpack == "no" and not _PATTERN.search(source) and not _ENDINGS.search(source):
        return _SUFFIX.sub("", os.path.basename(source))
    while _PATTERN.search(source) and source != "/":
        source = os.path.dirname(source)
    return _ENDINGS.sub("", os.path.basename(source))


def _order(text: str) -> Dict[str, Any]:
    """An order as on the sbatch line: seed:42,ranks=16,root=train,drop-last=yes."""
    kind, _, arg = text.partition(":")
    if kind == "list":
        return {"kind": kind, "list": os.path.abspath(arg)}
    seed, *more = arg.split(",")
    out: Dict[str, Any] = {"kind": kind}
    if seed:
        out["seed"] = int(seed)
    for key, _, value in (m.partition("=") for m in more):
        key = key.replace("-", "_")
        out[key] = value not in ("no", "false") if key == "drop_last" else value if key == "root" else int(value)
    return out


def _cache() -> str:
    """Where indexes of large tars are kept, as by the command."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(home, "bivouac") if os.path.isabs(home) else ""


def _options(given: Dict[str, Any]) -> Dict[str, Any]:
    """The options of a stage-in as the daemon takes them."""
    out: Dict[str, Any] = {}
    for key, value in given.items():
        if key not in ("unpack", "list", "include", "exclude", "limit", "on_error", "overflow", "order", "replicas"):
            raise TypeError(f"stage_in() has no option {key!r}: help(bivouac.stage_in) lists them")
        if key in ("include", "exclude"):
            value = [value] if isinstance(value, str) else list(value)
        elif key == "list":
            value = os.path.abspath(value)
        elif key == "order":
            value = _order(value)
        elif key == "replicas":
            value = str(value)
        out[key] = value
    return {**out, "cache": _cache()}


def stage_in(
    source: StrPath,
    name: Optional[str] = None,
    *,
    wait: Optional[str] = "readable",
    timeout: Optional[float] = None,
    **options: Any,
) -> Dataset:
    """Stages a directory, an archive or a pattern of several as the dataset name, and waits for it.

    wait is as of Dataset.wait, or None to return at once. options are those of "bivouac stage-in":
    unpack="no", include=[...], exclude=[...], list=FILE, limit=N, on_error="skip", overflow="fail",
    order="seed:42,root=train" or "list:FILE", replicas=1 or "all" or "spare".

    Any number of ranks may call it: the first stages the dataset, and the others wait for it. Outside
    a job nothing is staged, and the dataset is the source itself. A dataset is always a directory: a
    single file that unpack="no" keeps is path / "FILE", outside a job in the directory of the source.
    """
    path = os.path.abspath(source)
    name = name or _default_name(path, options.get("unpack"))
    request = {"source": path, "name": name, "options": _options(options)}
    control = find_control()
    if control is None:
        kept = options.get("unpack") == "no" and os.path.isfile(path)
        return Dataset(name, Path(path).parent if kept else Path(path), None)
    d = Dataset(name, Path(control.mount, "data", name), control)
    try:
        control.call("POST", "/v1/stage-in", request, timeout=60)
    except Refused as e:
        there = d.status() if e.status == 409 else None  # another rank was first
        if there is None or there.get("source", path) != path:
            raise
    return d.wait(wait, timeout) if wait else d
