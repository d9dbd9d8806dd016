"""A rank of a sharded model (FSDP2, gloo), which leaves and enters snapshots.

`python -m tests.trainer.memory.sharded`: ends with 0 if everything is as it should be.
"""

from __future__ import annotations

import os
import re

import pytest
from ddp_trainer.memory.restoration import MismatchError
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.trainer.memory.fsdp import local, state_of, train, training
from tests.trainer.memory.sameness import same
from tests.trainer.memory.states import restored, snapshot_file


def check(mesh: DeviceMesh) -> None:
    """Resume a training, and compare it with one that was not interrupted."""
    model, optimizer = training(mesh, seed=1)
    train(model, optimizer, range(2))
    file = snapshot_file(state_of(model, optimizer))
    train(model, optimizer, range(2, 4))

    resumed, its_optimizer = training(mesh, seed=2)
    state = restored(file, state_of(resumed, its_optimizer))
    its_optimizer.load_state_dict(state["optimizer"])
    train(resumed, its_optimizer, range(2, 4))
    assert same(local(state_of(resumed, its_optimizer)), local(state_of(model, optimizer)))

    with pytest.raises(MismatchError, match="has no DTensor of that kind"):
        restored(file)
    names = ("other", "names")[: mesh.ndim]
    other, _ = training(init_device_mesh("cpu", mesh.shape, mesh_dim_names=names), seed=1)
    with pytest.raises(MismatchError, match=re.escape('state["model"]["0.weight"] is a DTensor')):
        restored(file, {**state, "model": other.state_dict()})


def main() -> None:
    """Check a mesh of all four ranks, and one of two dimensions."""
    dist.init_process_group("gloo")
    check(init_device_mesh("cpu", (4,), mesh_dim_names=("shard",)))
    check(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
