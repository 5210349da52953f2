"""A fake mount and daemon: a directory, and a control socket that records its requests."""

import base64
import json
import os
import shutil
import socketserver
import tempfile
import threading
import time
import unittest
from array import array
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple
from unittest import mock

import bivouac._reporter as reporter

Request = Tuple[str, str, Any]


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def handle_error(self, *args: Any) -> None:
        """Ignores a client that has disconnected."""


class Daemon:
    """A control socket. replies has the answers, by method and route without the query."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.requests: List[Request] = []
        self.replies: Dict[str, Any] = {
            "PUT /v1/plan": lambda body: {"digest": f"{body['kind']}-{body['seed']}-{body['ranks']}"},
            "POST /v1/plan/position": {},
            "POST /v1/training": {},
        }
        self._start()

    def _start(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = json.loads(body) if body else None
                outer.requests.append((self.command, self.path, asked))
                route = f"{self.command} {self.path.split('?')[0]}"
                reply = outer.replies.get(route, (404, {"error": "no such route"}))
                if callable(reply):
                    reply = reply(asked)
                status, value = reply if isinstance(reply, tuple) else (200, reply)
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = answer

            def log_message(self, *args: Any) -> None:
                pass

            def address_string(self) -> str:
                return "unix"

        self._server = _Server(self.path, Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        os.unlink(self.path)

    def restart(self) -> None:
        self._start()

    def asked(self, method: str, route: str) -> List[Any]:
        """The bodies of the requests to a route."""
        return [b for m, r, b in list(self.requests) if m == method and r.split("?")[0] == route]

    def positions(self) -> List[Any]:
        return [p for body in self.asked("POST", "/v1/plan/position") for p in body]

    def give_map(self, owner: List[int], nodes: int, this: int = 0) -> None:
        reply = {
            "files": len(owner),
            "nodes": [f"node{i}" for i in range(nodes)],
            "self": this,
            "owner": base64.b64encode(array("H", owner).tobytes()).decode(),
        }
        self.replies["POST /v1/map"] = reply


def forget() -> None:
    """Begins anew, with no thread of before."""
    r = reporter._reporter
    thread = r._thread
    r._wake.set()
    r.forget()
    if thread is not None:
        thread.join()


class JobTest(unittest.TestCase):
    """A test in a job: self.mount is $BIVOUAC, self.daemon answers."""

    def setUp(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="biv"))
        self.addCleanup(shutil.rmtree, self.home)
        self.mount = self.home / "mnt"
        (self.mount / ".bivouac").mkdir(parents=True)
        (self.mount / "data").mkdir()
        sock = str(self.home / "ctl")
        (self.mount / ".bivouac" / "control").write_text(sock + "\n")
        self.daemon = Daemon(sock)
        self.addCleanup(self._kill)
        env = mock.patch.dict(os.environ, {"BIVOUAC": str(self.mount)})
        env.start()
        self.addCleanup(env.stop)
        forget()
        self.addCleanup(forget)

    def _kill(self) -> None:
        if os.path.exists(self.daemon.path):
            self.daemon.kill()

    def eventually(self, what: str, ok: Callable[[], Any], patience: float = 60) -> None:
        end = time.monotonic() + patience
        while not ok():
            if time.monotonic() > end:
                self.fail(f"{what}: not after {patience} s")
            time.sleep(0.005)


class Folder:
    """An ImageFolder as far as samplers look at one."""

    def __init__(self, root: Path, names: Optional[List[str]] = None, n: int = 0) -> None:
        self.root = str(root)
        names = names if names is not None else [f"c{i * 10 // max(n, 1)}/{i:05}.jpg" for i in range(n)]
        classes = sorted({name.partition("/")[0] for name in names})
        self.samples = [(f"{root}/{name}", classes.index(name.partition("/")[0])) for name in names]
        self.targets = [c for _, c in self.samples]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> Any:
        return self.samples[i]
