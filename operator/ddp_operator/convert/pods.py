"""Makes of another project's pod template one that is right below a DDPJob.

Whatever is not named here is carried as it is written.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pydantic import ValidationError

from ddp_operator.api.base import explained
from ddp_operator.api.constants import RESERVED_ENVIRONMENT, TRAINER_CONTAINER
from ddp_operator.api.devices import accelerators
from ddp_operator.api.rules import trainer_container
from ddp_operator.api.template import PodTemplate
from ddp_operator.convert.launcher import in_script, launch, processes_in_script
from ddp_operator.convert.notes import ConversionError, Notes

_PLACE: Final = frozenset({*RESERVED_ENVIRONMENT, "MASTER_ADDR", "PET_MASTER_ADDR"})
_PORTS: Final = ("MASTER_PORT", "PET_MASTER_PORT")
_RENDEZVOUS: Final = ("PET_RDZV_", "PET_STANDALONE")
_POD_INDEX: Final = "$(NODE_RANK)"
_MASTER: Final = "$(MASTER_ADDR)"
_NODE_RANK_IS_MEANT: Final = re.compile(r"\$[({]?(?:RANK|WORLD_SIZE)\b")


@dataclass(frozen=True)
class Pods:
    """A template that was converted, and what it told."""

    template: dict[str, Any]
    processes: int | Literal["auto"] | None
    """How many its command line asks torchrun for."""
    by_launcher: bool
    """Whether torchrun starts them; else whatever is there starts as a single process."""
    master_port: int | None
    gpus: int


def pods(
    template: dict[str, Any],
    path: str,
    notes: Notes,
    *,
    trainer: str | None,
    master: str,
    indexes: Mapping[str, str],
) -> Pods:
    """Convert a pod template.

    `trainer` names the container that trains, `master` the host of pod 0, and `indexes` has what
    fields of a pod's metadata tell it there, as it is said here.
    """
    metadata = template.get("metadata")
    if isinstance(metadata, dict):
        for name in ("name", "generateName", "namespace", "creationTimestamp"):
            metadata.pop(name, None)  # a pod's own, which no controller takes from a template
        if not metadata:
            del template["metadata"]
    check(template, path)
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
    container = _trainer(spec, f"{path}.spec.containers", trainer, notes)
    where = f"{path}.spec.containers[{container['name']}]"
    port, processes = _environment(container, where, notes, indexes)
    _hosts(container, where, master, notes)
    others = [*spec["containers"][1:], *(spec.get("initContainers") or ())]
    if any(re.search(rf"{re.escape(master)}\b|MASTER_ADDR", str(other)) for other in others):
        notes.changed(
            f"{path}.spec",
            "another container than the trainer speaks of the group's master, of whom only the "
            "trainer is told, and whose host has another name with each attempt; where it waits "
            "for the master, take it out: torchrun waits by itself",
        )
    gpus = sum(int(n) for n in accelerators(container).values() if str(n).isdecimal())
    return _launched(container, where, notes, Pods(template, processes, False, port, gpus))


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


def _trainer(spec: dict[str, Any], path: str, name: str | None, notes: Notes) -> dict[str, Any]:
    """Find the container that trains, and put it where the operator looks for it."""
    containers = spec["containers"]
    if name is None:
        found: Any = trainer_container({"spec": spec})
        if len(containers) > 1 and found["name"] != TRAINER_CONTAINER:
            notes.changed(path, f"the first container, {found['name']}, is taken for the trainer")
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
    container: dict[str, Any] = found
    return container


def _environment(
    container: dict[str, Any], path: str, notes: Notes, indexes: Mapping[str, str]
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
        elif replacement := _of_metadata(entry, indexes):
            notes.changed(field, f"is {replacement} now; there are no such labels on the pods")
            kept.append({"name": name, "value": replacement})
        else:
            kept.append(entry)
            if _field_path(entry).startswith("metadata.") and "kubernetes.io/job" in str(entry):
                notes.changed(field, "refers to a label that the pods have no more; replace it")
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


def _hosts(container: dict[str, Any], path: str, master: str, notes: Notes) -> None:
    """Say MASTER_ADDR where the host of pod 0 is meant, which has another name now."""
    host = re.compile(rf"(?<![\w.-]){re.escape(master)}(?![\w-])")
    places = [("command", container.get("command")), ("args", container.get("args"))]
    for name, texts in places:
        if texts and any(host.search(text) for text in texts):
            container[name] = [host.sub(_MASTER, text) for text in texts]
            notes.changed(f"{path}.{name}", f"{master} is {_MASTER} now, the name of pod 0's host")
    for entry in container.get("env") or []:
        value = entry.get("value")
        if isinstance(value, str) and host.search(value):
            entry["value"] = host.sub(_MASTER, value)
            notes.changed(f"{path}.env[{entry['name']}]", f"{master} is {_MASTER} now")


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
        if not in_script(argv):
            return told
        notes.changed(
            f"{path}.command",
            "left as it is written; torchrun's flags win over the variables by which the operator "
            "tells it of the group: remove --nnodes, --node_rank, --master_*, --rdzv_* if you can",
        )
        processes = processes_in_script(argv) or told.processes
        return replace(told, processes=processes, by_launcher=True)
    if found.taken:
        container["command"] = list(found.command)
        container.pop("args", None)
        flags = " ".join(f"--{k}={v}" if v else f"--{k}" for k, v in found.taken.items())
        notes.changed(f"{path}.command", f"without {flags}; the operator tells torchrun by PET_*")
    asked = found.taken.get("nproc-per-node", "")
    processes = int(asked) if asked.isdecimal() and len(asked) < 5 else None
    port = found.taken.get("master-port", "")
    is_port = port.isdecimal() and 1024 <= int(port[:6]) <= 65535
    if asked and processes is None and asked not in ("auto", "gpu"):
        notes.changed(f"{path}.command", f"--nproc-per-node={asked}: set spec.nprocPerNode instead")
    return replace(
        told,
        processes=processes or ("auto" if asked else told.processes),
        by_launcher=True,
        master_port=int(port) if is_port else told.master_port,
    )
