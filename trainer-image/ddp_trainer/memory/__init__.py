"""Keeps a training's state in the memory of its pods, and gives it back after a restart.

    from ddp_trainer import memory

    found = memory.load(into=state())
    if found is not None:
        step, saved = found
    ...
    memory.save(step, state())

Any script can use it: it only needs torch. The job needs `spec.memoryCheckpoint`; without it,
`save` returns False and `load` returns None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddp_trainer.memory.loading import load as load
    from ddp_trainer.memory.saving import save as save

__all__ = ["load", "save"]

_MODULES = {"load": "ddp_trainer.memory.loading", "save": "ddp_trainer.memory.saving"}


def __getattr__(name: str) -> Any:
    """Import what scripts use on first access, so the launcher does not load torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    return getattr(importlib.import_module(_MODULES[name]), name)
