"""One rank of the test of the recipes, under torchrun: recipes.py DIR NAME... runs the programs of the page one after another in
one process, because importing PyTorch takes longer than they do. What each prints goes to DIR/NAME.RANK."""

import contextlib
import os
import runpy
import sys

import torch
import torch.distributed as dist

directory, names = sys.argv[1], sys.argv[2:]
sys.path.insert(0, directory)
torch.set_num_threads(1)
dist.init_process_group("gloo")
dist.init_process_group = lambda backend: None  # the programs share the group
for name in names:
    with open(f"{directory}/{name}.{os.environ['RANK']}", "w") as out, contextlib.redirect_stdout(out):
        runpy.run_path(f"{directory}/{name}", run_name="__main__")
dist.barrier()
dist.destroy_process_group()
