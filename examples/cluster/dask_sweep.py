"""A study on a Dask cluster, into the same folder as `tidegate sweep`.

Usage: python dask_sweep.py STUDY.toml FOLDER [tcp://SCHEDULER:8786]
"""

import sys

import distributed
import tidegate.dask

if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    study, folder, *scheduler = sys.argv[1:]
    # Without a scheduler, a cluster of two processes on this machine.
    client = distributed.Client(*scheduler) if scheduler else distributed.Client(n_workers=2, threads_per_worker=1)
    print(tidegate.dask.sweep(client, study, out=folder))
