"""Let the processes of one start find each other, apart from those of earlier starts.

`torchrun` keeps one key-value store for all its restarts, and PyTorch 2.13 writes the addresses of
the processes to it under the same keys every time. After a restart, a process can read the address
of a process that was killed, and then waits for it until the time-out of the group.
`TORCHELASTIC_RESTART_COUNT` does not tell the starts apart, because each machine counts for itself
(https://github.com/pytorch/pytorch/issues/135712).
"""

from __future__ import annotations

import time
import uuid

from torch._C._distributed_c10d import PrefixStore, Store

from training.errors import RanksNotConnected

_POLL_S = 0.02


def own_store(store: Store, rank: int, count: int, limit_s: float) -> Store:
    """Return a part of `store` that only the `count` processes of this start use.

    Every process makes a random name. Process 0 sends its name to the others, and repeats that
    until each has confirmed it: an entry of an earlier start may be read, but is never confirmed.

    Raises:
        RanksNotConnected: not all processes have started after `limit_s` seconds.
    """
    own_name = uuid.uuid4().hex
    end = time.monotonic() + limit_s
    if rank:
        start_name = _receive_name(store, rank, own_name, end)
    else:
        start_name = own_name
        _send_name(store, own_name, set(range(1, count)), end)
    return PrefixStore(f"start/{start_name}", store)


def _receive_name(store: Store, rank: int, own_name: str, end: float) -> str:
    store.set(f"meeting/process/{rank}", own_name)
    key = f"meeting/reply/{own_name}"
    while not store.check([key]):
        _pause(end, {0})
    start_name = store.get(key).decode()
    store.set(f"meeting/confirmed/{start_name}/{rank}", "")
    return start_name


def _send_name(store: Store, own_name: str, missing: set[int], end: float) -> None:
    while True:
        for rank in tuple(missing):
            if store.check([f"meeting/confirmed/{own_name}/{rank}"]):
                missing.remove(rank)
            elif store.check([f"meeting/process/{rank}"]):
                name = store.get(f"meeting/process/{rank}").decode()
                store.set(f"meeting/reply/{name}", own_name)
        if not missing:
            return
        _pause(end, missing)


def _pause(end: float, missing: set[int]) -> None:
    if time.monotonic() >= end:
        ranks = ", ".join(map(str, sorted(missing)))
        raise RanksNotConnected(f"training process {ranks} has not started in time")
    time.sleep(_POLL_S)
