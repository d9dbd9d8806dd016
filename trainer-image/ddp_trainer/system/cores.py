"""Reads the number of cores that this container may use: its CPU limit, not the node's cores."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """Return the cores that this process may use, by affinity and cgroup quota (v2 or v1); 1 or
    more.
    """
    cores = len(os.sched_getaffinity(0))
    quota = _quota_v2() or _quota_v1()
    return max(1, min(cores, int(quota)) if quota is not None else cores)


def _quota_v2() -> float | None:
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_v1() -> float | None:
    try:
        quota = int((_CGROUP / "cpu" / "cpu.cfs_quota_us").read_text())
        period = int((_CGROUP / "cpu" / "cpu.cfs_period_us").read_text())
        return None if quota <= 0 else quota / period
    except (OSError, ValueError):
        return None
