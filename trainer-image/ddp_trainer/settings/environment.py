"""Reads a process's rank, its pod and its group from the environment.

Nothing here imports torch, so a wrong variable is reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings.batch import Batch
from ddp_trainer.settings.pod_sizes import PodSizes

Backend = Literal["nccl", "gloo"]

_MASTER_HOST = re.compile(r"(?P<stem>[^.]*-)0(?P<domain>(\..*)?)")
_TOKEN = re.compile("[!-~]*")
_REMEDY = "the DDPJob operator sets it in its pods; by hand, export it"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The variables that all ranks of a pod share."""

    master_addr: str
    master_address: str = ""
    """The IP address of `master_addr`, if the operator sent it: saves a DNS query."""
    master_port: int
    world_size: int
    """Processes in the whole job."""
    node_rank: int
    local_world_size: int
    """Processes in this pod."""
    pod_sizes: PodSizes
    """Processes in each pod."""
    backend: Backend
    job_name: str
    job_uid: str
    """Tells the job from earlier ones of the same name; empty: unknown."""
    attempt: int
    checkpoint_dir: Path | None
    """None: no checkpoints are written or read."""
    status_port: int | None = None
    """Where the launcher serves the pod's status; None: nowhere."""
    leader_port: int | None = None
    """Port of node rank 0's launcher, in local runs; None: the same as this pod's."""
    generation: int = 0
    """Generation of the group: a higher one each time all its processes have restarted."""
    batch: Batch = field(default_factory=Batch)
    """How many shards make a step."""
    leave_seconds: int = 0
    """How long a terminating pod waits for the operator to remove it from the group; 0: not at
    all."""
    token: str = field(default="", repr=False)
    """Secret of the job's pods and the operator; empty: there is none."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Placement:
        """Read and check the variables.

        Raises:
            ConfigurationError: a variable is missing, malformed or contradicts another.
        """
        world_size = _integer(env, "WORLD_SIZE", minimum=1)
        local_world_size = _integer(env, "LOCAL_WORLD_SIZE", minimum=1)
        node_rank = _integer(env, "NODE_RANK", minimum=0)
        pod_sizes = _pod_sizes(env, world_size, node_rank, local_world_size)
        backend = _text(env, "DDP_BACKEND")
        if backend not in ("nccl", "gloo"):
            raise ConfigurationError(f"DDP_BACKEND is {backend!r}: set it to nccl or gloo")
        checkpoint_dir = env.get("DDP_CHECKPOINT_DIR", "")
        return cls(
            master_addr=_text(env, "MASTER_ADDR"),
            master_port=_integer(env, "MASTER_PORT", minimum=1, maximum=65535),
            world_size=world_size,
            node_rank=node_rank,
            local_world_size=local_world_size,
            pod_sizes=pod_sizes,
            backend=cast(Backend, backend),
            job_name=env.get("DDP_JOB_NAME", "ddp"),
            job_uid=env.get("DDP_JOB_UID", ""),
            attempt=_integer(env, "DDP_ATTEMPT", minimum=0) if "DDP_ATTEMPT" in env else 0,
            checkpoint_dir=Path(checkpoint_dir) if checkpoint_dir else None,
            status_port=_integer(env, "DDP_STATUS_PORT", minimum=1, maximum=65535)
            if env.get("DDP_STATUS_PORT")
            else None,
            leader_port=_integer(env, "DDP_LEADER_PORT", minimum=1, maximum=65535)
            if env.get("DDP_LEADER_PORT")
            else None,
            generation=_integer(env, "DDP_GENERATION", minimum=0)
            if env.get("DDP_GENERATION")
            else 0,
            batch=Batch.from_env(env),
            leave_seconds=_integer(env, "DDP_LEAVE_SECONDS", minimum=0, maximum=600)
            if env.get("DDP_LEAVE_SECONDS")
            else 0,
            token=_token(env),
        )

    def rank_of(self, local_rank: int) -> int:
        """Return the global rank of this pod's process `local_rank`."""
        return self.pod_sizes.first_rank(self.node_rank) + local_rank

    def node_rank_of(self, rank: int) -> int:
        """Return the node rank of the pod that holds a rank."""
        return self.pod_sizes.node_rank_of(rank)

    def host_of(self, node_rank: int) -> str | None:
        """Return a pod's host name; None if MASTER_ADDR does not have the operator's form.

        In that form, host names end in the node rank.
        """
        master = _MASTER_HOST.fullmatch(self.master_addr)
        return f"{master['stem']}{node_rank}{master['domain']}" if master else None


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The variables of one process: those of its pod, and its ranks."""

    placement: Placement
    rank: int
    local_rank: int

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Environment:
        """Read and check the variables.

        Raises:
            ConfigurationError: a variable is missing, malformed or contradicts another.
        """
        placement = Placement.from_env(env)
        rank = _integer(env, "RANK", minimum=0)
        local_rank = _integer(env, "LOCAL_RANK", minimum=0)
        if local_rank >= placement.local_world_size or rank != placement.rank_of(local_rank):
            raise ConfigurationError(
                f"RANK {rank} and LOCAL_RANK {local_rank} do not fit NODE_RANK "
                f"{placement.node_rank} and LOCAL_WORLD_SIZE {placement.local_world_size}: "
                f"RANK must be {placement.rank_of(0)} + LOCAL_RANK in this pod (start the trainer "
                "with python -m ddp_trainer.launch, which sets them)"
            )
        return cls(placement=placement, rank=rank, local_rank=local_rank)


def _pod_sizes(
    env: Mapping[str, str], world_size: int, node_rank: int, local_world_size: int
) -> PodSizes:
    """Return the sizes of all pods; without DDP_POD_SIZES, all are as large as this one."""
    if env.get("DDP_POD_SIZES"):
        found = PodSizes.parse(env["DDP_POD_SIZES"])
        if sum(found.sizes) != world_size:
            raise ConfigurationError(
                f"WORLD_SIZE is {world_size}, but the pods of DDP_POD_SIZES "
                f"{env['DDP_POD_SIZES']} have {sum(found.sizes)} ranks: set WORLD_SIZE to the "
                "number of processes"
            )
        if node_rank >= len(found.sizes) or found.sizes[node_rank] != local_world_size:
            raise ConfigurationError(
                f"NODE_RANK {node_rank} with LOCAL_WORLD_SIZE {local_world_size} is not a pod of "
                f"DDP_POD_SIZES {env['DDP_POD_SIZES']}: node ranks count from 0"
            )
        return found
    if "GROUP_WORLD_SIZE" in env:
        nodes = _integer(env, "GROUP_WORLD_SIZE", minimum=1)
        if nodes * local_world_size != world_size:
            raise ConfigurationError(
                f"WORLD_SIZE is {world_size}, but GROUP_WORLD_SIZE x LOCAL_WORLD_SIZE is "
                f"{nodes} x {local_world_size}: set WORLD_SIZE to the number of processes, and "
                "DDP_POD_SIZES if pods differ in size"
            )
    if (node_rank + 1) * local_world_size > world_size:
        raise ConfigurationError(
            f"NODE_RANK {node_rank} with LOCAL_WORLD_SIZE {local_world_size} lies beyond "
            f"WORLD_SIZE {world_size}: node ranks count from 0"
        )
    return PodSizes((local_world_size,) * -(-world_size // local_world_size))


def _token(env: Mapping[str, str]) -> str:
    token = env.get("DDP_TOKEN", "")
    if not _TOKEN.fullmatch(token):  # it is sent in an HTTP header
        raise ConfigurationError("DDP_TOKEN: set it to letters, digits and punctuation in ASCII")
    return token


def _text(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "")
    if not value:
        raise ConfigurationError(f"{name} is not set: {_REMEDY}")
    return value


def _integer(env: Mapping[str, str], name: str, *, minimum: int, maximum: int | None = None) -> int:
    text = _text(env, name)
    try:
        value = int(text)
    except ValueError:
        raise ConfigurationError(f"{name} is {text!r}: set it to a whole number") from None
    if value < minimum or (maximum is not None and value > maximum):
        limits = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise ConfigurationError(f"{name} is {value}: set it to a number {limits}")
    return value
