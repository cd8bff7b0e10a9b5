"""Processes of a restart find each other, whatever the start before left in the store."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import Store, TCPStore

from tests.patience import GUARD_S
from training.errors import RanksNotConnected
from training.runtime import distributed
from training.runtime.meeting import own_store

SCRIPT = Path(__file__).parent / "start_several_times.py"
STORES = 6


def new_server() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def meet(server: TCPStore, delays_s: tuple[float, ...]) -> list[Store]:
    """Return the store of each rank, which comes after its delay."""

    def join(rank: int) -> Store:
        client = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
        time.sleep(delays_s[rank])
        return own_store(client, rank, len(delays_s), GUARD_S)

    with ThreadPoolExecutor(len(delays_s)) as pool:
        return list(pool.map(join, range(len(delays_s))))


@pytest.mark.parametrize("delays_s", [(0.0, 0.0, 0.0), (0.3, 0.0, 0.0), (0.0, 0.3, 0.0)])
def test_a_restart_does_not_see_the_entries_of_the_start_before(
    delays_s: tuple[float, ...],
) -> None:
    server = new_server()
    for start in range(3):
        stores = meet(server, delays_s)
        assert not any(store.check(["address"]) for store in stores)
        stores[start].set("address", str(start))
        assert [store.get("address") for store in stores] == [str(start).encode()] * 3


def test_a_start_that_was_killed_half_way_does_not_disturb_the_next() -> None:
    server = new_server()
    with pytest.raises(RanksNotConnected, match="process 0 has not started"):
        own_store(server, 1, 2, 0.1)  # rank 1 was there, rank 0 was not
    with pytest.raises(RanksNotConnected, match="process 1 has not started"):
        own_store(server, 0, 2, 0.1)  # rank 0 replies to the rank 1 that has ended
    first, second = meet(server, (0.0, 0.3))
    first.set("address", "new")
    assert second.get("address") == b"new"


def test_a_process_that_is_alone_fails_after_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = new_server()
    environment = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    environment |= {"MASTER_PORT": str(server.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "CONNECT_S", 0.2)
    with pytest.raises(RanksNotConnected, match="process 1 has not started"):
        distributed.start(torch.device("cpu"))
    assert distributed.world_size() == 1


@pytest.mark.slow
def test_restarted_processes_connect() -> None:
    """Several stores, because a restart with old addresses also works by chance."""
    servers = [new_server() for _ in range(STORES)]
    ports = [str(server.port) for server in servers]
    for delay_s in ("0", "0.5"):  # the restarted rank 1 comes later
        processes = [run_rank(rank, delay_s if rank else "0", ports) for rank in range(2)]
        guard = threading.Timer(GUARD_S, lambda ranks=processes: [r.kill() for r in ranks])
        guard.start()
        try:
            for process in processes:
                assert process.stdout
                joined = [process.stdout.readline() for _ in ports]
                assert joined == [f"{n}\n" for n in range(1, STORES + 1)], f"delay {delay_s} s"
        finally:
            guard.cancel()
            for process in processes:
                process.kill()
                process.communicate()


def run_rank(rank: int, delay_s: str, ports: list[str]) -> subprocess.Popen[str]:
    environment = {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
    environment |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), delay_s, *ports],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
