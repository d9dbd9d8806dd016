"""Refuses sharded trainings that could not continue when a rank is lost."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.script_group import ScriptGroup
from ddp_trainer.exit_codes import ConfigurationError, NewProcessError
from ddp_trainer.library.checks.verification import Part
from ddp_trainer.run.parts import Parts
from ddp_trainer.settings.environment import Placement
from ddp_trainer.system.torch_release import shortcoming

OLDEST = (2, 11)
"""The oldest release of torch with which this was tested."""


def mesh_of(models: list[nn.Module]) -> DeviceMesh | None:
    """Return the mesh over which the models are sharded; None: they are not.

    Raises:
        ConfigurationError: a rank that is lost could not be replaced.
    """
    parameters = [each for model in models for each in model.named_parameters()]
    meshes = [getattr(parameter, "device_mesh", None) for _, parameter in parameters]
    if not any(meshes):
        return None
    if sentence := shortcoming("join() got a sharded model, which", OLDEST):
        raise ConfigurationError(f"{sentence}: update it, or train without join()")
    for (name, parameter), mesh in zip(parameters, meshes, strict=True):
        if mesh is None:
            raise ConfigurationError(
                f"{name} is not sharded, but other parameters are: call fully_shard() on the whole "
                "model too, without ignored_params"
            )
        placements = getattr(parameter, "placements", ())
        *replicated, sharded = placements or [None]
        are_fit = sharded and sharded.is_shard() and all(each.is_replicate() for each in replicated)
        if not _is_of_job(mesh) or not are_fit:
            raise ConfigurationError(
                f"{name} is a DTensor that is not sharded over all ranks: shard the model only by "
                "fully_shard(model, mesh=ddp_trainer.device_mesh())"
            )
    return meshes[0]


def part_of(mesh: DeviceMesh) -> Part:
    """Return this rank's part of the models that are sharded over a mesh."""
    if mesh.ndim == 1 or mesh.size(0) == 1:
        return Part(0, 0)
    return Part((mesh.get_coordinate() or [0, 0])[1], mesh.size(1))


def check(
    parts: Parts, placement: Placement, *, is_batch_fixed: bool, copies: int, verify_replicas: int
) -> None:
    """Check that sharded parts can be trained in a job like this.

    `verify_replicas`: the option of a model without replicas.

    Raises:
        ConfigurationError: they cannot.
    """
    size, remedy = placement.world_size, None
    if placement.checkpoint_dir is not None:
        remedy = 'cannot save checkpoints of a sharded model: set checkpoint_dir="" in join()'
    elif parts.scaler is not None:
        remedy = "cannot scale gradients of a sharded model: train in bfloat16, without GradScaler"
    elif is_batch_fixed:
        remedy = (
            "cannot divide the steps of a sharded model: remove logical_shards, and elastic.batch "
            "from the DDPJob"
        )
    elif verify_replicas > 1:
        remedy = (
            f"got verify_replicas={verify_replicas}, but this sharded model has no replicas: each "
            "rank verifies its own part before each step, so set verify_replicas=1"
        )
    elif not 0 <= copies < size:
        remedy = f"got shard_copies={copies}: choose 0 to {size - 1}, for a job of {size} ranks"
    if remedy is not None:
        raise ConfigurationError(f"join() {remedy}")


def expect_place(mesh: DeviceMesh, group: Group) -> None:
    """Check that a process with a part of the model has the part of its rank.

    Raises:
        NewProcessError: it does not.
    """
    size = mesh.size()
    own = int(mesh.mesh[tuple(mesh.get_coordinate() or ())])
    if (group.rank, group.size) != (own, size):
        raise NewProcessError(
            f"this process holds part {own} of {size} of the model, but is now rank "
            f"{group.rank} of {group.size}: it must restart"
        )


def _is_of_job(mesh: DeviceMesh) -> bool:
    """Return whether it was made by `device_mesh()`, and has all ranks."""
    groups = mesh.get_all_groups()
    are_of_job = all(isinstance(group, ScriptGroup) for group in groups)
    return are_of_job and (mesh.ndim > 1 or getattr(groups[0], "ranks", ()) is None)
