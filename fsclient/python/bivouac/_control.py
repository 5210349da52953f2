"""The client of a daemon's control socket: HTTP and JSON over a Unix socket."""

import http.client
import json
import logging
import os
import socket
from pathlib import Path
from typing import Any, List, Mapping, Optional, Union
from urllib.parse import quote, urlencode

log = logging.getLogger("bivouac")

StrPath = Union[str, "os.PathLike[str]"]

_CONTROL = ".bivouac/control"  # below the mount; its text is the path of the socket


class ControlError(OSError):
    """The daemon does not answer, or its answer is invalid."""


class Refused(ControlError):
    """The daemon refuses a request; the text says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("bivouac", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _why(text: bytes) -> str:
    """The error in the body of a refusal; "" if there is none."""
    try:
        return str(json.loads(text)["error"])
    except (ValueError, TypeError, KeyError):
        return ""


class Control:
    """Asks the daemon of this node.

    It keeps no connection, so that it can be used from any thread, and after a fork.
    """

    def __init__(self, path: str, mount: str = "") -> None:
        self.path = path  # of the socket
        self.mount = mount  # of this node, "" if not known

    def call(
        self,
        method: str,
        route: str,
        body: Any = None,
        query: Optional[Mapping[str, str]] = None,
        timeout: float = 10,
    ) -> Any:
        """Sends one request and returns the decoded JSON of the answer.

        Raises Refused if the daemon says no, and ControlError if it does not answer.
        """
        if query:
            route += "?" + urlencode(query, quote_via=quote)
        try:
            data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
            conn = _Connection(self.path, timeout)
            try:
                conn.request(method, route, data, {"Content-Type": "application/json"})
                resp = conn.getresponse()
                text = resp.read()
            finally:
                conn.close()
            if resp.status // 100 == 2:
                return json.loads(text) if text.strip() else None
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise ControlError(f"the daemon at {self.path} does not answer: {e or type(e).__name__}") from e
        raise Refused(resp.status, _why(text) or f"the daemon answers {resp.status} {resp.reason}")

    def status(self) -> Any:
        """What bivouac status --json prints, of this node."""
        return self.call("GET", "/v1/status")

    def __repr__(self) -> str:
        return f"Control({self.path!r}, mount={self.mount!r})"


def _control_of(mount: str) -> Optional[Control]:
    """The control socket of a mount; None if there is no mount of Bivouac. Raises OSError if the mount fails."""
    try:
        path = Path(mount, _CONTROL).read_text().strip()
    except (FileNotFoundError, NotADirectoryError, PermissionError, UnicodeDecodeError):
        return None
    return Control(path, mount) if path else None


def find_control(path: Optional[StrPath] = None) -> Optional[Control]:
    """The control socket of the job that this process is in, or None outside a job.

    The job is that of $BIVOUAC; with path, it is that of the mount which has path. Raises OSError if the mount
    fails, such as while its daemon is down: this process must not take itself to be outside the job.
    """
    if path is None:
        mount = os.environ.get("BIVOUAC", "")
        return _control_of(mount) if mount else None
    for p in _both(path):
        for parent in [p, *p.parents]:
            found = _control_of(str(parent))
            if found is not None:
                return found
    return None


def _both(path: StrPath) -> List[Path]:
    """The path as it is written and, if that is another, without its symbolic links."""
    plain = Path(os.path.abspath(path))
    real = Path(os.path.realpath(path))
    return [plain] if plain == real else [plain, real]


def place(path: StrPath) -> Optional["Place"]:
    """Where path is in a job, or None if it is not below $BIVOUAC_DATA of one."""
    control = find_control(path)
    if control is None:
        return None
    for p in _both(path):
        try:
            parts = p.relative_to(control.mount).parts
        except ValueError:
            continue
        if len(parts) >= 2 and parts[0] == "data":
            return Place(control, parts[1], "/".join(parts[2:]))
    return None


class Place:
    """A path in a dataset of the job: below, in the dataset called name."""

    def __init__(self, control: Control, name: str, below: str) -> None:
        self.control = control
        self.name = name
        self.below = below
