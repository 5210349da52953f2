import errno
import itertools
import os
import random
from pathlib import Path
from typing import Any, Dict, List, Tuple
from unittest import mock

from torch.utils.data import BatchSampler, DistributedSampler as Plain

import bivouac._map
import bivouac._reporter as reporter
from bivouac.torch import LocalitySampler

from .fake import Folder, JobTest


def global_batches(samplers: List[Any], size: int) -> List[List[int]]:
    """The samples of each step over all ranks, sorted."""
    return [sorted(i for part in step for i in part) for step in zip(*(BatchSampler(s, size, False) for s in samplers))]


class LocalityTest(JobTest):
    def setUp(self) -> None:
        super().setUp()
        patient = mock.patch.object(bivouac._map, "_RESTART", 0)
        patient.start()
        self.addCleanup(patient.stop)

    def folder(self, n: int) -> Folder:
        return Folder(self.mount / "data" / "set", n=n)

    def samplers(self, n: int, size: int, nodes: List[int], **args: Any) -> List[LocalitySampler]:
        d = self.folder(n)
        with mock.patch("logging.Logger.warning"):  # all ranks are on node 0 here
            return [LocalitySampler(d, size, len(nodes), r, rank_nodes=nodes, **args) for r in range(len(nodes))]

    def test_global_batches_are_torchs(self) -> None:
        rnd = random.Random(1)
        layouts = ([0], [0, 1, 2, 3], [0, 0, 1], [2, 0, 2, 0, 5])
        for n, size, nodes, drop in itertools.product((1, 2, 31, 64, 100), (1, 4, 8), layouts, (True, False)):
            self.daemon.give_map([rnd.choice((0, 1, 2, 3, 4, 5, 0xFFFF)) for _ in range(n)], 6)
            args: Dict[str, Any] = dict(seed=3, drop_last=drop, shuffle=rnd.random() < 0.8)
            ours = self.samplers(n, size, nodes, **args)
            theirs = [Plain(self.folder(n), len(nodes), r, **args) for r in range(len(nodes))]
            for epoch in (0, 2):
                for s in ours + theirs:
                    s.set_epoch(epoch)
                self.assertEqual(global_batches(ours, size), global_batches(theirs, size), (n, size, nodes, args))
                self.assertEqual({len(list(s)) for s in ours}, {len(theirs[0])})

    def test_as_many_are_local_as_can_be(self) -> None:
        rnd = random.Random(2)
        n, size, nodes = 640, 32, [0, 0, 1, 2, 3]
        owner = [rnd.choice((0, 0, 1, 2, 4, 0xFFFF)) for _ in range(n)]  # node 3 has no files, node 4 has no ranks
        self.daemon.give_map(owner, 5)
        ours = self.samplers(n, size, nodes)
        for step in zip(*(BatchSampler(s, size, False) for s in ours)):
            held = [owner[i] for part in step for i in part]
            best = sum(min(held.count(node), nodes.count(node) * size) for node in set(nodes))
            self.assertEqual(sum(owner[i] == nodes[r] for r, part in enumerate(step) for i in part), best)

    def test_resume(self) -> None:
        rnd = random.Random(3)
        n, size, nodes = 200, 8, [0, 1, 2, 3]
        self.daemon.give_map([rnd.randrange(4) for _ in range(n)], 4)
        whole = global_batches(self.samplers(n, size, nodes), size)
        for steps in (0, 1, 3, 6, 7):
            ours = self.samplers(n, size, nodes)
            begun = [list(itertools.islice(BatchSampler(s, size, False), steps)) for s in ours]
            states = {str(s.state_dict()): s.state_dict() for s in ours}  # alike on all ranks
            self.assertEqual(len(states), 1)
            done = [sorted(i for part in step for i in part) for step in zip(*begun)]
            state = next(iter(states.values()))
            again = self.samplers(n, size, nodes)
            for s in again:
                s.load_state_dict(state)
                s.set_epoch(s.epoch)
            self.assertEqual(done + global_batches(again, size), whole)
            half = self.samplers(n, size, [0, 1])  # on half the ranks, every sample that is left comes once
            for s in half:
                s.load_state_dict(state)
            left = [i for b in global_batches(half, size) for i in b]
            self.assertEqual(sorted(left + [i for b in done for i in b]), list(range(n)))

    def test_mid_batch_is_done_again(self) -> None:
        self.daemon.give_map([i % 2 for i in range(64)], 2)
        s = self.samplers(64, 8, [0, 1])[0]
        list(itertools.islice(s, 13))
        self.assertEqual(s.state_dict(), {"epoch": 0, "done": 16})
        list(s)
        self.assertEqual(s.state_dict(), {"epoch": 0, "done": 64})

    def test_plan(self) -> None:
        self.daemon.give_map([i % 2 for i in range(64)], 2)
        s = self.samplers(64, 8, [0, 1])[0]
        reporter.flush()
        plan = self.daemon.asked("PUT", "/v1/plan")[-1]
        mine = list(s)
        self.assertEqual(
            (plan["kind"], plan["first_only"], plan["ranks"], plan["indices"][::2]), ("list", True, 2, mine)
        )
        s.set_epoch(1)
        mine = list(s)
        reporter.flush()
        self.assertEqual(self.daemon.asked("PUT", "/v1/plan")[-1]["indices"][::2], mine)
        last = self.daemon.positions()[-1]
        self.assertEqual((last["epoch"], last["position"]), (0, 32))

    def test_without_a_map(self) -> None:
        """If the training does not fit the dataset, it is DistributedSampler, with one warning that says why."""
        self.daemon.replies["POST /v1/map"] = (400, {"error": "50 files, and the dataset has 49"})
        with self.assertLogs("bivouac", "WARNING") as logs:
            s = LocalitySampler(self.folder(50), 4, 4, 1, seed=6, rank_nodes=[0, 0, 0, 0])
        self.assertEqual(list(s), list(Plain(self.folder(50), 4, 1, seed=6)))
        self.assertEqual(len(logs.output), 1)
        self.assertIn("the dataset has 49", logs.output[0])

    def test_daemon_is_killed(self) -> None:
        """The sampler keeps its map."""
        self.daemon.give_map([i % 2 for i in range(64)], 2)
        ours = self.samplers(64, 8, [0, 1])
        want = [list(s) for s in self.samplers(64, 8, [0, 1])]
        reporter.flush()
        with self.assertLogs("bivouac", "WARNING") as logs:
            self.daemon.kill()
            self.assertEqual([list(s) for s in ours], want)
            reporter.flush()
        self.assertEqual(len(logs.output), 1)

    def test_a_rank_alone_does_not_fall_back(self) -> None:
        """The other ranks may have a map: global batches would differ."""
        replies: List[Tuple[Any, str]] = [
            ((404, {"error": "no dataset is named set"}), "no dataset is named set"),
            ((500, {"error": "its tree is not known yet"}), "its tree is not known yet"),
            ({"nodes": ["a"], "owner": "!"}, "cannot be read"),
            ({"files": 64, "nodes": ["a"], "owner": "AAA="}, "cannot be read"),
            ({"files": 64, "nodes": [], "owner": "AAAA"}, "cannot be read"),
            ([], "cannot be read"),
            (None, "does not answer"),
        ]
        for reply, why in replies:
            if reply is None:
                self.daemon.kill()
            self.daemon.replies["POST /v1/map"] = reply
            for job in ({}, {"SLURM_JOB_NUM_NODES": "1"}):  # ranks of one node must agree, too
                with mock.patch.dict("os.environ", job):
                    with self.assertRaisesRegex(OSError, why + ".*start training again"):
                        LocalitySampler(self.folder(64), 8, 2, 1, rank_nodes=[0, 1])

    def test_the_dataset_is_known_later(self) -> None:
        self.daemon.give_map([i % 2 for i in range(64)], 2)
        want = [list(s) for s in self.samplers(64, 8, [0, 1])]
        good = self.daemon.replies["POST /v1/map"]
        answers = iter([(500, {"error": "its tree is not known yet"}), (404, {"error": "no dataset is named set"})])
        self.daemon.replies["POST /v1/map"] = lambda body: next(answers, good)
        with mock.patch.object(bivouac._map, "_RESTART", 600):
            self.assertEqual([list(s) for s in self.samplers(64, 8, [0, 1])], want)

    def test_gather_without_a_map(self) -> None:
        """All ranks take torch's samples, since one tells the others that it has no map."""
        sent: List[Any] = []

        def all_gather(answers: List[Any], mine: Any) -> None:
            sent.append(mine)
            answers[:] = [mine, (1, 0)]

        self.daemon.kill()
        group = mock.Mock(get_world_size=lambda: 2, all_gather_object=all_gather)
        with mock.patch("bivouac.torch._locality.dist", group), self.assertLogs("bivouac", "WARNING"):
            s = LocalitySampler(self.folder(64), 8, 2, 0, rank_nodes="gather")
        self.assertEqual(sent, [None])
        self.assertEqual(list(s), list(Plain(self.folder(64), 2, 0)))

    def test_gather_with_a_rank_outside_the_job(self) -> None:
        """Its environment is lost, or its mount fails: the others wait for it all the same."""
        sent: List[Any] = []

        def all_gather(answers: List[Any], mine: Any) -> None:
            sent.append(mine)
            answers[:] = [mine, (1, 0)]

        group = mock.Mock(get_world_size=lambda: 2, all_gather_object=all_gather)
        d = self.folder(64)
        with mock.patch("bivouac.torch._locality.dist", group), mock.patch.dict("os.environ"):
            os.environ.pop("BIVOUAC")
            for broken in (FileNotFoundError(), OSError(errno.ENOTCONN, "not connected")):
                with mock.patch("pathlib.Path.read_text", side_effect=broken), self.assertLogs("bivouac", "WARNING"):
                    s = LocalitySampler(d, 8, 2, 0, rank_nodes="gather")
                self.assertEqual(list(s), list(Plain(d, 2, 0)))
        self.assertEqual(sent, [None, None])

    def test_the_mount_fails(self) -> None:
        """Then the dataset is not found, as outside a job; only this rank sees it."""
        with mock.patch("pathlib.Path.read_text", side_effect=OSError(errno.ENOTCONN, "not connected")):
            with self.assertRaisesRegex(OSError, "not connected.*start training again"):
                LocalitySampler(self.folder(64), 8, 2, 1, rank_nodes=[0, 1])
            for use in (lambda: bivouac.dataset("set", "/usr"), lambda: bivouac.stage_in("/usr")):
                with self.assertRaisesRegex(OSError, "not connected"):  # not the directory of outside a job
                    use()

    def test_the_mount_fails_for_a_moment(self) -> None:
        """The dataset is found when the mount answers again: this rank decides as the others do."""
        self.daemon.give_map([i % 2 for i in range(64)], 2)
        want = [list(s) for s in self.samplers(64, 8, [0, 1])]
        read, fails = Path.read_text, iter([True, True, False, True])

        def read_text(path: Path, *args: Any, **more: Any) -> str:
            if next(fails, False):
                raise OSError(errno.ENOTCONN, "not connected")
            return read(path, *args, **more)

        with mock.patch("pathlib.Path.read_text", read_text), mock.patch.object(bivouac._map, "_RESTART", 600):
            self.assertEqual([list(s) for s in self.samplers(64, 8, [0, 1])], want)

    def test_rank_nodes(self) -> None:
        self.daemon.give_map([i % 2 for i in range(64)], 2)
        d = self.folder(64)
        by_name = LocalitySampler(d, 8, 2, 0, rank_nodes=["node0.cluster", "node1"])
        self.assertEqual(list(by_name), list(LocalitySampler(d, 8, 2, 0, rank_nodes=[0, 1])))
        for bad in ([0], [0, 2], [0, "node9"], "node0"):
            with self.assertRaisesRegex(ValueError, "rank_nodes"):
                LocalitySampler(d, 8, 2, 0, rank_nodes=bad)
        with self.assertLogs("bivouac", "WARNING") as logs:
            s = LocalitySampler(d, 8, 2, 0, rank_nodes="gather")
        self.assertIn("init_process_group", logs.output[0])
        self.assertEqual(list(s), list(Plain(d, 2, 0)))
        with self.assertLogs("bivouac", "WARNING") as logs:
            LocalitySampler(d, 8, 2, 0, rank_nodes=[1, 0])
        self.assertIn("rank 0 is on node node0, and rank_nodes has it on node1", logs.output[0])
        with self.assertLogs("bivouac", "WARNING") as logs:
            s = LocalitySampler(d, 8, 2, 0)
        self.assertIn("cannot tell which rank is on which node", logs.output[0])
        self.assertEqual(list(s), list(Plain(d, 2, 0)))

    def test_outside(self) -> None:
        with mock.patch.dict("os.environ"):
            os.environ.pop("BIVOUAC")
            d = Folder(self.home / "x", n=50)
            for nodes in (None, "gather", [0, 1, 2]):
                self.assertEqual(list(LocalitySampler(d, 4, 3, 1, rank_nodes=nodes)), list(Plain(d, 3, 1)))
        with self.assertRaises(ValueError):
            LocalitySampler(d, 0, 3, 1)
