"""`start_several_times.py DELAY_S PORT...`: join a process group at each of several stores.

Prints the rank's number of groups and waits, so that the caller can kill the process.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

from training.runtime import distributed

if __name__ == "__main__":
    delay_s, *ports = sys.argv[1:]
    distributed.CONNECT_S = 30.0
    for joined, port in enumerate(ports, 1):
        time.sleep(float(delay_s))
        os.environ["MASTER_PORT"] = port
        distributed.start(torch.device("cpu"))
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2
        distributed.stop()
        print(joined, flush=True)  # noqa: T201
    time.sleep(600)
