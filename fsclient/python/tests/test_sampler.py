import copy
import itertools
import logging
import os
import pickle
import random
import unittest
import warnings
from typing import Any, List
from unittest import mock

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler as Plain, Subset

import bivouac._reporter as reporter
from bivouac.torch import DistributedSampler

from .fake import Folder, JobTest, forget


class Numbers(Dataset):  # type: ignore[type-arg]
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        return i


def outside(test: unittest.TestCase) -> None:
    env = mock.patch.dict(os.environ)
    env.start()
    test.addCleanup(env.stop)
    os.environ.pop("BIVOUAC", None)


class SameAsTorchTest(unittest.TestCase):
    def setUp(self) -> None:
        outside(self)

    def test_indices(self) -> None:
        both = (True, False)
        for n, ranks, shuffle, drop in itertools.product((0, 1, 2, 5, 16, 97), (1, 2, 3, 7), both, both):
            for rank in range(ranks):
                args = dict(num_replicas=ranks, rank=rank, shuffle=shuffle, seed=3, drop_last=drop)
                ours, theirs = DistributedSampler(Numbers(n), **args), Plain(Numbers(n), **args)
                for epoch in (0, 0, 1, 5):
                    ours.set_epoch(epoch)
                    theirs.set_epoch(epoch)
                    self.assertEqual(_try(ours), _try(theirs), (n, args, epoch))
                self.assertEqual(len(ours), len(theirs))

    def test_errors(self) -> None:
        for args in (dict(num_replicas=2, rank=2), dict(num_replicas=2, rank=-1), dict()):
            with self.assertRaises((ValueError, RuntimeError)) as theirs:
                Plain(Numbers(3), **args)
            with self.assertRaises(type(theirs.exception)):
                DistributedSampler(Numbers(3), **args)

    def test_through_a_loader(self) -> None:
        for workers in (0, 2):
            args = dict(batch_size=4, num_workers=workers)
            ours = DataLoader(Numbers(30), sampler=DistributedSampler(Numbers(30), 2, 1, seed=9), **args)
            theirs = DataLoader(Numbers(30), sampler=Plain(Numbers(30), 2, 1, seed=9), **args)
            self.assertEqual([b.tolist() for b in ours], [b.tolist() for b in theirs])

    def test_copies(self) -> None:
        s = DistributedSampler(Numbers(10), 2, 0)
        for c in (copy.deepcopy(s), pickle.loads(pickle.dumps(s))):
            self.assertEqual(list(c), list(s))


def _try(sampler: Any) -> Any:
    try:
        return list(sampler)
    except Exception as e:
        return type(e)


