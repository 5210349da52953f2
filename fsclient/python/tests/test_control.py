import json
import os
import unittest
from pathlib import Path
from unittest import mock

import bivouac
from bivouac._dataset import _default_name

from .fake import JobTest


class OutsideTest(unittest.TestCase):
    """Outside a job everything is an ordinary directory."""

    def setUp(self) -> None:
        env = mock.patch.dict(os.environ)
        env.start()
        self.addCleanup(env.stop)
        os.environ.pop("BIVOUAC", None)

    def test_nothing_happens(self) -> None:
        self.assertIsNone(bivouac.find_control())
        self.assertIsNone(bivouac.find_control("/usr/share"))
        d = bivouac.dataset("imagenet", otherwise="/usr/share")
        self.assertEqual(os.fspath(d.wait(timeout=0)), "/usr/share")
        self.assertIsNone(d.status())
        self.assertEqual(d.locate("."), ())
        self.assertEqual(os.fspath(bivouac.dataset("x").path), "x")
        d = bivouac.stage_in("/usr/share/../lib", unpack="no")
        self.assertEqual((d.name, str(d.path)), ("lib", "/usr/lib"))
        d = bivouac.stage_in(__file__, unpack="no")  # a single file is in a directory, as in a job
        self.assertEqual((d.name, d.path), ("test_control", Path(__file__).absolute().parent))

    def test_a_mount_that_has_gone(self) -> None:
        os.environ["BIVOUAC"] = "/nonexistent/mount"
        self.assertIsNone(bivouac.find_control())

    def test_torch_is_not_imported(self) -> None:
        code = "import sys, bivouac; sys.exit('torch' in sys.modules)"
        self.assertEqual(os.spawnl(os.P_WAIT, __import__("sys").executable, "python3", "-c", code), 0)


class ControlTest(JobTest):
    def test_found_by_path(self) -> None:
        (self.mount / "data" / "d" / "a").mkdir(parents=True)
        os.environ.pop("BIVOUAC")
        c = bivouac.find_control(self.mount / "data" / "d" / "a")
        assert c is not None
        self.assertEqual((c.path, c.mount), (self.daemon.path, str(self.mount)))
        link = self.home / "link"
        link.symlink_to(self.mount / "data" / "d")
        c = bivouac.find_control(link)
        assert c is not None
        self.assertEqual(c.mount, str(self.mount))

    def test_errors(self) -> None:
        c = bivouac.find_control()
        assert c is not None
        self.daemon.replies["GET /v1/status"] = (400, {"error": "give a name"})
        with self.assertRaisesRegex(bivouac.Refused, "^give a name$") as got:
            c.status()
        self.assertEqual(got.exception.status, 400)
        for body in ({}, [], b"404 page not found", b""):
            self.daemon.replies["GET /v1/status"] = (404, body)
            with self.assertRaisesRegex(bivouac.Refused, "answers 404"):
                c.status()
        self.daemon.replies["GET /v1/status"] = b"{broken"
        with self.assertRaises(bivouac.ControlError):
            c.status()
        self.daemon.kill()
        with self.assertRaisesRegex(bivouac.ControlError, "does not answer"):
            c.status()


