"""The mesh of a job's ranks, over which a script shards its model before it joins the job."""

from __future__ import annotations

import os
from functools import cache

import torch
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

from ddp_trainer.collectives.script_group import ScriptGroup
from ddp_trainer.devices.hardware import default_backend, gpu_of


@cache
def _group() -> ScriptGroup:
    """Return the group of the mesh; its collectives are those of the job."""
    return ScriptGroup("", None)


def device_mesh() -> DeviceMesh:
    """Return the mesh of all ranks of the job, for `fully_shard` before `join`.

        mesh = ddp_trainer.device_mesh()
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        with ddp_trainer.join(model=model, optimizer=optimizer) as job:

    It stays valid while ranks are lost and replaced. The models' ranks communicate in `join` only.
    On a GPU, `fully_shard` moves this rank's part of the model there.

    Raises:
        ConfigurationError: this pod lacks GPUs that its ranks need.
    """
    group = _group()
    group.expect(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
    default = distributed_c10d.GroupMember.WORLD
    distributed_c10d._update_default_pg(group)
    try:
        return DeviceMesh.from_group(group, _device().type)
    finally:
        distributed_c10d._update_default_pg(default)


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


def group_of_mesh() -> ScriptGroup | None:
    """Return the group of the mesh, if the script has made one."""
    return _group() if _group.cache_info().currsize else None
