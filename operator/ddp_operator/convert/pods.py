"""Makes of another project's pod template one that is right below a DDPJob.

Whatever is not named here is carried as it is written.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pydantic import ValidationError

from ddp_operator.api.command import started
from ddp_operator.api.constants import RESERVED_ENVIRONMENT, TRAINER_CONTAINER
from ddp_operator.api.devices import accelerators, has_accelerators
from ddp_operator.api.rules import trainer_container
from ddp_operator.api.spec.base import explained
from ddp_operator.api.spec.template import PodTemplate
from ddp_operator.convert.launcher import ELASTIC, launch
from ddp_operator.convert.notes import ConversionError, Notes
from ddp_operator.convert.references import Origin, is_foreign, rename_hosts, rename_labels

_PLACE: Final = frozenset({*RESERVED_ENVIRONMENT, "MASTER_ADDR", "PET_MASTER_ADDR"})
_PORTS: Final = ("MASTER_PORT", "PET_MASTER_PORT")
_RENDEZVOUS: Final = ("PET_RDZV_", "PET_STANDALONE")
_NODE_RANK_IS_MEANT: Final = re.compile(r"\$[({]?(?:RANK|WORLD_SIZE)\b")


@dataclass(frozen=True)
class Pods:
    """A template that was converted, and what it told."""

    template: dict[str, Any]
    processes: int | Literal["auto"] | None
    """How many its command line asks torchrun for."""
    starts: Literal["launcher", "python", "unknown"]
    """What its command line starts: Python alone is a single process."""
    master_port: int | None
    gpus: int


def pods(
    template: dict[str, Any],
    path: str,
    notes: Notes,
    *,
    trainer: str | None,
    origin: Origin,
) -> Pods:
    """Convert a pod template, whose container of the name `trainer` trains, or of any."""
    metadata = template.get("metadata")
    if isinstance(metadata, dict):
        for name in ("name", "generateName", "namespace", "creationTimestamp"):
            metadata.pop(name, None)  # a pod's own, which no controller takes from a template
        if not metadata:
            del template["metadata"]
    check(template, path)
    _metadata(template, path, notes)
    spec: dict[str, Any] = template["spec"]
    restart = spec.pop("restartPolicy", "Never")
    if restart != "Never":
        notes.changed(
            f"{path}.spec.restartPolicy",
            f"{restart} starts a container anew in its pod; here all pods start anew, as "
            "spec.restart says",
        )
    for name in ("hostname", "subdomain"):
        if spec.pop(name, None) is not None:
            notes.dropped(f"{path}.spec.{name}", "the operator names hosts; use $(MASTER_ADDR)")
    container = _trainer(template, f"{path}.spec.containers", trainer, notes)
    where = f"{path}.spec.containers[{container['name']}]"
    port, processes = _environment(container, where, notes, origin)
    rename_hosts(container, where, origin, notes)
    rename_labels(template, path, origin, notes)
    others = [*spec["containers"][1:], *(spec.get("initContainers") or ())]
    if any("MASTER_ADDR" in str(other) or origin.mentions_pods(str(other)) for other in others):
        notes.changed(
            f"{path}.spec",
            "another container than the trainer speaks of the group's hosts, of whom only the "
            "trainer is told, and whose names are others with each attempt; where it waits "
            "for the master, take it out: torchrun waits by itself",
        )
    gpus = sum(int(n) for n in accelerators(container).values() if str(n).isdecimal())
    return _launched(container, where, notes, Pods(template, processes, "unknown", port, gpus))


def speaks_of_ranks(container: Mapping[str, Any]) -> bool:
    """Whether a command uses RANK or WORLD_SIZE, which count processes and not pods."""
    texts = [*(container.get("command") or ()), *(container.get("args") or ())]
    return any(_NODE_RANK_IS_MEANT.search(text) for text in texts)


def check(template: dict[str, Any], path: str) -> None:
    """Refuse what has not the shape of a pod template."""
    try:
        PodTemplate.model_validate(template)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConversionError(f"{path}.{where}: {explained(first)}; correct it") from None
    inits = template["spec"].get("initContainers", [])
    if not isinstance(inits, list):
        raise ConversionError(f"{path}.spec.initContainers: has to be a list; correct it")
    for container in template["spec"]["containers"]:
        for name in ("command", "args"):
            texts = container.get(name, [])
            if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
                raise ConversionError(
                    f"{path}.spec.containers[{container['name']}].{name}: has to be a list of "
                    "texts; correct it"
                )


def _metadata(template: dict[str, Any], path: str, notes: Notes) -> None:
    """Take out what the old project's controllers read of pods."""
    metadata = template.get("metadata") or {}
    for field in ("labels", "annotations"):
        values = metadata.get(field) or {}
        for name in [name for name in values if is_foreign(name) and "." in name]:
            del values[name]
            notes.dropped(f"{path}.metadata.{field}[{name}]", "nothing reads it of a DDPJob's pods")
        if field in metadata and not values:
            del metadata[field]
    if "metadata" in template and not metadata:
        del template["metadata"]


