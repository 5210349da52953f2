"""A sampler whose daemon is killed: python3 survivor.py, with $BIVOUAC.

It says "ready" in mid-epoch, reads a line when the daemon is dead, goes on, and prints as JSON whether the
samples were torch's, and the warnings.
"""

import json
import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from torch.utils.data import DistributedSampler as Plain  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402

from bivouac import _reporter  # noqa: E402
from bivouac.torch import DistributedSampler, LocalitySampler  # noqa: E402


class Warnings(logging.Handler):
    """Keeps log records."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main() -> None:
    warnings = Warnings()
    logging.getLogger("bivouac").addHandler(warnings)
    data = ImageFolder(os.environ["BIVOUAC"] + "/data/images/train")
    ours, near = DistributedSampler(data, 4, 2, seed=5), LocalitySampler(data, 4, 4, 3, rank_nodes=[0, 1, 2, 3])
    both = iter(ours), iter(near)
    got = [next(both[0]) for _ in range(5)]
    nearby = [next(both[1]) for _ in range(5)]
    _reporter.flush()
    calm = list(warnings.lines)
    print("ready", flush=True)
    sys.stdin.readline()
    _reporter.flush()
    got += both[0]
    nearby += both[1]
    same = got == list(Plain(data, 4, 2, seed=5)) and nearby == list(near)
    ours.set_epoch(1)
    plain = Plain(data, 4, 2, seed=5)
    plain.set_epoch(1)
    same = same and list(ours) == list(plain)
    _reporter.flush()
    print(json.dumps({"same": same, "calm": calm, "warnings": warnings.lines[len(calm) :]}), flush=True)


if __name__ == "__main__":
    main()
