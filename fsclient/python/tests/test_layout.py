import unittest
from typing import Dict

from bivouac._layout import expand_counts, expand_hosts, rank_nodes


class LayoutTest(unittest.TestCase):
    def test_hosts(self) -> None:
        for text, want in (
            ("", []),
            ("login", ["login"]),
            ("a,b", ["a", "b"]),
            ("gpu[1-3,07],x", ["gpu1", "gpu2", "gpu3", "gpu07", "x"]),
            ("n[08-11]", ["n08", "n09", "n10", "n11"]),
            ("r[1-2]n[1,3]-ib", ["r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib"]),
        ):
            self.assertEqual(expand_hosts(text), want)

    def test_counts(self) -> None:
        for text, want in (("4", [4]), ("4(x2),3", [4, 4, 3]), ("1(x3)", [1, 1, 1]), ("", []), ("x", []), ("2,", [])):
            self.assertEqual(expand_counts(text), want)

    def test_rank_nodes(self) -> None:
        hosts = ["n1", "n2", "n3"]

        def step(hosts: str, tasks: str) -> Dict[str, str]:
            return {"SLURM_PROCID": "0", "SLURM_STEP_NODELIST": hosts, "SLURM_STEP_TASKS_PER_NODE": tasks}

        slurm = step("n[1-3]", "2(x2),1")
        agents = {"GROUP_WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2"}
        for name, ranks, env, want in (
            ("block", 5, slurm, [0, 0, 1, 1, 2]),
            ("cyclic", 5, {**slurm, "SLURM_DISTRIBUTION": "cyclic:block"}, [0, 1, 2, 0, 1]),
            ("plane", 5, {**slurm, "SLURM_DISTRIBUTION": "plane=2"}, None),
            ("another number of ranks", 4, slurm, None),
            ("part of the nodes", 2, step("n3.cluster,n1", "1(x2)"), [2, 0]),
            ("a node that is not the job's", 1, step("n9", "1"), None),
            ("the batch script's own", 5, {k: v for k, v in slurm.items() if k != "SLURM_PROCID"}, None),
            ("torchrun", 6, agents, [0, 0, 1, 1, 2, 2]),
            ("torchrun by srun", 6, {**slurm, **agents, "SLURM_STEP_NODELIST": "n3,n1,n2"}, [2, 2, 0, 0, 1, 1]),
            ("torchrun on fewer nodes", 4, {**agents, "GROUP_WORLD_SIZE": "2"}, None),
            ("nonsense", 6, {**agents, "LOCAL_WORLD_SIZE": "x"}, None),
            ("more nonsense", 5, step("n[1-x]", "2(x2),1"), None),
            ("nothing", 6, {}, None),
        ):
            self.assertEqual(rank_nodes(ranks, hosts, env), want, name)
        self.assertEqual(rank_nodes(3, ["n1"], {}), [0, 0, 0])
