"""Convert another project's pod template to a DDPJob's. Other fields stay unchanged."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from ddp_operator.api.command import started
from ddp_operator.api.constants import RESERVED_ENVIRONMENT, TRAINER_CONTAINER
from ddp_operator.api.devices import accelerators, has_accelerators
from ddp_operator.api.rules import trainer_container
from ddp_operator.api.spec.base import explained
from ddp_operator.api.spec.template import PodTemplate
from pydantic import ValidationError

from ddp_client.convert.launcher import ELASTIC, by_pod, count, launch
from ddp_client.convert.notes import ConversionError, Notes
from ddp_client.convert.references import Origin, is_foreign, rename_hosts, rename_labels
from ddp_client.documents import mapping

_PLACE: Final = frozenset({*RESERVED_ENVIRONMENT, "MASTER_ADDR", "PET_MASTER_ADDR"})
_PORTS: Final = ("MASTER_PORT", "PET_MASTER_PORT")
_RENDEZVOUS: Final = ("PET_RDZV_", "PET_STANDALONE")
_NODE_RANK_IS_MEANT: Final = re.compile(r"\$[({]?(?:RANK|WORLD_SIZE)\b")


@dataclass(frozen=True)
class Pods:
    """A converted template, and what it says about processes."""

    template: dict[str, Any]
    processes: int | Literal["auto"] | None
    """The number of processes in torchrun's flags."""
    starts: Literal["launcher", "python", "unknown"]
    """The program that the command starts; plain Python is one process."""
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
    """Convert a pod template; `trainer` names the container that trains, None: find it."""
    metadata = template.get("metadata")
    if isinstance(metadata, dict):
        for name in ("name", "generateName", "namespace", "creationTimestamp"):
            metadata.pop(name, None)  # ignored in a template
        if not metadata:
            del template["metadata"]
    check(template, path)
    _metadata(template, path, notes)
    spec: dict[str, Any] = template["spec"]
    restart = spec.pop("restartPolicy", "Never")
    if restart != "Never":
        notes.changed(
            f"{path}.spec.restartPolicy",
            f"{restart} restarts a container in its pod; here all pods restart by spec.restart",
        )
    for name in ("hostname", "subdomain"):
        if spec.pop(name, None) is not None:
            notes.dropped(f"{path}.spec.{name}", "the operator sets host names; use $(MASTER_ADDR)")
    container = _trainer(template, f"{path}.spec.containers", trainer, notes)
    where = f"{path}.spec.containers[{container['name']}]"
    port, processes = _environment(container, where, notes, origin)
    rename_hosts(container, where, origin, notes)
    rename_labels(template, path, origin, notes)
    others = [*spec["containers"][1:], *(spec.get("initContainers") or ())]
    if any("MASTER_ADDR" in str(other) or origin.mentions_pods(str(other)) for other in others):
        notes.changed(
            f"{path}.spec",
            "a container other than the trainer uses the pods' host names; only the trainer gets "
            "MASTER_ADDR, and the names change with each attempt. If it waits for the master, "
            "remove it: torchrun waits itself",
        )
    gpus = sum(int(n) for n in accelerators(container).values() if str(n).isdecimal())
    return _launched(container, where, notes, Pods(template, processes, "unknown", port, gpus))


def speaks_of_ranks(container: Mapping[str, Any]) -> bool:
    """Tell whether a command uses RANK or WORLD_SIZE, which count processes, not pods."""
    texts = [*(container.get("command") or ()), *(container.get("args") or ())]
    return any(_NODE_RANK_IS_MEANT.search(text) for text in texts)


def check(template: dict[str, Any], path: str) -> None:
    """Check that a value has the structure of a pod template.

    Raises:
        ConversionError: it does not; names the field.
    """
    try:
        PodTemplate.model_validate(template)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConversionError(f"{path}.{where}: {explained(first)}; correct it") from None
    inits = template["spec"].get("initContainers", [])
    if not isinstance(inits, list):
        raise ConversionError(f"{path}.spec.initContainers: must be a list; correct it")
    for container in template["spec"]["containers"]:
        for name in ("command", "args"):
            texts = container.get(name, [])
            if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
                raise ConversionError(
                    f"{path}.spec.containers[{container['name']}].{name}: must be a list of "
                    "strings; correct it"
                )


def _metadata(template: dict[str, Any], path: str, notes: Notes) -> None:
    """Remove labels and annotations of the old project's controllers."""
    metadata = template.get("metadata") or {}
    for field in ("labels", "annotations"):
        values = metadata.get(field) or {}
        for name in [name for name in values if is_foreign(name) and "." in name]:
            del values[name]
            notes.dropped(f"{path}.metadata.{field}[{name}]", "it has no effect on a DDPJob's pods")
        if field in metadata and not values:
            del metadata[field]
    if "metadata" in template and not metadata:
        del template["metadata"]


