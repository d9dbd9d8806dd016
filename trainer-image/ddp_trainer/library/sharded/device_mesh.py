"""The mesh of a job's ranks, over which a script shards its model before it joins the job."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

from ddp_trainer.collectives.script_group import ScriptGroup
from ddp_trainer.devices.hardware import default_backend, gpu_of
from ddp_trainer.exit_codes import ConfigurationError

_groups: dict[tuple[int, ...] | None, ScriptGroup] = {}
"""The groups of meshes by their ranks, None for all ranks; their collectives are the job's."""


def device_mesh(shard_size: int | None = None) -> DeviceMesh:
    """Return the mesh of all ranks of the job, for `fully_shard` before `join`.

        mesh = ddp_trainer.device_mesh()
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        with ddp_trainer.join(model=model, optimizer=optimizer) as job:

    It stays valid while ranks are lost and replaced. The models' ranks communicate in `join` only.
    On a GPU, `fully_shard` moves this rank's part of the model there.

    `shard_size`: shard over groups of this many ranks, and replicate over the groups (HSDP). The
    mesh then has the dimensions "replicate" and "shard". None: shard over all ranks.

    Raises:
        ConfigurationError: this pod lacks GPUs that its ranks need, or `shard_size` does not divide
            the number of ranks.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if shard_size is not None and (shard_size < 1 or size % shard_size):
        raise ConfigurationError(
            f"device_mesh() got shard_size={shard_size}: choose a divisor of the job's {size} ranks"
        )
    device = _device().type
    _release_ended_training()
    world = _group(None, rank, size)
    default = distributed_c10d.GroupMember.WORLD
    distributed_c10d._update_default_pg(world)
    if shard_size is not None:
        # The default group stays until `join`: `fully_shard` takes one dimension of the mesh, and
        # a DeviceMesh then asks that group for its rank.
        first = rank - rank % shard_size
        return DeviceMesh.from_group(
            [
                _group(range(rank % shard_size, size, shard_size), rank, size),
                _group(range(first, first + shard_size), rank, size),
            ],
            device,
            torch.arange(size).reshape(-1, shard_size),
            mesh_dim_names=("replicate", "shard"),
        )
    try:
        return DeviceMesh.from_group(world, device)
    finally:
        distributed_c10d._update_default_pg(default)


def _group(ranks: Iterable[int] | None, rank: int, size: int) -> ScriptGroup:
    """Return the group of these ranks, which has a place for this rank before the job has formed.

    None: all ranks.
    """
    members = tuple(ranks) if ranks is not None else None
    if members not in _groups:
        label = f"mesh/{','.join(map(str, members))}" if members is not None else ""
        _groups[members] = ScriptGroup(label, members)
    group = _groups[members]
    if members is not None:
        rank, size = members.index(rank), len(members)
    group.expect(rank, size)
    return group


def _device() -> torch.device:
    """Return this rank's device, as `join` will use it."""
    if os.environ.get("DDP_BACKEND", default_backend()) == "gloo":
        return torch.device("cpu")
    number = gpu_of(
        int(os.environ.get("LOCAL_RANK", "0")),
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        gpus=torch.cuda.device_count(),
        device_ids=None,
    )
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)  # a mesh has a type of device, and no number
    return device


def release_default_group() -> None:
    """Let the job form the default group, if a mesh or an ended training has taken its place."""
    _release_ended_training()
    if distributed_c10d.GroupMember.WORLD in _groups.values():
        distributed_c10d._update_default_pg(None)


def _release_ended_training() -> None:
    world = distributed_c10d.GroupMember.WORLD
    if isinstance(world, ScriptGroup) and world not in _groups.values():
        distributed_c10d._update_default_pg(None)
        world.leave()


def groups_of_meshes() -> list[ScriptGroup]:
    """Return the groups of the meshes that the script has made; that of all ranks is the first."""
    return list(_groups.values())