def _trainer(template: dict[str, Any], path: str, name: str | None, notes: Notes) -> dict[str, Any]:
    """Find the container that trains, and have the operator find it, too."""
    spec = template["spec"]
    containers = spec["containers"]
    if name is None:
        found: Any = trainer_container(template)
        if len(containers) > 1 and found["name"] != TRAINER_CONTAINER:
            notes.changed(
                path, f"{found['name']} is taken for the trainer; is it another, name that trainer"
            )
    else:
        found = next((one for one in containers if one["name"] == name), None)
        if found is None:
            raise ConversionError(f"{path}: none is called {name}, which is the one that trains")
        if any(one["name"] == TRAINER_CONTAINER for one in containers if one is not found):
            raise ConversionError(
                f"{path}: {TRAINER_CONTAINER} is what a DDPJob calls the container that trains, "
                f"but here {name} does; rename the former"
            )
    if containers[0] is not found:
        notes.changed(path, f"{found['name']} comes first, as the container that trains")
    spec["containers"] = [found, *(one for one in containers if one is not found)]
    by_rule = trainer_container(template)
    elsewhere = any(map(has_accelerators, containers)) and not has_accelerators(found)
    if name is not None and (by_rule is not found or elsewhere):
        found["name"] = TRAINER_CONTAINER
        notes.changed(path, f"{name} is called {TRAINER_CONTAINER} now, to be the one that trains")
    container: dict[str, Any] = found
    return container


def _environment(
    container: dict[str, Any], path: str, notes: Notes, origin: Origin
) -> tuple[int | None, int | None]:
    """Take out what the operator sets; return the chosen port of rank 0's store, and processes."""
    port, processes, kept = None, None, []
    for entry in container.get("env") or []:
        name, value = entry["name"], str(entry.get("value", ""))
        field = f"{path}.env[{name}]"
        if name in _PORTS and value.isdecimal() and 1024 <= int(value[:6]) <= 65535:
            port = int(value)
        elif name == "PET_NPROC_PER_NODE" and value.isdecimal() and len(value) < 5:
            processes = int(value)
        elif name in _PLACE or name in _PORTS or name.startswith(_RENDEZVOUS):
            notes.dropped(field, "it says where the group is, which the operator does; remove it")
        elif replacement := _of_metadata(entry, origin.places):
            notes.changed(field, f"is {replacement} now; there are no such labels on the pods")
            kept.append({"name": name, "value": replacement})
        else:
            if origin.are_named_by_index and _field_path(entry) == "metadata.name":
                notes.changed(
                    field,
                    "a pod's name (metadata.name) is no host's name here, and does not always end "
                    "in its index; use the hostname command, and PET_NODE_RANK",
                )
            kept.append(entry)
    if "env" in container:
        container["env"] = kept
        if not kept:
            del container["env"]
    return port, processes


def _field_path(entry: Mapping[str, Any]) -> str:
    source = entry.get("valueFrom")
    field = source.get("fieldRef") if isinstance(source, dict) else None
    return str(field.get("fieldPath", "")) if isinstance(field, dict) else ""


def _of_metadata(entry: Mapping[str, Any], indexes: Mapping[str, str]) -> str | None:
    match = re.fullmatch(r"metadata\.(?:labels|annotations)\['([^']+)'\]", _field_path(entry))
    return indexes.get(match[1]) if match else None


def _launched(container: dict[str, Any], path: str, notes: Notes, told: Pods) -> Pods:
    """Take from torchrun's flags what the operator says by variables."""
    command, args = container.get("command") or [], container.get("args") or []
    argv = [*command, *args]
    try:
        found = launch(argv)
    except ConversionError as error:
        notes.changed(f"{path}.command", f"left as it is written: {error}")
        found = None
    if found is None:
        return _left(argv, path, notes, told)
    if found.taken:
        container["command"] = list(found.command)
        container.pop("args", None)
        flags = " ".join(f"--{k}={v}" if v else f"--{k}" for k, v in found.taken.items())
        notes.changed(f"{path}.command", f"without {flags}; the operator tells torchrun by PET_*")
    asked = found.taken.get("nproc-per-node", "")
    processes = int(asked) if asked.isdecimal() and len(asked) < 5 else None
    port = found.taken.get("master-port", "")
    is_port = port.isdecimal() and 1024 <= int(port[:6]) <= 65535
    least, _, most = found.taken.get("nnodes", "").partition(":")
    if most and most != least:
        notes.changed(f"{path}.command", f"--nnodes={least}:{most}: {ELASTIC}")
    if asked and processes is None and asked not in ("auto", "gpu"):
        notes.changed(f"{path}.command", f"--nproc-per-node={asked}: set spec.nprocPerNode instead")
    return replace(
        told,
        processes=processes or ("auto" if asked else told.processes),
        starts="launcher",
        master_port=int(port) if is_port else told.master_port,
    )


def _left(argv: Sequence[str], path: str, notes: Notes, told: Pods) -> Pods:
    """Read a command line that stays as it is written."""
    found = started(argv)
    if not found.launcher:
        return replace(told, starts="unknown" if found.python is None else "python")
    if not found.by_torchrun:
        notes.changed(
            f"{path}.command",
            f"left as it is written; {found.called} has processes and pods from its own flags: "
            "write PET_NNODES, PET_NODE_RANK, MASTER_ADDR and MASTER_PORT there, or torchrun",
        )
        return replace(told, starts="launcher")
    notes.changed(
        f"{path}.command",
        "left as it is written; torchrun's flags win over the variables by which the operator "
        "tells it of the group: remove --nnodes, --node_rank, --master_*, --rdzv_* if you can",
    )
    try:
        line = launch(found.words) if found.in_shell else None
    except ConversionError:
        line = None
    asked = line.taken.get("nproc-per-node", "") if line else ""
    processes = int(asked) if asked.isdecimal() and len(asked) < 5 else told.processes
    return replace(told, processes=processes, starts="launcher")
