"""Bivouac from Python: datasets of the job, and in bivouac.torch samplers and measurements.

Bivouac is a filesystem that lives as long as one Slurm job. Programs can use it without
this package: datasets are ordinary directories. The package adds control: waiting for a dataset,
staging another one, and telling the daemons which samples training reads next. Outside a Bivouac
job everything here does nothing, so that one script runs everywhere.

Nothing but the standard library is imported, except torch by bivouac.torch.
"""

from ._control import Control, ControlError, Refused, find_control
from ._dataset import Dataset, StageInFailed, dataset, locate, stage_in
from ._version import __version__

__all__ = [
    "Control",
    "ControlError",
    "Dataset",
    "Refused",
    "StageInFailed",
    "__version__",
    "dataset",
    "find_control",
    "locate",
    "stage_in",
]
