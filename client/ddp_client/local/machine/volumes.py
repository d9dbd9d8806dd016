"""Volumes as directories of this machine, and the paths that lead into them.

Nothing is mounted. A path in a container's command, arguments or environment that lies in one of
its volumes is replaced by that volume's directory. Paths within scripts stay unchanged.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from ddp_operator.ports import Manifest

from ddp_client.local.machine.errors import ContainerConfigError

_SHARED_MEMORY = "/dev/shm"  # the machine's own is used
_KINDS = ("emptyDir", "persistentVolumeClaim", "csi", "hostPath", "configMap")
_BOUNDARY = r"""\s=:,'\"`"""


def mounted_directories(
    pod_spec: Manifest,
    container: Manifest,
    *,
    persistent: Path,
    ephemeral: Path,
    config_maps: Mapping[str, Manifest],
) -> dict[str, Path]:
    """Create the directories of a container's volumes; return them by mount path.

    Args:
        pod_spec: the pod's spec, with its volumes.
        container: the container with the mounts.
        persistent: where claims and buckets live; they outlive the pod.
        ephemeral: where other volumes live; deleted with the pod.
        config_maps: the available ones, by name.

    Raises:
        ContainerConfigError: this machine cannot provide a volume of this kind.
    """
    sources = {volume.get("name"): volume for volume in pod_spec.get("volumes") or ()}
    directories: dict[str, Path] = {}
    for mount in container.get("volumeMounts") or ():
        name, path = str(mount.get("name", "")), str(mount.get("mountPath", "")).rstrip("/")
        if path in ("", _SHARED_MEMORY):
            continue
        if name not in sources:
            raise ContainerConfigError(
                f"spec.template.spec.containers volumeMounts: no volume is named {name!r}; "
                "add it to spec.template.spec.volumes"
            )
        try:
            directory = _directory(sources[name], persistent, ephemeral / name, config_maps)
        except OSError as error:
            raise ContainerConfigError(f"volume {name}: {error}") from None
        directories[path] = directory / str(mount.get("subPath", ""))
    return directories


def translate(text: str, directories: Mapping[str, Path]) -> str:
    """Replace paths in volumes by their directories here, the innermost mount first."""
    for path in sorted(directories, key=len, reverse=True):
        inside = rf"(?:^|(?<=[{_BOUNDARY}])){re.escape(path)}(?=$|[/{_BOUNDARY}])"
        here = str(directories[path])
        text = re.sub(inside, lambda _, here=here: here, text)  # type: ignore[misc]
    return text


def _directory(
    volume: Manifest, persistent: Path, ephemeral: Path, config_maps: Mapping[str, Manifest]
) -> Path:
    """Create the directory of a volume, and the files of a ConfigMap in it."""
    kind = next((kind for kind in _KINDS if kind in volume), None)
    if kind is None:
        kinds = ", ".join(sorted(set(volume) - {"name"})) or "nothing"
        raise ContainerConfigError(
            f"volume {volume.get('name')}: a local run has no {kinds}; use {', '.join(_KINDS)}"
        )
    source, directory = volume[kind] or {}, ephemeral
    if kind == "persistentVolumeClaim":
        directory = persistent / source["claimName"]
    elif kind == "csi":
        attributes = source.get("volumeAttributes") or {}
        directory = persistent / str(attributes.get("bucketName") or source.get("driver"))
    elif kind == "hostPath":
        directory = Path(source["path"])
    directory.mkdir(parents=True, exist_ok=True)
    if kind == "configMap":
        _write_files(source, directory, config_maps)
    return directory


def _write_files(source: Manifest, directory: Path, config_maps: Mapping[str, Manifest]) -> None:
    name = source.get("name", "")
    if name not in config_maps:
        raise ContainerConfigError(
            f"ConfigMap {name} is missing; put it into the same file as the job"
        )
    data = config_maps[name].get("data") or {}
    for item in source.get("items") or ({"key": key, "path": key} for key in data):
        if item["key"] not in data:
            raise ContainerConfigError(
                f"ConfigMap {name} has no key {item['key']}; give it one, or correct the volume"
            )
        target = directory / item["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(data[item["key"]])
