"""One rank of the test in a job: python3 training.py COPY RESULT, under torchrun, with $BIVOUAC.

COPY is what data.py has written, on a local disk. Every training that is the same in theory has to
give the same losses: bit for bit where the samples of each rank are the same. Rank 0 writes its findings
to RESULT, as JSON.
"""

import json
import logging
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2]), str(HERE.parents[2] / "examples")]

import imagefolder  # noqa: E402
import shards  # noqa: E402
import table  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import bivouac  # noqa: E402
from bivouac import _reporter  # noqa: E402
from bivouac.torch import DistributedSampler, LocalitySampler  # noqa: E402


class Refusals(logging.Handler):
    """Keeps refusals of the daemon."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record: logging.LogRecord) -> None:
        if "refused" in record.getMessage():
            self.lines.append(record.getMessage())


def main(copy: Path, found: Path) -> None:
    logging.basicConfig(level=logging.WARNING)
    refusals = Refusals()
    logging.getLogger("bivouac").addHandler(refusals)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    images = bivouac.dataset("images").wait("all")
    here, there = str(images.path / "train"), str(copy / "images" / "train")
    result = {
        "copy": imagefolder.train(there, "torch"),
        "unmodified": imagefolder.train(here, "torch"),
        "bivouac": imagefolder.train(here, "bivouac"),
        "locality": imagefolder.train(here, "locality"),
    }
    _reporter.flush()
    plan = images.control.call("GET", "/v1/plan", query={"dataset": "images"})["plan"]
    result["plan"] = f"{plan['kind']} of {plan['files']} files below {plan['root']}, {len(plan['indices'])} reads"
    data = imagefolder.ImageFolder(here)
    s = LocalitySampler(data, 8, seed=1, rank_nodes="gather")
    host = images.status()["per_node"][s._map.this]["host"]
    local = sum(host in images.locate(data.samples[i][0]) for i in s)
    counts = torch.tensor([local, len(s)])
    dist.all_reduce(counts)
    result["local"], result["samples"] = counts.tolist()
    want = shards.keys_of_all_ranks(bivouac.Dataset("shards", copy / "shards", None))
    result["shards"] = len(want)
    result["shards differ"] = shards.keys_of_all_ranks(bivouac.dataset("shards").wait()) != want
    ours = table.total(str(bivouac.dataset("table").wait().path / "table.h5"), DistributedSampler)
    theirs = table.total(str(copy / "table" / "table.h5"), torch.utils.data.DistributedSampler)
    result["table differs"] = ours != theirs
    again = bivouac.stage_in(copy / "table", "again", order="source", wait="all")  # by all ranks
    result["staged"] = [p.name for p in again.paths()]
    _reporter.flush()
    result["refused"] = refusals.lines
    dist.barrier()
    if dist.get_rank() == 0:
        found.write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.pop("SLURM_PROCID", None)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
