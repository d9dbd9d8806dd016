"""Paths of a job's script that are on a pod's own disk and disappear with the pod.

Pods with a checkpoint and pods without one must not form one group: a script that loads what it
finds would start at different steps.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any, Final

from ddp_operator.api.rules import trainer_container
from ddp_operator.api.rules.trainer import pod_spec
from ddp_operator.api.spec import DDPJobSpec

MAX_PATHS: Final = 8
_PATH: Final = re.compile(r"(?<![\w.)}/-])/[\w.@+/-]*\w")
"""An absolute path within a word, unless it begins with a variable: that value is unknown here, and
DDP_CHECKPOINT_DIR is listed anyway."""
_SAVES: Final = re.compile(
    r"check_?point|ckpt|snapshot|save|\.(pt|pth|safetensors)\b", re.IGNORECASE
)
"""Words that suggest a path for checkpoints rather than for caches and scratch files."""
_PER_POD: Final = frozenset({"emptyDir", "ephemeral"})


def dies_with_pods(spec: DDPJobSpec) -> bool:
    """Return whether files in spec.checkpoint.path disappear with the pod."""
    where = spec.checkpoint
    if where.persistent_volume_claim or where.gcs_bucket or where.host_path:
        return False
    volume = _volume_at(spec, where.path)
    return volume is None or _is_per_pod(volume)


def local_paths(spec: DDPJobSpec) -> Sequence[str]:
    """Return the paths in which a checkpoint would be on one pod's disk."""
    found = [spec.checkpoint.path] if dies_with_pods(spec) else []
    found += _on_empty_dirs(spec)
    return [path for path in dict.fromkeys(found) if ":" not in path][:MAX_PATHS]


def named_paths(spec: DDPJobSpec) -> Sequence[str]:
    """Return those of these paths that the template names for saving."""
    words = [word for pair in _words(trainer_container(spec.template)) for word in pair]
    where = ("DDP_CHECKPOINT_DIR", spec.checkpoint.path)
    named = any(each in word for word in words for each in where)
    found = [spec.checkpoint.path] if named and dies_with_pods(spec) else []
    return list(dict.fromkeys([*found, *_on_empty_dirs(spec)]))[:MAX_PATHS]


def _on_empty_dirs(spec: DDPJobSpec) -> Iterator[str]:
    container = trainer_container(spec.template)
    volumes = pod_spec(spec).get("volumes") or ()
    if not (container.get("volumeMounts") and any(map(_is_per_pod, volumes))):
        return  # the common case, which must be fast
    for before, word in _words(container):
        for path in _PATH.findall(word) if _SAVES.search(f"{before} {word}") else ():
            volume = _volume_at(spec, path)
            if volume is not None and _is_per_pod(volume):
                yield path


def _words(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the command's words and the environment's values, each with the option or variable
    before it.
    """
    argv = [*(container.get("command") or ()), *(container.get("args") or ())]
    yield from zip(["", *argv], argv, strict=False)
    for entry in container.get("env") or ():
        yield entry.get("name") or "", entry.get("value") or ""


def _volume_at(spec: DDPJobSpec, path: str) -> Mapping[str, Any] | None:
    """Return the template's volume for a path of the trainer container."""
    mounts = {
        normpath(mount.get("mountPath") or ""): mount.get("name")
        for mount in trainer_container(spec.template).get("volumeMounts") or ()
    }
    if not mounts:
        return None
    above = [str(each) for each in (PurePosixPath(path), *PurePosixPath(path).parents)]
    name = next((mounts[each] for each in above if each in mounts), None)
    if name is None:
        return None
    volumes = pod_spec(spec).get("volumes") or ()
    return next((volume for volume in volumes if volume.get("name") == name), {})


def _is_per_pod(volume: Mapping[str, Any]) -> bool:
    return not _PER_POD.isdisjoint(volume)
