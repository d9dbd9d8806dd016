"""Saves and loads the state dicts of scripts that use `torch.distributed.checkpoint` (DCP).

As there, a state dict contains tensors, plain data and objects with `state_dict` and
`load_state_dict`, and loading changes it in place. Each rank keeps its own shards, so unlike DCP
nothing here is a collective and the world size stays the same.

    from ddp_trainer.memory import dcp

    state = {"app": AppState(model, optimizer)}
    step = dcp.load(state) or 0
    ...
    dcp.save(step, state)
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from torch.distributed.checkpoint.stateful import Stateful

from ddp_trainer.memory.loading import load as _load
from ddp_trainer.memory.saving import save as _save


def save(step: int, state_dict: Mapping[str, Any], *, replicated: bool = False) -> bool:
    """Save a state dict; see `ddp_trainer.memory.save`."""
    return _save(step, _plain(state_dict), replicated=replicated)


def load(state_dict: MutableMapping[str, Any]) -> int | None:
    """Load a state dict in place; return its step, or None if there is no snapshot in memory.

    See `ddp_trainer.memory.load`.
    """
    found = _load(into=_plain(state_dict))
    if found is None:
        return None
    step, state = found
    for key, value in state_dict.items():
        if isinstance(value, Stateful):
            value.load_state_dict(state[key])
        else:
            state_dict[key] = state[key]
    return step


def _plain(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.state_dict() if isinstance(value, Stateful) else value
        for key, value in state_dict.items()
    }
