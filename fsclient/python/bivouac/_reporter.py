"""Sends plans, positions and measurements of training to the daemon, in the background.

Training never waits for the daemon. A sampler sets plain attributes of its Feed; one thread of the
process looks at them a few times a second and sends changes. If the daemon does not answer,
there is one warning, the thread tries again later, and training goes on.

After a fork the child has no feeds and no thread: workers of a DataLoader report nothing.
"""

import atexit
import collections
import os
import threading
import time
import weakref
from typing import Any, Deque, Dict, List, Optional, Tuple

from ._control import Control, ControlError, Refused, log

INTERVAL = 0.2  # seconds between two looks at the feeds
RETRY = 5.0  # seconds until a daemon that did not answer is asked again
PATIENCE = 5.0  # seconds that a request of the background may take
FAREWELL = 2.0  # seconds to send the rest at the end of the program

Plan = Dict[str, Any]


class Progress:
    """The position of a sampler in an epoch. Its iterator counts position up; the thread reads it."""

    __slots__ = ("epoch", "position")

    def __init__(self, epoch: int, position: int) -> None:
        self.epoch = epoch  # as the plan counts
        self.position = position


class Feed:
    """What one sampler reports to the daemon: the plan that it follows, and its position."""

    def __init__(self, control: Control, dataset: str, rank: int) -> None:
        self.control = control
        self.dataset = dataset
        self.rank = rank
        self.progress: Optional[Progress] = None  # None before the first sample
        self.plan: Optional[Plan] = None  # guarded by the reporter's _mu, as all below
        self.unsent = False  # the plan has to be sent
        self.digest = ""  # of the plan, once the daemon has it
        self.sent: Optional[Tuple[str, int, int]] = None  # digest, epoch and position sent last

    @property
    def key(self) -> Tuple[str, str]:
        """The dataset of a job, which has one plan at a time."""
        return self.control.path, self.dataset

    def follow(self, plan: Plan) -> None:
        """Makes plan the sampler's plan from now on."""
        _reporter.follow(self, plan)

    def offer(self, plan: Plan) -> None:
        """Like follow, unless another sampler of this process has a plan for the dataset."""
        if not _reporter.has_plan(self):
            self.follow(plan)


class _Reporter:
    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._mu = threading.Lock()
        self._feeds: "weakref.WeakSet[Feed]" = weakref.WeakSet()  # guarded by _mu
        self._posts: Deque[Tuple[Control, str, Any]] = collections.deque()
        self._thread: Optional[threading.Thread] = None  # guarded by _mu
        self._wake = threading.Event()
        self._plans: Dict[Tuple[str, str], Plan] = {}  # by socket and dataset: the plan sent last
        self._silent: Dict[str, float] = {}  # by socket: when to ask a daemon again
        self._warned: set[str] = set()
        self._sending = threading.Lock()

    def forget(self) -> None:
        """Drops everything: the process is a fork of the one that began it."""
        self._begin()

    def follow(self, feed: Feed, plan: Plan) -> None:
        with self._mu:
            if feed.plan is not plan:
                feed.plan, feed.digest, feed.progress = plan, "", None
            feed.unsent = True
            self._feeds.add(feed)
            self._start()
        self._wake.set()

    def has_plan(self, feed: Feed) -> bool:
        with self._mu:
            return any(f is not feed and f.plan is not None and f.key == feed.key for f in self._feeds)

    def post(self, control: Control, route: str, body: Any) -> None:
        """Sends one measurement later; it is lost if the daemon does not answer."""
        with self._mu:
            self._posts.append((control, route, body))
            self._start()
        self._wake.set()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="bivouac", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            self._wake.wait(INTERVAL)
            self._wake.clear()
            self.flush()
            with self._mu:
                if self._thread is not me:
                    return
                if not self._feeds and not self._posts:
                    self._thread = None
                    return

    def flush(self) -> None:
        """Sends changes. Any thread may call it."""
        with self._sending:
            with self._mu:
                feeds = list(self._feeds)
            for f in feeds:
                self._send_plan(f)
            self._send_positions(feeds)
            while self._posts:
                control, route, body = self._posts.popleft()
                self._ask(control, "POST", route, body)

    def _send_plan(self, f: Feed) -> None:
        """Sends a plan, unless this process sent the same one last for the dataset."""
        with self._mu:
            plan, digest = f.plan, f.digest
            if plan is None or not f.unsent:
                return
            if digest and self._plans.get(f.key) is plan:
                f.unsent = False
                return
        answer = self._ask(f.control, "PUT", "/v1/plan", plan)
        if answer is None:
            return
        with self._mu:
            self._plans[f.key] = plan
            if f.plan is plan:
                f.unsent, f.digest = False, str(answer.get("digest", ""))

    def _send_positions(self, feeds: List[Feed]) -> None:
        new: Dict[str, Tuple[Control, List[Dict[str, Any]]]] = {}
        with self._mu:
            for f in feeds:
                p = f.progress
                if p is None or not f.digest:
                    continue
                sent = (f.digest, p.epoch, p.position)
                if sent != f.sent:
                    f.sent = sent
                    entry = {"dataset": f.dataset, "digest": f.digest, "rank": f.rank}
                    entry.update(epoch=p.epoch, position=sent[2])
                    new.setdefault(f.control.path, (f.control, []))[1].append(entry)
        for control, entries in new.values():
            self._ask(control, "POST", "/v1/plan/position", entries)

    def _ask(self, control: Control, method: str, route: str, body: Any) -> Any:
        """Sends a request; None if the daemon does not answer."""
        if time.monotonic() < self._silent.get(control.path, 0):
            return None
        try:
            answer = control.call(method, route, body, timeout=PATIENCE)
        except Refused as e:
            self._warn(control.path + route, "%s %s is refused: %s", method, route, e)
            return {}
        except ControlError as e:
            self._silent[control.path] = time.monotonic() + RETRY
            self._warn(
                control.path,
                "%s: training goes on, without prefetch until the daemon is back; bivouac status shows the nodes",
                e,
            )
            return None
        if self._silent.pop(control.path, None) is not None:
            log.info("the daemon at %s answers again", control.path)
        return answer if isinstance(answer, dict) else {}

    def _warn(self, what: str, text: str, *args: Any) -> None:
        if what not in self._warned:
            self._warned.add(what)
            log.warning(text, *args)

    def farewell(self) -> None:
        """Sends the rest when the program ends, within bounds."""
        if not self._posts and not self._feeds:
            return
        t = threading.Thread(target=self.flush, name="bivouac-end", daemon=True)
        try:
            t.start()
        except RuntimeError:  # the interpreter is too far gone
            return
        t.join(FAREWELL)


_reporter = _Reporter()
post = _reporter.post
flush = _reporter.flush

atexit.register(_reporter.farewell)
os.register_at_fork(after_in_child=_reporter.forget)
