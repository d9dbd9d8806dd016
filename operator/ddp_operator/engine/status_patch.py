"""Makes the smallest patch for a changed status, and tells which changes may wait."""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, Final

from ddp_operator.api.status import NOTES, DDPJobStatus, decisive_names
from ddp_operator.api.values.merge_patch import merge_patch
from ddp_operator.ports import Manifest

_KNOWN: Final = frozenset(str(field.alias) for field in DDPJobStatus.model_fields.values())

# Empty texts, lists and maps only lengthen `kubectl describe`. Zeros mean something, and stay.
_EMPTY: tuple[object, ...] = ("", [], {})


def as_stored(status: DDPJobStatus) -> dict[str, Any]:
    """Return a status as the API server stores it, without empty fields."""
    stored: dict[str, Any] = _filled(
        status.bounded().model_dump(mode="json", by_alias=True, exclude_none=True)
    )
    return stored


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _filled(inner) for name, inner in value.items() if inner not in _EMPTY}
    return [_filled(item) for item in value] if isinstance(value, list) else value


def status_patch(old: Manifest, wanted: Manifest) -> dict[str, Any]:
    """Return the merge patch that turns `old`, as stored, into `wanted`, as returned by
    `as_stored`.

    Fields that only a newer operator knows stay.
    """
    new = {**wanted, **_others(old, _KNOWN)}
    kept = old.get("bookkeeping")
    if isinstance(kept, Mapping):
        new["bookkeeping"] = {**new["bookkeeping"], **_others(kept, NOTES)}
    return merge_patch(old, new)


def _others(old: Manifest, known: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in old.items() if name not in known}


def forgotten(decided: DDPJobStatus, stored: DDPJobStatus) -> frozenset[str]:
    """Return the names of a decision's fields that the server has not stored as decided, without
    those that no later decision reads.
    """
    return decisive_names(_lost(as_stored(decided), as_stored(stored), "status"))


def _lost(wanted: Mapping[str, Any], found: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the paths of missing or different values."""
    for name, value in wanted.items():
        there = found.get(name)
        if isinstance(value, dict) and isinstance(there, Mapping):
            yield from _lost(value, there, f"{path}.{name}")
        elif name not in found or there != value:
            yield f"{path}.{name}"


class News(IntEnum):
    """How important a change is; up to COUNTS it may wait a moment."""

    PROGRESS = 0
    """Only the progress of the training."""
    COUNTS = 1
    """Numbers of ready pods, and wording."""
    STATE = 2


def news(old: DDPJobStatus, new: DDPJobStatus) -> News:
    """Return how important the difference between two statuses is."""
    if _slow_pod(old) != _slow_pod(new):
        return News.STATE
    old, new = (status.updated(**_NO_PROGRESS).noting(**_NO_NOTES) for status in (old, new))
    if old == new:
        return News.PROGRESS
    return News.COUNTS if _essence(old) == _essence(new) else News.STATE


_NO_PROGRESS: Final = dict.fromkeys(
    ("progress", "slow_rank", "checkpoint", "memory_checkpoint", "goodput")
)
_NO_NOTES: Final = dict.fromkeys(
    (
        *("pace", "stopwatch", "trained_seconds", "resumed_step", "resumed_at", "done_at"),
        *("curve", "metrics"),
    )
)


def _slow_pod(status: DDPJobStatus) -> str:
    return status.slow_rank.pod if status.slow_rank else ""


def _essence(status: DDPJobStatus) -> DDPJobStatus:
    conditions = tuple(c.updated(message="") for c in status.conditions)
    status = status.updated(message="", conditions=conditions, gaps=())
    return status.updated(ready_replicas=0, ready="", completed_indexes="")