def _trainer(template: dict[str, Any], path: str, name: str | None, notes: Notes) -> dict[str, Any]:
    """Find the container that trains, and make sure that the operator finds the same."""
    spec = template["spec"]
    containers = spec["containers"]
    if name is None:
        trainer: Any = trainer_container(template)
        if len(containers) > 1 and trainer["name"] != TRAINER_CONTAINER:
            notes.changed(
                path,
                f"{trainer['name']} is used as the trainer; if another one trains, name it trainer",
            )
    else:
        trainer = next((one for one in containers if one["name"] == name), None)
        if trainer is None:
            raise ConversionError(f"{path}: the training container {name} is missing; add it")
        if any(one["name"] == TRAINER_CONTAINER for one in containers if one is not trainer):
            raise ConversionError(
                f"{path}: a DDPJob trains in the container {TRAINER_CONTAINER}, but here {name} "
                f"trains; rename {TRAINER_CONTAINER}"
            )
    if containers[0] is not trainer:
        notes.changed(path, f"{trainer['name']} is now first, because it trains")
    spec["containers"] = [trainer, *(one for one in containers if one is not trainer)]
    by_rule = trainer_container(template)
    elsewhere = any(map(has_accelerators, containers)) and not has_accelerators(trainer)
    if name is not None and (by_rule is not trainer or elsewhere):
        trainer["name"] = TRAINER_CONTAINER
        notes.changed(path, f"{name} is renamed to {TRAINER_CONTAINER}, because it trains")
    container: dict[str, Any] = trainer
    return container


def _environment(
    container: dict[str, Any], path: str, notes: Notes, origin: Origin
) -> tuple[int | None, int | None]:
    """Remove variables that the operator sets; return the master port and processes, if set."""
    port, processes, kept = None, None, []
    for entry in container.get("env") or []:
        name, value = entry["name"], str(entry.get("value", ""))
        field = f"{path}.env[{name}]"
        if name in _PORTS and _port(value):
            port = _port(value)
        elif name == "PET_NPROC_PER_NODE" and count(value) is not None:
            processes = count(value)
        elif name in _PLACE or name in _PORTS or name.startswith(_RENDEZVOUS):
            notes.dropped(field, "the operator sets the rendezvous; remove it")
        elif replacement := _of_metadata(entry, origin.places):
            notes.changed(field, f"now {replacement}; the pods do not have these labels")
            kept.append({"name": name, "value": replacement})
        else:
            if origin.are_named_by_index and _field_path(entry) == "metadata.name":
                notes.changed(
                    field,
                    "here a pod's name (metadata.name) is not its host name, and may not end in "
                    "its index; use the hostname command, and PET_NODE_RANK",
                )
            kept.append(entry)
    if "env" in container:
        container["env"] = kept
        if not kept:
            del container["env"]
    return port, processes


def _field_path(entry: Mapping[str, Any]) -> str:
    return str(mapping(entry, "valueFrom", "fieldRef").get("fieldPath", ""))


def _of_metadata(entry: Mapping[str, Any], indexes: Mapping[str, str]) -> str | None:
    match = re.fullmatch(r"metadata\.(?:labels|annotations)\['([^']+)'\]", _field_path(entry))
    return indexes.get(match[1]) if match else None


def _launched(container: dict[str, Any], path: str, notes: Notes, base: Pods) -> Pods:
    """Remove torchrun's flags that the operator sets with variables."""
    command, args = container.get("command") or [], container.get("args") or []
    argv = [*command, *args]
    try:
        torchrun = launch(argv)
    except ConversionError as error:
        notes.changed(f"{path}.command", f"unchanged: {error}")
        torchrun = None
    if torchrun is None:
        if started(argv).in_shell:
            _count_pods(container, path, notes)
        return _left(argv, path, notes, base)
    if torchrun.taken:
        container["command"] = list(torchrun.command)
        container.pop("args", None)
        flags = " ".join(f"--{k}={v}" if v else f"--{k}" for k, v in torchrun.taken.items())
        notes.changed(f"{path}.command", f"removed {flags}; the operator sets PET_* variables")
    procs = torchrun.taken.get("nproc-per-node", "")
    processes = count(procs)
    least, _, most = torchrun.taken.get("nnodes", "").partition(":")
    if most and most != least:
        notes.changed(f"{path}.command", f"--nnodes={least}:{most}: {ELASTIC}")
    if procs and processes is None and procs not in ("auto", "gpu"):
        notes.changed(f"{path}.command", f"--nproc-per-node={procs}: set spec.nprocPerNode instead")
    return replace(
        base,
        processes=processes or ("auto" if procs else base.processes),
        starts="launcher",
        master_port=_port(torchrun.taken.get("master-port", "")) or base.master_port,
    )


def _count_pods(container: dict[str, Any], path: str, notes: Notes) -> None:
    """Let torchrun's flags in a shell line count pods with the variables that do here."""
    for part in ("command", "args"):
        if words := container.get(part):
            replaced = [by_pod(word) for word in words]
            container[part] = [word for word, _ in replaced]
            for change in (change for _, changes in replaced for change in changes):
                notes.changed(f"{path}.{part}", change)


def _left(argv: Sequence[str], path: str, notes: Notes, base: Pods) -> Pods:
    """Read a command line that stays unchanged."""
    program = started(argv)
    if not program.launcher:
        return replace(base, starts="unknown" if program.python is None else "python")
    if not program.by_torchrun:
        notes.changed(
            f"{path}.command",
            f"unchanged; {program.called} takes processes and pods from its own flags: use "
            "PET_NNODES, PET_NODE_RANK, MASTER_ADDR and MASTER_PORT there, or use torchrun",
        )
        return replace(base, starts="launcher")
    notes.changed(
        f"{path}.command",
        "unchanged; torchrun's flags override the operator's variables: remove --nnodes, "
        "--node_rank, --master_*, --rdzv_* if you can",
    )
    try:
        line = launch(program.words) if program.in_shell else None
    except ConversionError:
        line = None
    procs = line.taken.get("nproc-per-node", "") if line else ""
    own = count(procs)
    return replace(base, processes=base.processes if own is None else own, starts="launcher")


def _port(text: str) -> int | None:
    number = count(text)
    return number if number is not None and 1024 <= number <= 65535 else None
