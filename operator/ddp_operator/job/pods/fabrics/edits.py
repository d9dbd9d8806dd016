"""Small edits of a pod's draft. Each keeps what is already there."""

import json
from collections.abc import Sequence
from typing import Any

Draft = dict[str, Any]
"""A copy of a pod, or of a part of it, that may be changed."""

LIBRARIES = "/usr/local/nvidia/lib64"
"""Where GKE's pods find NVIDIA's libraries, and the NCCL that an installer adds."""
HOST_LIBRARIES = "/home/kubernetes/bin/nvidia/lib64"
GPU_DEVICES = (*(f"/dev/nvidia{n}" for n in range(8)), "/dev/nvidiactl", "/dev/nvidia-uvm")


def container(pod: Draft, name: str) -> Draft:
    """Return the container of this name."""
    found: Draft = next(c for c in pod["spec"]["containers"] if c.get("name") == name)
    return found


def annotate(pod: Draft, key: str, value: str) -> None:
    """Annotate the pod."""
    metadata = pod.setdefault("metadata", {})
    metadata["annotations"] = {key: value, **(metadata.get("annotations") or {})}


def give_interfaces(pod: Draft, networks: Sequence[tuple[str, str]]) -> None:
    """Give the pod cards of its node besides the default one: (interface, network) pairs."""
    all_of_them = [("eth0", "default"), *networks]
    entries = [{"interfaceName": name, "network": network} for name, network in all_of_them]
    annotate(pod, "networking.gke.io/default-interface", "eth0")
    annotate(pod, "networking.gke.io/interfaces", json.dumps(entries))


def give_devices(pod: Draft, container_name: str, devices: Sequence[str]) -> None:
    """Give a container that requests no GPU some devices of its node."""
    lines = "".join(f"- path: {device}\n" for device in devices)
    annotate(pod, f"devices.gke.io/container.{container_name}", lines)


def add_host_path(pod: Draft, name: str, path: str, *, kind: str = "") -> None:
    """Add a hostPath volume. With kind Directory, the kubelet waits for it."""
    source = {"path": path, **({"type": kind} if kind else {})}
    _add(pod["spec"], "volumes", {"name": name, "hostPath": source})


def mount(holder: Draft, name: str, path: str, *, read_only: bool = False) -> None:
    """Mount a volume, unless something is mounted there."""
    mounts = holder.get("volumeMounts") or []
    if all(other.get("mountPath", "").rstrip("/") != path for other in mounts):
        added = {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}
        holder["volumeMounts"] = [*mounts, added]


def set_variables(holder: Draft, **variables: str) -> None:
    """Set variables that the container does not have."""
    own = holder.get("env") or []
    taken = {entry.get("name") for entry in own}
    added = [{"name": name, "value": v} for name, v in variables.items() if name not in taken]
    holder["env"] = [*added, *own]


def find_libraries(holder: Draft, *paths: str) -> None:
    """Put library paths in front of the container's LD_LIBRARY_PATH."""
    name = "LD_LIBRARY_PATH"
    entries = holder.get("env") or []
    given = next((entry for entry in entries if entry.get("name") == name), None)
    if given is not None and "value" not in given:
        return  # valueFrom cannot be extended
    known = [path for path in str((given or {}).get("value") or "").split(":") if path]
    wanted = {"name": name, "value": ":".join(dict.fromkeys([*paths, *known]))}
    if given is None:
        holder["env"] = [wanted, *entries]
    else:  # at its own position, since it may refer to variables before it
        holder["env"] = [wanted if entry is given else entry for entry in entries]


def allow(holder: Draft, *capabilities: str) -> None:
    """Add Linux capabilities."""
    context = dict(holder.get("securityContext") or {})
    given = dict(context.get("capabilities") or {})
    given["add"] = list(dict.fromkeys([*(given.get("add") or ()), *capabilities]))
    holder["securityContext"] = {**context, "capabilities": given}


def select(pod: Draft, label: str, value: str) -> None:
    """Select nodes with this label, unless the pod selects another value of it."""
    pod["spec"]["nodeSelector"] = {label: value, **(pod["spec"].get("nodeSelector") or {})}


def claim(pod: Draft, container_name: str, name: str, *, template: str) -> None:
    """Claim devices for a container from a claim template."""
    added = {"name": name, "resourceClaimTemplateName": template}
    _add(pod["spec"], "resourceClaims", added)
    holder = container(pod, container_name)
    holder["resources"] = dict(holder.get("resources") or {})
    _add(holder["resources"], "claims", {"name": name})


def _add(holder: Draft, field: str, item: Draft) -> None:
    """Add an item to a list, unless it has one of that name."""
    items = holder.get(field) or []
    if all(other.get("name") != item["name"] for other in items):
        holder[field] = [*items, item]


def add_daemon(pod: Draft, trainer: str, daemon: Draft) -> None:
    """Add a native side car that receives for the GPUs. It and the trainer get NVIDIA's libraries,
    and it gets the node's network settings.
    """
    add_host_path(pod, "ddp-nvidia-libraries", HOST_LIBRARIES, kind="Directory")
    add_host_path(pod, "ddp-host-sys", "/sys")
    add_host_path(pod, "ddp-host-proc-sys", "/proc/sys")
    for holder in (container(pod, trainer), daemon):
        mount(holder, "ddp-nvidia-libraries", LIBRARIES)
        find_libraries(holder, LIBRARIES)
    mount(daemon, "ddp-host-sys", "/hostsysfs")
    mount(daemon, "ddp-host-proc-sys", "/hostprocsysfs")
    own = pod["spec"].get("initContainers") or []
    if all(other.get("name") != daemon["name"] for other in own):
        pod["spec"]["initContainers"] = [{**daemon, "restartPolicy": "Always"}, *own]
