"""Reads samples of one HDF5 file at random: each row is read where the sampler says.

Stage the file as it is: --bivouac-stage-in=/lustre/me/table:table
"""

from typing import Any, Tuple

import torch
from torch.utils.data import Dataset


class Table(Dataset):  # type: ignore[type-arg]
    """The rows of a file with x and y. It is opened by each worker: HDF5 does not outlive a fork."""

    def __init__(self, path: str) -> None:
        import h5py

        self.path = path
        self.file: Any = None
        with h5py.File(path, "r") as f:
            self.rows = len(f["y"])

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> Tuple[torch.Tensor, int]:
        import h5py

        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return torch.from_numpy(self.file["x"][i]), int(self.file["y"][i])


def total(path: str, sampler_class: Any, workers: int = 1) -> float:
    """The sum over this rank's samples of an epoch."""
    from torch.utils.data import DataLoader

    table = Table(path)
    loader = DataLoader(table, batch_size=16, sampler=sampler_class(table, seed=3), num_workers=workers)
    return float(sum(x.double().sum() + y.sum() for x, y in loader))
