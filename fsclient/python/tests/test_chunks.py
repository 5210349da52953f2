import contextlib
import io
import itertools
import json
import pathlib
from typing import Any, List

from bivouac import _reporter as reporter
from bivouac.torch import ChunkShuffleSampler

from .fake import Folder, JobTest


class ChunkTest(JobTest):
    def folder(self, n: int) -> Folder:
        return Folder(self.mount / "data" / "set", n=n)

    def samplers(self, n: int, ranks: int, **args: Any) -> List[ChunkShuffleSampler]:
        d = self.folder(n)
        return [ChunkShuffleSampler(d, ranks, r, verbose=False, **args) for r in range(ranks)]

    def test_every_sample_once(self) -> None:
        for n, ranks, chunk, group in itertools.product((0, 1, 7, 640, 1000), (1, 3, 4), (1, 16), (1, 4, 64)):
            parts = [list(s) for s in self.samplers(n, ranks, chunk=chunk, group=group)]
            self.assertEqual({len(p) for p in parts}, {-(-n // ranks)})
            seen = [i for p in parts for i in p]
            self.assertEqual(sorted(set(seen)), list(range(n)))
            cut = [i for s in self.samplers(n, ranks, chunk=chunk, group=group, drop_last=True) for i in s]
            self.assertEqual((len(cut), len(set(cut))), (n // ranks * ranks, n // ranks * ranks))

    def test_chunks_stay_together(self) -> None:
        """A rank has whole chunks, a group at a time: the room that it needs is bounded."""
        chunk, group, ranks = 16, 4, 2
        for s in self.samplers(1024, ranks, chunk=chunk, group=group):
            mine = list(s)
            groups = [mine[k : k + chunk * group] for k in range(0, len(mine), chunk * group)]
            for g in groups:
                self.assertEqual(len({i // chunk for i in g}), group)
                self.assertNotEqual(g, sorted(g))

    def test_epochs_differ(self) -> None:
        s = self.samplers(640, 2, chunk=16, group=4)[0]
        first = list(s)
        self.assertEqual(list(s), first)
        s.set_epoch(1)
        self.assertNotEqual(list(s), first)

    def test_order_of_the_daemon(self) -> None:
        """The daemon computes the same samples from the plan: its test reads the same file."""
        root = pathlib.Path(__file__).parents[3]
        for case in json.loads((root / "metadata/accessplan/testdata/chunks.json").read_text()):
            plan = {k: v for k, v in case["plan"].items() if k not in ("kind", "ranks")}
            ours = self.samplers(case["n"], case["plan"]["ranks"], **plan)
            for s, want in zip(ours, case["want"]):
                s.set_epoch(case["epoch"])
                self.assertEqual(list(s), want, case["plan"])

    def test_given_chunks(self) -> None:
        chunks = [[0, 5], [1, 3], [2, 4]]
        s = ChunkShuffleSampler(self.folder(6), 1, 0, chunks=chunks, group=1, verbose=False)
        mine = list(s)
        self.assertEqual(sorted(sorted(mine[k : k + 2]) for k in (0, 2, 4)), chunks)
        for bad in ([[0, 1]], [[0, 1, 2, 3, 4, 5, 5]], [[0, 1, 2, 3, 4, 6]]):
            with self.assertRaises(ValueError):
                ChunkShuffleSampler(self.folder(6), 1, 0, chunks=bad)

    def test_quality(self) -> None:
        d = self.folder(4000)  # ten classes, one after the other
        for group, chunk, low, high in ((1, 400, 9.5, 10.1), (1, 4000, 0.98, 1.02), (1000, 4, 0.9, 1.1)):
            out = io.StringIO()
            with contextlib.redirect_stderr(out):
                s = ChunkShuffleSampler(d, 1, 0, group=group, chunk=chunk)
            q = s.quality()
            self.assertGreater(q.same_class, low)
            self.assertLess(q.same_class, high)
            self.assertIn(str(q), out.getvalue())
        self.assertGreater(q.classes, 9.9)
        with contextlib.redirect_stderr(out), self.assertLogs("bivouac"):
            unknown = ChunkShuffleSampler(range(100), 1, 0, chunk=10, group=1, batch_size=10).quality()
        self.assertEqual(unknown.full_classes, 0)
        self.assertAlmostEqual(unknown.same_chunk, 99 / 9)

    def test_plan_and_resume(self) -> None:
        ours = self.samplers(100, 3, chunk=8, group=2)
        whole = [list(s) for s in ours]
        reporter.flush()
        plan = self.daemon.asked("PUT", "/v1/plan")[-1]
        self.assertEqual([plan.get(k) for k in ("kind", "ranks", "chunk", "group")], ["chunk", 3, 8, 2])
        self.assertNotIn("indices", plan)
        begun = list(itertools.islice(ours[1], 11))
        state = ours[1].state_dict()
        self.assertEqual(state, {"epoch": 0, "done": 33, "ranks": 3})
        again = self.samplers(100, 3, chunk=8, group=2)[1]
        again.load_state_dict(state)
        self.assertEqual(begun + list(again), whole[1])
        reporter.flush()
        self.assertEqual(max(p["position"] for p in self.daemon.positions()), 34)
        with self.assertRaisesRegex(ValueError, "of 3 ranks, and there are 2"):
            self.samplers(100, 2)[0].load_state_dict(state)

    def test_plan_of_given_chunks(self) -> None:
        """The daemon does not know these chunks: it gets each epoch as a list."""
        s = ChunkShuffleSampler(self.folder(6), 1, 0, chunks=[[0, 5], [1, 3], [2, 4]], group=1, verbose=False)
        for epoch in range(2):
            s.set_epoch(epoch)
            mine = list(s)
            reporter.flush()
            plan = self.daemon.asked("PUT", "/v1/plan")[-1]
            self.assertEqual((plan["kind"], plan["indices"]), ("list", mine))
            self.assertEqual({p["epoch"] for p in self.daemon.positions()}, {0})
