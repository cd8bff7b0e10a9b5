"""Processors and memory that this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")


def available_cpus(cgroup_root: Path = CGROUP_ROOT) -> int:
    """Return the number of processors: the smaller of the affinity and the container's quota.

    Libraries that count the processors of the host start too many threads in a container.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cgroup_cpu_quota(cgroup_root)
    return max(1, min(affinity or 1, math.ceil(quota) if quota else affinity or 1))


def cgroup_cpu_quota(cgroup_root: Path = CGROUP_ROOT) -> float | None:
    """Return the container's processor quota, e.g. 1.5, or None (cgroup v2 or v1)."""
    v2 = _read(cgroup_root / "cpu.max").split()
    if len(v2) == 2 and v2[0] != "max":
        return int(v2[0]) / int(v2[1])
    quota = _read(cgroup_root / "cpu" / "cpu.cfs_quota_us").strip()
    period = _read(cgroup_root / "cpu" / "cpu.cfs_period_us").strip()
    if quota and period and int(quota) > 0:
        return int(quota) / int(period)
    return None


def memory_limit_bytes(cgroup_root: Path = CGROUP_ROOT) -> int:
    """Return the memory in bytes: the smaller of the machine's and the container's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(cgroup_root / name).strip()
        if text.isdigit():
            total = min(total, int(text))
    return total


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