class ResumeTest(unittest.TestCase):
    def setUp(self) -> None:
        outside(self)

    def sampler(self, ranks: int, rank: int, n: int = 53, **args: Any) -> DistributedSampler:
        s = DistributedSampler(Numbers(n), ranks, rank, seed=4, **args)
        s.set_epoch(3)
        return s

    def test_same_ranks(self) -> None:
        for drop, stop in itertools.product((True, False), (0, 1, 7, 13, 14)):
            for rank in range(4):
                whole = list(self.sampler(4, rank, drop_last=drop))
                s = self.sampler(4, rank, drop_last=drop)
                begun = list(itertools.islice(s, stop))
                state = s.state_dict()
                again = self.sampler(4, rank, drop_last=drop)
                again.load_state_dict(state)
                again.set_epoch(again.epoch)  # as a loop over epochs does
                self.assertEqual(begun + list(again), whole)
                self.assertEqual(list(again), whole)  # only the epoch under way is cut
                again.load_state_dict(state)
                again.set_epoch(4)
                plain = Plain(Numbers(53), 4, rank, seed=4, drop_last=drop)
                plain.set_epoch(4)
                self.assertEqual(list(again), list(plain))

    def test_other_ranks(self) -> None:
        """Resumed twice with other numbers of ranks: every sample once, and the padding at the end."""
        for n, plan in itertools.product((40, 53), ([(4, 5), (3, 4), (5, 99)], [(1, 7), (4, 99)], [(7, 0), (2, 99)])):
            state, seen = None, []
            for ranks, stop in plan:
                samplers = [self.sampler(ranks, r, n) for r in range(ranks)]
                for s in samplers:
                    if state is not None:
                        s.load_state_dict(state)
                parts = [list(itertools.islice(s, stop)) for s in samplers]
                self.assertEqual(len({len(p) for p in parts}), 1)
                seen += [i for row in zip(*parts) for i in row]
                states = [s.state_dict() for s in samplers]
                self.assertEqual(len({str(x) for x in states}), 1)
                state = states[0]
            self.assertEqual(sorted(set(seen)), list(range(n)))
            self.assertLess(len(seen) - n, plan[-1][0])

    def test_state_of_a_resumed_epoch(self) -> None:
        s = self.sampler(4, 1)
        whole = list(s)
        s.load_state_dict({"epoch": 3, "done": 16})
        self.assertEqual(s.state_dict(), {"epoch": 3, "done": 16})
        it = iter(s)
        iter(s)  # one that is thrown away
        self.assertEqual(s.state_dict(), {"epoch": 3, "done": 16})
        self.assertEqual([next(it), next(it)], whole[4:6])
        self.assertEqual(s.state_dict(), {"epoch": 3, "done": 24})
        self.assertEqual(s.state_dict(trained=1), {"epoch": 3, "done": 20})

    def test_bad_state(self) -> None:
        s = self.sampler(4, 1)
        for bad in ({"epoch": 0, "done": -1}, {"epoch": -1, "done": 0}):
            with self.assertRaises(ValueError):
                s.load_state_dict(bad)
        s.load_state_dict({"epoch": 3, "done": 10**9})
        self.assertEqual(list(s), [])

    def test_batches_of_a_stateful_loader(self) -> None:
        """torchdata takes the state after each batch that it asks for, and its batch sampler keeps the iterator."""
        s = self.sampler(2, 0, n=64)
        states, batches = [], []
        for batch in BatchSampler(s, 4, False):
            batches.append(batch)
            states.append(s.state_dict())
        for k, state in enumerate(states):
            again = self.sampler(2, 0, n=64)
            again.load_state_dict(state)
            self.assertEqual(list(BatchSampler(again, 4, False)), batches[k + 1 :])

    def test_state_of_a_whole_epoch(self) -> None:
        """Its rest is empty; StatefulDataLoader makes two iterators when it knows that the epoch was over."""
        whole = list(self.sampler(4, 1))
        state = {"epoch": 3, "done": 4 * len(whole)}
        s = self.sampler(4, 1)
        s.load_state_dict(state)
        self.assertEqual((list(s), s.state_dict(), list(s)), ([], state, whole))
        s.load_state_dict(state)
        iter(s)  # thrown away
        self.assertEqual((s.state_dict(), list(s)), (state, whole))
        s.set_epoch(4)
        s.load_state_dict(state)
        self.assertEqual((s.epoch, len(list(s))), (4, len(whole)))
        s.set_epoch(4)
        s.load_state_dict({**state, "done": 4})  # the state of a part counts
        self.assertEqual((s.epoch, list(s)), (3, whole[1:]))


