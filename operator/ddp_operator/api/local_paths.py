"""Paths of a job's script that are on a pod's own disk and disappear with the pod.

Pods with a checkpoint and pods without one must not form one group: a script that loads what it
finds would start at different steps.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from posixpath import normpath
from typing import Any, Final, NamedTuple, Self

from ddp_operator.api.constants import ENV_CHECKPOINTS_IN_MEMORY
from ddp_operator.api.rules import trainer_container
from ddp_operator.api.rules.trainer import pod_spec
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.values.limits import MAX_PATH, MAX_SEARCHED, linear

MAX_PATHS: Final = 8
_MAX_CANDIDATES: Final = 256
"""Paths of a template that are looked up in its mounts; a script has a handful."""
_PATH: Final = linear(r"(?:^|[^\pL\pN_.)}/-])(/[\pL\pN_.@+/-]*[\pL\pN_])")
"""An absolute path within a word, unless it begins with a variable: that value is unknown here, and
DDP_CHECKPOINT_DIR is listed anyway."""
_SAVES: Final = linear(r"(?i)check_?point|ckpt|snapshot|save|\.(pt|pth|safetensors)\b")
"""Words that suggest a path for checkpoints rather than for caches and scratch files."""
_PER_POD: Final = frozenset({"emptyDir", "ephemeral"})


def dies_with_pods(spec: DDPJobSpec) -> bool:
    """Return whether files in spec.checkpoint.path disappear with the pod."""
    where = spec.checkpoint
    if where.persistent_volume_claim or where.gcs_bucket or where.host_path:
        return False
    return _Mounts.of(spec).is_lost(where.path) is not False


def is_lost_with_pod(spec: DDPJobSpec, path: str) -> bool:
    """Return whether a file disappears with its pod, as far as the template shows.

    `path`: of the file; empty: somewhere in spec.checkpoint.path.
    """
    where = _normal(spec.checkpoint.path)
    if not path or _is_below(_normal(path), where):
        return dies_with_pods(spec)
    return _Mounts.of(spec).is_lost(path) is True


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


def lost_paths(spec: DDPJobSpec) -> Sequence[str]:
    """Return those of the named paths that `spec.memoryCheckpoint` does not keep in memory."""
    named = named_paths(spec)
    if spec.memory_checkpoint is None:
        return named
    words = _words(trainer_container(spec.template))
    kept = [_normal(word) for before, word in words if before == ENV_CHECKPOINTS_IN_MEMORY]
    return [path for path in named if not any(_is_below(_normal(path), folder) for folder in kept)]


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _on_empty_dirs(spec: DDPJobSpec) -> Iterator[str]:
    mounts = _Mounts.of(spec)
    if not any(mounts.lost.values()):
        return  # the common case, which must be fast
    found = islice(_paths(_words(trainer_container(spec.template))), _MAX_CANDIDATES)
    yield from filter(mounts.is_lost, found)


def _paths(words: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the paths in words for saving, as far as they are searched."""
    room = MAX_SEARCHED
    for before, word in words:
        if room and "/" in word and (_SAVES.search(before) or _SAVES.search(word)):
            text = word[:room]
            room -= len(text)
            yield from (path[1] for path in _PATH.finditer(text))


def _words(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the command's words and the environment's values, each with the option or variable
    before it.
    """
    argv = [*(container.get("command") or ()), *(container.get("args") or ())]
    yield from zip(["", *argv], argv, strict=False)
    for entry in container.get("env") or ():
        yield entry.get("name") or "", entry.get("value") or ""


class _Mounts(NamedTuple):
    """The trainer container's mounts: whether files there are lost with the pod, by path."""

    lost: Mapping[str, bool]
    lengths: Sequence[int]
    """Lengths of these paths, the longest first. Only such parts of a path are looked up."""

    @classmethod
    def of(cls, spec: DDPJobSpec) -> Self:
        mounts = trainer_container(spec.template).get("volumeMounts") or ()
        volumes = pod_spec(spec).get("volumes") or () if mounts else ()
        per_pod = {str(each.get("name")) for each in volumes if not _PER_POD.isdisjoint(each)}
        lost = {
            _normal(mount["mountPath"]): str(mount.get("name")) in per_pod
            for mount in mounts
            if mount.get("mountPath")
        }
        return cls(lost, sorted({len(path) for path in lost}, reverse=True))

    def is_lost(self, path: str) -> bool | None:
        """Return whether files at a path are lost with the pod; None if it is in no mount."""
        if len(path) > MAX_PATH:  # no such file exists
            return None
        path = _normal(path)
        parts = (path[:end] for end in self.lengths if path[end : end + 1] in ("", "/"))
        return next((self.lost[part] for part in parts if part in self.lost), None)


def _normal(path: str) -> str:
    """Return an absolute path in its only spelling; empty for the root."""
    return normpath(f"/{path.strip('/')}").rstrip("/")
