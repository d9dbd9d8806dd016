"""Environment of the trainer container: PyTorch's variables, torchrun's, and the operator's."""

from ddp_operator.api import constants, ranks
from ddp_operator.api.job import DDPJob
from ddp_operator.api.local_paths import local_paths
from ddp_operator.api.spec.overrides import spec_of
from ddp_operator.job.membership.rank_order import HOLD_SECONDS, is_first_due
from ddp_operator.job.membership.world import (
    members,
    members_to_lead,
    node_ranks,
    scope_of,
    world_of,
)
from ddp_operator.job.pods.state import Identity

LEAVE_SECONDS = 5
"""How long a pod keeps training after a deletion is requested, so that the others can continue
without it. The message takes a tenth of that. A spot node leaves 15 s in all, which must include a
save."""


def environment(job: DDPJob, identity: Identity, *, token: str) -> dict[str, str]:
    """Return the trainer container's environment; an empty token is left out."""
    spec, spare = job.spec, is_spare(job, identity)
    pods, local_world_size = len(members(job)), ranks.local_world_size(spec, identity.index)
    master_addr = master_addr_of(job, identity.attempt)
    # A spare's launcher gets these later; a script without one fails.
    of_a_member = {
        "MASTER_ADDR": master_addr,
        "WORLD_SIZE": ranks.world_size(spec, pods),
        "NODE_RANK": identity.index,
        "GROUP_RANK": identity.index,
        "GROUP_WORLD_SIZE": pods,
        "PET_NNODES": pods,
        "PET_NODE_RANK": identity.index,
        "PET_MASTER_ADDR": master_addr,
    }
    variables = {
        **({} if spare else of_a_member),
        "MASTER_PORT": spec.master_port,
        "LOCAL_WORLD_SIZE": local_world_size,
        "DDP_BACKEND": ranks.backend(spec),
        "DDP_JOB_NAME": job.name,
        "DDP_JOB_UID": job.uid,
        "DDP_ATTEMPT": identity.attempt,
        "DDP_CHECKPOINT_DIR": spec.checkpoint.path,
        constants.ENV_STATUS_PORT: spec.status_port,
        "PYTHONUNBUFFERED": 1,
        "PET_NPROC_PER_NODE": local_world_size,
        "PET_MASTER_PORT": spec.master_port,
    }
    if local_world_size == 1 and not spare:
        # With several processes the launcher sets these. Without one, a plain script fails on the
        # missing RANK, rather than hang in a group that never completes.
        variables |= {"RANK": ranks.first_rank(spec, identity.index), "LOCAL_RANK": 0}
    if sizes := ranks.pod_sizes(spec):
        variables[constants.ENV_POD_SIZES] = sizes
    if token:
        variables[constants.ENV_TOKEN] = token
    variables[constants.ENV_SCOPE] = spec.restart.scope
    variables[constants.ENV_GENERATION] = world_of(job).generation
    variables[constants.ENV_POD] = identity.pod_name(job.name)
    if is_held(job, identity):
        variables[constants.ENV_HELD] = 1
    elif is_first_due(job) and not spare:
        variables[constants.ENV_HOLD_SECONDS] = HOLD_SECONDS
    if spec.elastic:
        variables |= {
            constants.ENV_BATCH: spec.elastic.batch,
            constants.ENV_BATCH_RANKS: ranks.world_size(spec),
        }
    if spec.elastic or spec.spares:
        variables[constants.ENV_LEAVE_SECONDS] = LEAVE_SECONDS
    if spec.replicas > 1 or spec.elastic:
        paths = local_paths(spec_of(spec, identity.index))
        variables |= {constants.ENV_LOCAL_PATHS: ":".join(paths)} if paths else {}
    if memory := spec.memory_checkpoint:
        variables |= {
            constants.ENV_MEMORY_DIR: constants.MEMORY_PATH,
            constants.ENV_MEMORY_BYTES: memory.size_bytes,
            constants.ENV_MEMORY_COPIES: memory.copies,
        }
    if identity.index == 0 and not spare:
        # All restarts are one run of W&B. Several writers would corrupt it, so no other pod gets
        # these. MLflow assigns run ids itself.
        variables |= {"WANDB_RUN_ID": job.uid, "WANDB_RESUME": "allow", "WANDB_NAME": job.name}
        if group := members_to_lead(job):
            variables[constants.ENV_MEMBERS] = group
    return {name: str(value) for name, value in variables.items()}


def master_addr_of(job: DDPJob, attempt: int) -> str:
    """Return the DNS name of rank 0's pod, which resolves from any of the job's pods."""
    return f"{Identity(index=members(job)[0], attempt=attempt).host_name(job.name)}.{job.name}"


def is_spare(job: DDPJob, identity: Identity) -> bool:
    """Return whether a pod is outside the group."""
    return identity.slot not in node_ranks(job)


def is_held(job: DDPJob, identity: Identity) -> bool:
    """Return whether a pod's processes wait for an assignment before they start: the other pods,
    and the rank 0 that it would join, may still be of an earlier generation.
    """
    if identity.replacement == 0 or world_of(job).generation == 0:
        return False
    # Without a launcher that answered, nothing could release it.
    return scope_of(job) == "InPlace" and bool(job.status.bookkeeping.launcher)
