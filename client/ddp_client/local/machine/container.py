"""Turns a container into a process of this machine: command, environment, working directory.

Pure. It follows the kubelet's rules where a process can, and raises a clear error where not.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_operator.api.command import is_python
from ddp_operator.api.constants import ENV_STATUS_PORT, LAUNCHER_PATH, RESERVED_ENVIRONMENT
from ddp_operator.ports import Manifest

from ddp_client.local.machine.errors import ContainerConfigError
from ddp_client.local.machine.volumes import translate

TRAINER_IMAGE = "ddp-trainer"
TRAINER_ENTRYPOINT = ("python", "-m", "ddp_trainer.launch")
"""Default command of the bundled trainer's image."""

# Variables that describe a process group. Inherited from our environment they would make ranks join
# another group.
_FOREIGN = re.compile(r"(MASTER|PET|DDP|TORCHELASTIC)_")
# https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables
_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")

_NEAR = 100
"""Ports from MASTER_PORT on that scripts use for their own stores and servers."""


@dataclass(frozen=True, kw_only=True)
class ContainerProcess:
    """The process to run for a container."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    working_directory: Path | None
    """None: where the run was started."""


@dataclass(frozen=True, kw_only=True)
class PodContext:
    """Resources that this machine provides for one pod."""

    environment: Mapping[str, str]
    """This process' environment. Pods inherit what does not concern training."""
    python: str
    """Path of the interpreter that runs a command's `python`."""
    launcher_python: str
    """Path of the interpreter that has the launcher."""
    master_address: str
    master_port: int
    status_port: int
    leader_port: int | None
    """Port of rank 0's launcher; None: unknown."""
    termination_log: Path
    gpus: tuple[str, ...]
    """CUDA's names of the GPUs lent to the pod."""
    cores: int
    """Cores of the whole machine."""
    directories: Mapping[str, Path]
    """Directories of the container's volumes, by mount path."""


def container_process(container: Manifest, context: PodContext) -> ContainerProcess:
    """Return the process for a container.

    Raises:
        ContainerConfigError: the container needs something that only a real cluster has.
    """
    variables = _variables(container, context)
    command = tuple(
        translate(expand(str(part), variables), context.directories) for part in _command(container)
    )
    if command[: len(TRAINER_ENTRYPOINT)] == TRAINER_ENTRYPOINT:
        command = (context.launcher_python, *command[1:])
    elif is_python(command[0]) and "/" not in command[0]:
        command = (context.python, *command[1:])
    directory = container.get("workingDir")
    return ContainerProcess(
        command=command,
        environment={**_inherited(context), **variables},
        working_directory=Path(translate(directory, context.directories)) if directory else None,
    )


def master_host(container: Manifest) -> str:
    """Return the host name of rank 0's pod; empty for a spare, which learns it later."""
    env = {entry.get("name"): str(entry.get("value")) for entry in container.get("env") or ()}
    return env.get("MASTER_ADDR", "").partition(".")[0]


def status_port_like(container: Manifest, master_port: int) -> int | None:
    """Return a status port for rank 0's pod, as far from the master port as in a cluster. A script
    that counts on from MASTER_PORT then meets it here, too. None if it is not near.
    """
    env = {entry.get("name"): str(entry.get("value")) for entry in container.get("env") or ()}
    ports = [env.get(name, "") for name in (ENV_STATUS_PORT, "MASTER_PORT")]
    if not all(port.isdecimal() for port in ports):
        return None
    distance = int(ports[0]) - int(ports[1])
    return master_port + distance if abs(distance) <= _NEAR else None


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by its value and `$$` by `$`. An unknown name stays as written."""

    def replacement(reference: re.Match[str]) -> str:
        name = reference.group(1)
        return "$" if name is None else variables.get(name, reference.group())

    return _REFERENCE.sub(replacement, text)


def image_name(image: str) -> str:
    """Return the image without registry, tag and digest: `registry.example/team/trainer:1` is
    `trainer`.
    """
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def _command(container: Manifest) -> list[Any]:
    arguments = container.get("args") or []
    if command := container.get("command"):
        if command[1:2] == [LAUNCHER_PATH]:  # the launcher is not copied here
            command = [*TRAINER_ENTRYPOINT, *command[2:]]
        return [*command, *arguments]
    image = str(container.get("image", ""))
    # An image that was built from the trainer's has any name, but its launcher's arguments.
    if image_name(image) != TRAINER_IMAGE and "--" not in arguments:
        raise ContainerConfigError(
            f"container {container.get('name')} has no command, and the default command of image "
            f"{image} is unknown here; add spec.template.spec.containers[].command, or, if the "
            f'image is built from {TRAINER_IMAGE}, write args as ["--", python, train.py]'
        )
    return [*TRAINER_ENTRYPOINT, *arguments]


def _inherited(context: PodContext) -> dict[str, str]:
    kept = {
        name: value
        for name, value in context.environment.items()
        if name not in RESERVED_ENVIRONMENT and not _FOREIGN.match(name)
    }
    # Programs next to the interpreter come first, such as torchrun.
    programs = str(Path(context.python).parent)
    return {**kept, "PATH": f"{programs}:{kept.get('PATH', '/usr/local/bin:/usr/bin:/bin')}"}


def _variables(container: Manifest, context: PodContext) -> dict[str, str]:
    """Return the container's variables in order, with this machine's values instead of the
    cluster's.
    """
    if container.get("envFrom"):
        raise ContainerConfigError(
            f"container {container.get('name')}: envFrom needs a cluster; list the variables in env"
        )
    entries = {str(entry.get("name")): entry for entry in container.get("env") or ()}
    world_size = str((entries.get("WORLD_SIZE") or {}).get("value", "1"))
    ours = {
        "MASTER_ADDR": context.master_address,
        "MASTER_PORT": str(context.master_port),
        "PET_MASTER_ADDR": context.master_address,
        "PET_MASTER_PORT": str(context.master_port),
        ENV_STATUS_PORT: str(context.status_port),
        **({"DDP_LEADER_PORT": str(context.leader_port)} if context.leader_port else {}),
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "DDP_TERMINATION_LOG": str(context.termination_log),
        # All ranks share this machine; torch would give each of them all cores.
        "OMP_NUM_THREADS": str(max(context.cores // int(world_size), 1)),
        "OMP_WAIT_POLICY": "PASSIVE",
        "CUDA_VISIBLE_DEVICES": ",".join(context.gpus),
    }
    choices = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")  # a user's own value is just as good
    known = {name: value for name, value in ours.items() if name not in entries}
    for name, entry in entries.items():
        if name in ours and name not in choices:
            known[name] = ours[name]
        elif "valueFrom" in entry:
            raise ContainerConfigError(
                f"container {container.get('name')}: env {name} uses valueFrom, which needs a "
                "cluster; give it a value to run the job here"
            )
        else:
            text = expand(str(entry.get("value") or ""), known)
            known[name] = translate(text, context.directories)
    return known
