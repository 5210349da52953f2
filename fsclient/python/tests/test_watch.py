import os
from typing import Any, Iterator
from unittest import mock

from torch.utils.data import DataLoader

from bivouac import _reporter as reporter
from bivouac.torch import DistributedSampler, watch
from bivouac.torch._watch import percentile

from .fake import Folder, JobTest


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Slow:
    """A loader whose batches take their time."""

    batch_size = 4

    def __init__(self, clock: Clock, waits: Any) -> None:
        self.clock, self.waits = clock, waits

    def __iter__(self) -> Iterator[int]:
        for i, w in enumerate(self.waits):
            self.clock.now += w
            yield i

    def __len__(self) -> int:
        return len(self.waits)


class WatchTest(JobTest):
    def setUp(self) -> None:
        super().setUp()
        self.clock = Clock()
        clock = mock.patch("bivouac.torch._watch.time.perf_counter", self.clock)
        clock.start()
        self.addCleanup(clock.stop)

    def train(self, w: Any, step: float = 1.0, stop: int = 1000) -> None:
        for i, _ in enumerate(w):
            self.clock.now += step
            if i + 1 == stop:
                break

    def test_measures(self) -> None:
        w = watch(Slow(self.clock, [5.0] + [0.5] * 98 + [2.0]))
        with self.assertLogs("bivouac", "INFO") as logs:
            self.train(w)
        e = w.epochs[0]
        self.assertEqual((e.batches, e.samples, e.first_batch, e.stall_max), (100, 400, 5.0, 2.0))
        self.assertAlmostEqual(e.waited, 5 + 49 + 2)
        self.assertAlmostEqual(e.seconds, 56 + 100)
        self.assertAlmostEqual(e.share, 56 / 156)
        self.assertAlmostEqual(e.stall_p50, 0.5)
        self.assertAlmostEqual(e.stall_p99, 2.0)
        self.assertIn("100 batches in 156.00 s, waited 35.9 %; first batch after 5.000 s", logs.output[0])

    def test_loops_that_end_early(self) -> None:
        w = watch(Slow(self.clock, [1.0] * 10), quiet=True)
        self.train(w, stop=3)
        self.assertEqual((w.epochs[0].batches, w.epochs[0].seconds), (3, 6.0))
        with self.assertRaisesRegex(RuntimeError, "in training"):
            for _ in w:
                raise RuntimeError("in training")
        self.assertEqual([e.batches for e in w.epochs], [3, 1])
        iter(w)  # thrown away
        self.train(watch(Slow(self.clock, [])))
        self.assertEqual(len(w.epochs), 2)

    def test_is_like_the_loader(self) -> None:
        d = Folder(self.mount / "data" / "set", n=10)
        w = watch(DataLoader(d, batch_size=4), quiet=True)
        self.assertEqual((len(w), w.batch_size, w.dataset), (3, 4, d))
        self.assertEqual([len(b[0]) for b in w], [4, 4, 2])
        self.assertEqual(w.epochs[0].samples, 10)
        w.set_epoch(2)  # its sampler has none
        s = DistributedSampler(d, 1, 0)
        watch(DataLoader(d, sampler=s)).set_epoch(2)
        self.assertEqual(s.epoch, 2)
        with self.assertRaises(AttributeError):
            w.no_such_thing

    def test_report(self) -> None:
        d = Folder(self.mount / "data" / "set", n=12)
        self.daemon.give_map([0] * 4 + [1] * 5 + [0xFFFF] * 3, 2)
        s = DistributedSampler(d, 1, 0)
        s.set_epoch(3)
        w = watch(DataLoader(d, batch_size=4, sampler=s), quiet=True)
        self.train(w)
        reporter.flush()
        sent = self.daemon.asked("POST", "/v1/training")[-1]
        want = {"dataset": "set", "rank": 0, "epoch": 3, "batches": 3, "samples": 12}
        self.assertEqual({k: sent[k] for k in want}, want)
        self.assertEqual(sent["by_source"], {"local": 4, "remote": 5, "other": 3})
        keys = "dataset rank epoch batches samples seconds waited first_batch stall_p50 stall_p99 stall_max by_source"
        self.assertEqual(sorted(sent), sorted(keys.split()))
        s.set_epoch(4)
        self.train(w, stop=2)
        self.assertEqual(sum(w.epochs[-1].by_source.values()), 8)

    def test_daemon_is_gone(self) -> None:
        d = Folder(self.mount / "data" / "set", n=12)
        w = watch(DataLoader(d, batch_size=4, sampler=DistributedSampler(d, 1, 0)))
        with self.assertLogs("bivouac", "WARNING"):
            self.daemon.kill()
            self.train(w)
            reporter.flush()
        self.assertEqual(w.epochs[0].by_source, {})

    def test_outside(self) -> None:
        with mock.patch.dict(os.environ, {"RANK": "3"}):
            os.environ.pop("BIVOUAC")
            with self.assertLogs("bivouac", "INFO") as logs:
                self.train(watch(Slow(self.clock, [1.0])))
        self.assertIn("rank 3, epoch 0: 1 batches", logs.output[0])

    def test_percentile(self) -> None:
        hundred = [float(i) for i in range(1, 101)]
        for values, p, want in (([], 50, 0), ([7.0], 50, 7), ([7.0], 99, 7), (hundred, 50, 50), (hundred, 99, 99)):
            self.assertEqual(percentile(values, p), want)
        self.assertEqual(percentile([3.0, 1.0, 2.0], 100), 3)
