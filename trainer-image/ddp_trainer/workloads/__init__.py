"""What can be trained. A workload is data, a model, a loss and a score, and nothing of DDP.

Names are known without importing torch; the workload's module is imported when it is loaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddp_trainer.workloads.base import Workload

NAMES: Mapping[str, str] = {"digits": "ddp_trainer.workloads.digits"}
"""Workload name → the module whose `load` returns it."""


def load(name: str) -> Workload:
    """Import and build the workload called `name` (a key of NAMES)."""
    workload: Workload = importlib.import_module(NAMES[name]).load()
    return workload