class DatasetTest(JobTest):
    def status(self, *datasets: object) -> None:
        self.daemon.replies["GET /v1/status"] = {"datasets": datasets}

    def test_paths(self) -> None:
        d = bivouac.dataset("d")
        for name in ("b/1.jpg", "a/2.jpg", "a/x.txt"):
            p = d.path / name
            p.parent.mkdir(parents=True, exist_ok=True)
            p.write_text("")
        self.assertEqual([str(p.relative_to(d.path)) for p in d.paths("**/*.jpg")], ["a/2.jpg", "b/1.jpg"])
        self.assertEqual(d.locate("a/2.jpg"), ())  # this is no mount of Bivouac
        with self.assertRaises(FileNotFoundError):
            d.locate("a/3.jpg")

    def test_wait(self) -> None:
        d = bivouac.dataset("d")
        self.status({"name": "d", "phase": "filling", "readable": True, "ready": False})
        self.assertIs(d.wait(), d)
        with self.assertRaisesRegex(TimeoutError, "is filling"):
            d.wait("all", timeout=0.01)
        self.status()
        with self.assertRaisesRegex(TimeoutError, "there is no dataset .*: stage it"):
            d.wait(timeout=0.01)
        self.status({"name": "d", "phase": "failed", "error": "no such archive"})
        with self.assertRaisesRegex(bivouac.StageInFailed, "no such archive"):
            d.wait()
        self.status({"name": "d", "phase": "removed", "error": "cancelled by bivouac cancel"})
        with self.assertRaisesRegex(bivouac.StageInFailed, "cancelled by bivouac cancel"):
            bivouac.dataset("d").wait(timeout=30)
        self.status({"name": "d", "phase": "failed"}, {"name": "d", "phase": "sealed", "ready": True})
        d.wait("all")
        with self.assertRaises(ValueError):
            d.wait("soon")

    def test_wait_for_a_daemon_that_restarts(self) -> None:
        d = bivouac.dataset("d")
        self.daemon.kill()
        with self.assertRaisesRegex(TimeoutError, "does not answer"):
            d.wait(timeout=0.01)
        self.daemon.restart()
        self.status({"name": "d", "phase": "sealed", "ready": True})
        d.wait()

    def test_stage_in(self) -> None:
        self.status({"name": "set", "phase": "sealed", "ready": True, "source": "/src/set.tar.gz"})
        self.daemon.replies["POST /v1/stage-in"] = {"dataset": 1, "name": "set"}
        order = "seed:7,ranks=4,root=train,drop_last"
        os.environ["XDG_CACHE_HOME"] = "/var/c"
        d = bivouac.stage_in("/src/set.tar.gz", include="*.jpg", limit=3, order=order, replicas=2)
        self.assertEqual(d.path, self.mount / "data" / "set")
        want_order = {"kind": "seed", "seed": 7, "ranks": 4, "root": "train", "drop_last": True}
        options = {"include": ["*.jpg"], "limit": 3, "order": want_order, "replicas": "2", "cache": "/var/c/bivouac"}
        want = {"source": "/src/set.tar.gz", "name": "set", "options": options}
        self.assertEqual(self.daemon.asked("POST", "/v1/stage-in"), [want])
        with self.assertRaisesRegex(TypeError, "no option 'unpak'"):
            bivouac.stage_in("/src/set.tar.gz", unpak="no")

    def test_stage_in_by_many_ranks(self) -> None:
        self.daemon.replies["POST /v1/stage-in"] = (409, {"error": "a dataset named set is there already"})
        self.status({"name": "set", "phase": "sealed", "ready": True, "source": "/src/set.tar"})
        self.assertEqual(bivouac.stage_in("/src/set.tar").name, "set")
        with self.assertRaises(bivouac.Refused):  # the name is another source's
            bivouac.stage_in("/other/set.tar")

    def test_default_names(self) -> None:
        for source, name in (
            ("/a/b.tar.zst", "b"),
            ("/a/b.tgz", "b"),
            ("/a/b.v1", "b.v1"),
            ("/a/wds/train-{000..127}.tar", "wds"),
            ("/a/wds/*.tar", "wds"),
            ("/a/b.zip", "b"),
        ):
            self.assertEqual(_default_name(source), name)
        kept = {"/a/b.h5": "b", "/a/b.1.2": "b.1.2", "/a/.b": ".b", "/a/b.tar": "b", "/a/w.s/*.tar": "w.s"}
        for source, name in kept.items():
            self.assertEqual(_default_name(source, "no"), name)


class JSONTest(JobTest):
    def test_bodies_are_json(self) -> None:
        c = bivouac.find_control()
        assert c is not None
        self.daemon.replies["PUT /x"] = lambda body: {"got": body}
        self.assertEqual(c.call("PUT", "/x", {"a": ["ü", 1]}), {"got": {"a": ["ü", 1]}})
        self.daemon.replies["GET /y"] = {}
        c.call("GET", "/y", query={"dataset": "a b&c"})
        self.assertEqual(self.daemon.requests[-1][1], "/y?dataset=a%20b%26c")
        json.dumps(self.daemon.requests)
