"""Where the files of a dataset are: the map that the daemon of each node gives alike."""

import base64
import sys
import time
from array import array
from typing import Any, Callable, List, Optional, TypeVar

from ._control import ControlError, Refused, log
from ._plan import Source

NOWHERE = 0xFFFF  # owner of a file that is not whole on one node: in the source, or striped
_ANSWER = 20.0  # seconds that a daemon gets for the map of a large dataset
_RESTART = 30.0  # seconds that a daemon gets to be restarted


class Map:
    """The owner of each file of a dataset, by the numbering of a plan."""

    def __init__(self, nodes: List[str], this: int, owner: "array[int]") -> None:
        self.nodes = nodes  # host names
        self.this = this  # the number of this node
        self.owner = owner  # by file number, a number of nodes or NOWHERE


_T = TypeVar("_T")


def persist(ask: Callable[[], _T], patience: Optional[float] = None) -> _T:
    """Repeats ask while it raises OSError, for patience seconds: the daemon may be restarting."""
    end = time.monotonic() + (_RESTART if patience is None else patience)
    while True:
        try:
            return ask()
        except OSError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.2)


def fetch_map(source: Source, patience: Optional[float] = None) -> Optional[Map]:
    """The map of a source; None if the daemon of every node must refuse it alike, because of the training itself.

    Any other failure is of this node alone: another rank may have the map. The request is repeated for patience
    seconds, since the daemon may not know the dataset yet. Then ControlError is raised.
    """
    # Files are numbered by a plan; this one is not set, and has no order.
    plan = source.plan("list", seed=0, shuffle=False, first_only=True)

    def ask() -> Optional[Map]:
        try:
            return _parse(source.control.call("POST", "/v1/map", plan, timeout=_ANSWER), source.files)
        except Refused as e:
            if e.status != 400:
                raise
            log.warning("no map of dataset %s (%s): each rank takes torch's samples", source.name, e)
            return None
        except (KeyError, TypeError, ValueError) as e:
            raise ControlError(f"the map of dataset {source.name} cannot be read: {e}") from e

    return persist(ask, patience)


def _parse(reply: Any, files: int) -> Map:
    owner = array("H")
    owner.frombytes(base64.b64decode(reply["owner"]))
    if sys.byteorder == "big":
        owner.byteswap()
    nodes = [str(n) for n in reply["nodes"]]
    if len(owner) != files or reply.get("files", files) != files:
        raise ValueError(f"it has {len(owner)} files, and the training has {files}")
    if any(o >= len(nodes) and o != NOWHERE for o in set(owner)):
        raise ValueError("it names an unknown node")
    return Map(nodes, int(reply.get("self", 0)), owner)
