"""Writes the datasets of the test in a job: images in classes, shards, and a table."""

import io
import sys
import tarfile
from pathlib import Path

import h5py
import numpy
from PIL import Image

IMAGES, CLASSES, SHARDS, PER_SHARD, ROWS = 157, 4, 8, 6, 100


def main(home: Path) -> None:
    rng = numpy.random.default_rng(1)
    for i in range(IMAGES):
        path = home / "images" / "train" / f"c{i * CLASSES // IMAGES}" / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=numpy.uint8)).save(path)
    (home / "images" / "README.txt").write_text("no image")
    (home / "images" / "train" / "c0" / ".DS_Store").write_text("no image")
    (home / "shards").mkdir()
    for s in range(SHARDS):
        with tarfile.open(home / "shards" / f"shard-{s:03}.tar", "w") as tar:
            for k in range(PER_SHARD):
                for ending, size in (("jpg", 100 + s), ("cls", 1)):
                    info = tarfile.TarInfo(f"{s:03}{k:03}.{ending}")
                    info.size = size
                    tar.addfile(info, io.BytesIO(rng.bytes(size)))
    (home / "table").mkdir()
    with h5py.File(home / "table" / "table.h5", "w") as f:
        f["x"] = rng.random((ROWS, 16))
        f["y"] = rng.integers(0, 10, ROWS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