class PlanTest(JobTest):
    def folder(self, n: int = 40) -> Folder:
        return Folder(self.mount / "data" / "set" / "train", n=n)

    def plans(self) -> List[Any]:
        reporter.flush()
        return self.daemon.asked("PUT", "/v1/plan")

    def test_image_folder(self) -> None:
        s = DistributedSampler(self.folder(), 4, 1, seed=7)
        want = {"dataset": "set", "kind": "torch", "seed": 7, "ranks": 4, "shuffle": True, "root": "train", "files": 40}
        self.assertEqual(self.plans(), [want])
        self.assertEqual(self.daemon.positions(), [])
        it = iter(s)
        for _ in range(3):
            next(it)
        reporter.flush()
        want = {"dataset": "set", "digest": "torch-7-4", "rank": 1, "epoch": 0, "position": 3}
        self.assertEqual(self.daemon.positions()[-1], want)
        self.assertEqual(len(list(it)), 7)
        s.set_epoch(5)
        list(s)
        reporter.flush()
        self.assertEqual(self.daemon.positions()[-1], {**want, "epoch": 5, "position": 10})
        self.assertEqual(len(self.plans()), 1)  # it is for all epochs

    def test_arguments(self) -> None:
        s = DistributedSampler(self.folder(), 4, 1, seed=-1, shuffle=False, drop_last=True)
        want = {"dataset": "set", "kind": "torch", "seed": 2**64 - 1, "ranks": 4, "shuffle": False, "drop_last": True}
        self.assertEqual(self.plans(), [{**want, "root": "train", "files": 40}])
        self.assertEqual(len(list(s)), 10)

    def test_other_orders_have_paths(self) -> None:
        root = self.mount / "data" / "set"
        names = ["b/1.jpg", "a/2.jpg", "a/x.npy"]
        plan = self.plan_of(DistributedSampler(Folder(root, names), 1, 0))
        self.assertEqual(plan["paths"], names)
        plan = self.plan_of(DistributedSampler(Subset(self.folder(), [3, 1]), 1, 0))
        self.assertEqual((plan["files"], plan["root"], plan["paths"]), (2, "train", ["c0/00003.jpg", "c0/00001.jpg"]))
        plan = self.plan_of(DistributedSampler(Numbers(2), 1, 0, data="set", paths=["z/1", str(root / "z/2")]))
        self.assertEqual((plan["dataset"], plan.get("root"), plan["paths"]), ("set", None, ["z/1", "z/2"]))

    def plan_of(self, sampler: DistributedSampler) -> Any:
        list(sampler)
        return self.plans()[-1]

    def test_elsewhere(self) -> None:
        """A dataset that is not Bivouac's: no plan, and torch's indices."""
        with self.assertNoLogs():
            DistributedSampler(Folder(self.home / "other", n=9), 1, 0)
        with self.assertLogs("bivouac", "WARNING") as got:
            s = DistributedSampler(Numbers(9), 1, 0)
        self.assertIn("give data=NAME", got.output[0])
        self.assertEqual(list(s), list(Plain(Numbers(9), 1, 0)))
        self.assertEqual(self.plans(), [])

    def test_strange_datasets(self) -> None:
        """A dataset that is not understood gives a warning, and torch's samples."""

        class Odd(Folder):
            @property
            def indices(self) -> Any:
                raise RuntimeError("not yet")

        odd = Folder(self.mount / "data" / "set", n=9)
        odd.samples.append(("/elsewhere/x.jpg", 0))
        for dataset, args in (
            (odd, {}),
            (Odd(self.mount / "data" / "set", n=9), {}),
            (Numbers(9), {"data": "set", "paths": ["a"]}),
            (Numbers(9), {"data": "set", "paths": [7] * 9}),
        ):
            with self.assertLogs("bivouac", "WARNING") as logs:
                s = DistributedSampler(dataset, 2, 1, **args)
            self.assertIn("prefetched", logs.output[0])
            self.assertEqual(list(s), list(Plain(dataset, 2, 1)))
        self.assertEqual(self.plans(), [])

    def assertNoLogs(self) -> Any:  # of Python 3.10
        return mock.patch("logging.Logger.warning", side_effect=AssertionError)

    def test_two_samplers_over_one_dataset(self) -> None:
        """The plan of the one that is iterated counts, the first one's before any is."""
        train = DistributedSampler(self.folder(), 2, 0, seed=1)
        val = DistributedSampler(Folder(self.mount / "data" / "set" / "val", n=8), 2, 0, shuffle=False)
        self.assertEqual([p["root"] for p in self.plans()], ["train"])
        for _ in range(2):
            list(train)
            reporter.flush()
            list(val)
            reporter.flush()
        self.assertEqual([p["root"] for p in self.plans()], ["train", "val", "train", "val"])

    def test_resumed_with_other_ranks(self) -> None:
        s = DistributedSampler(self.folder(), 4, 1)
        s.load_state_dict({"epoch": 2, "done": 10})
        mine = list(s)
        plan = self.plans()[-1]
        self.assertEqual(
            (plan["kind"], plan["first_only"], plan["ranks"], plan["indices"][1::4]), ("list", True, 4, mine)
        )
        self.assertEqual(self.daemon.positions()[-1]["position"], len(mine))
        s.load_state_dict({"epoch": 2, "done": 12})
        mine = list(s)
        reporter.flush()
        self.assertEqual(self.plans()[-1]["kind"], "torch")
        last = self.daemon.positions()[-1]
        self.assertEqual((last["epoch"], last["position"]), (2, 10))

    def test_daemon_is_killed(self) -> None:
        """There is one warning, and the samples go on; a daemon that is back gets the plan again."""
        s = DistributedSampler(self.folder(400), 2, 0, seed=1)
        want = list(Plain(self.folder(400), 2, 0, seed=1))
        reporter.flush()
        it = iter(s)
        got = [next(it) for _ in range(50)]
        with self.assertLogs("bivouac", "WARNING") as logs:
            self.daemon.kill()
            for _ in range(50):
                got.append(next(it))
                reporter._reporter._silent.clear()  # ask at once
                reporter.flush()
        self.assertEqual(len(logs.output), 1, logs.output)
        self.assertIn("training goes on", logs.output[0])
        self.daemon.restart()
        reporter._reporter._silent.clear()
        got += list(it)
        self.assertEqual(got, want)
        reporter.flush()
        self.assertEqual(self.daemon.positions()[-1]["position"], 200)

    def test_mount_is_gone(self) -> None:
        s = DistributedSampler(self.folder(), 2, 0)
        os.rename(self.mount, self.home / "gone")
        self.daemon.kill()
        want = list(Plain(self.folder(), 2, 0))
        self.assertEqual(list(s), want)
        self.assertEqual(list(DistributedSampler(self.folder(), 2, 0)), want)

    def test_plan_is_refused(self) -> None:
        self.daemon.replies["PUT /v1/plan"] = (400, {"error": "no dataset is named set"})
        with self.assertLogs("bivouac", "WARNING") as logs:
            s = DistributedSampler(self.folder(), 2, 0)
            for _ in range(3):
                list(s)
                reporter.flush()
        self.assertEqual(len(logs.output), 1)
        self.assertIn("no dataset is named set", logs.output[0])

    def test_strange_answers(self) -> None:
        for strange in (b"", b"null", b"[1]", b'"x"', b"<html>", (200, {}), (200, {"digest": None})):
            self.daemon.replies["PUT /v1/plan"] = strange
            self.daemon.replies["POST /v1/plan/position"] = strange
            forget()
            with self.assertLogs("bivouac") as logs:
                s = DistributedSampler(self.folder(), 2, 0)
                reporter.flush()
                self.assertEqual(len(list(s)), 20)
                reporter.flush()
                logging.getLogger("bivouac").info("there is at least this")
            self.assertLessEqual(len(logs.output), 2)

    def test_workers_are_forked(self) -> None:
        """Workers of a loader tell nothing and do not hang."""
        from torch.utils.data import get_worker_info

        class Loud(Folder):
            def __getitem__(self, i: int) -> Any:
                if get_worker_info() is None:
                    raise AssertionError("not in a worker")
                reporter.flush()
                return i, len(reporter._reporter._feeds)

        s = DistributedSampler(Loud(self.mount / "data" / "set", n=64), 2, 0)
        loader = DataLoader(s.dataset, batch_size=4, sampler=s, num_workers=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = list(loader)
        self.assertEqual(torch.cat([b[0] for b in got]).tolist(), list(Plain(s.dataset, 2, 0)))
        self.assertEqual({int(k) for b in got for k in b[1]}, {0})
        reporter.flush()
        self.assertEqual(self.daemon.positions()[-1]["position"], 32)

    def test_locks_are_free_after_a_fork(self) -> None:
        with reporter._reporter._mu, reporter._reporter._sending:
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    reporter.flush()
                    status = 0
                finally:
                    os._exit(status)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)

    def test_sent_in_the_background(self) -> None:
        s = DistributedSampler(self.folder(), 4, 1)
        self.eventually("the plan is sent", lambda: self.daemon.asked("PUT", "/v1/plan"))
        list(s)
        self.eventually("the position is sent", lambda: [p for p in self.daemon.positions() if p["position"] == 10])

    def test_the_thread_ends_with_the_sampler(self) -> None:
        s = DistributedSampler(self.folder(), 4, 1)
        self.eventually("the plan is sent", lambda: self.daemon.asked("PUT", "/v1/plan"))
        thread = reporter._reporter._thread
        assert thread is not None
        del s
        thread.join(60)
        self.assertFalse(thread.is_alive())

    def test_random_histories(self) -> None:
        """Whatever the order of calls, the samples are torch's, from the position of the state on."""
        rnd = random.Random(5)
        ours, theirs = DistributedSampler(self.folder(30), 4, 2, seed=8), Plain(self.folder(30), 4, 2, seed=8)
        epoch, done, resume = 0, 0, 0  # done is what state_dict has to say, resume where the next iterator begins
        for _ in range(300):
            what = rnd.randrange(4)
            if what == 0:
                other = rnd.randrange(3)
                if other != epoch:
                    epoch, done, resume = other, 0, 0
                ours.set_epoch(epoch)
            elif what == 1:
                k = rnd.randrange(1, 12)
                want = _whole(theirs, epoch)[resume : resume + k]
                self.assertEqual(list(itertools.islice(ours, k)), want)
                done, resume = resume + len(want), 0
            elif what == 2:
                self.assertEqual(list(ours), _whole(theirs, epoch)[resume:])
                done, resume = len(ours), 0
            else:
                state = ours.state_dict()
                self.assertEqual(state, {"epoch": epoch, "done": 4 * done})
                ours.load_state_dict(state)
                resume = done


def _whole(plain: Any, epoch: int) -> List[int]:
    plain.set_epoch(epoch)
    return list(plain)
