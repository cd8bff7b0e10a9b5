"""Run the command line and signal it while its workers start: `python ... WHERE SIGNAL ARGS...`.

WHERE is `driver`, which gets the signal when a worker's process is there and has not yet been sent
what to do, or `group`: the driver and its workers, while a worker imports modules.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from multiprocessing import util
from typing import Any

from matchserve.cli import main

VARIABLE = "SIGNALLED_IN_START"
real_spawn = util.spawnv_passfds


def spawn(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """Start a process; if it is a worker, signal this process at once."""
    pid: int = real_spawn(path, args, passfds)
    if any("spawn_main" in str(argument) for argument in args):
        os.kill(os.getpid(), number)
    return pid


if __name__ == "__main__":
    where, number = sys.argv.pop(1), int(sys.argv.pop(1))
    if where == "driver":
        util.spawnv_passfds = spawn
    else:
        os.environ[VARIABLE] = str(number)
    main()
elif VARIABLE in os.environ:  # a worker, which imports this file before it is ready
    os.killpg(0, int(os.environ[VARIABLE]))
