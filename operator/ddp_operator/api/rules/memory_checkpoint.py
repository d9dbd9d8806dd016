"""Rules on checkpoints in the memory of the pods."""

from posixpath import normpath
from typing import Final

from ddp_operator.api.constants import MEMORY_PATH
from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.rules.trainer import HAS_LIMITS, LIMITS, for_trainer, trainer_container
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.values.quantities import quantity

_NONE: Final = "!has(self.memoryCheckpoint)"
_SIZE: Final = "self.memoryCheckpoint.sizeLimit"
_LEAST: Final = "16Mi"
_LEAST_BYTES: Final = 16 * 2**20
_FEWEST: Final = (
    "(has(self.elastic) && has(self.elastic.minReplicas)"
    " ? self.elastic.minReplicas : self.replicas)"
)
_MEMORY_LIMIT: Final = f"string({LIMITS}['memory'])"


def _fits(spec: DDPJobSpec) -> bool:
    limits = (trainer_container(spec.template).get("resources") or {}).get("limits") or {}
    limit, asked = quantity(limits.get("memory", "")), spec.memory_checkpoint
    return limit is None or asked is None or asked.size_bytes < limit


def _leaves_path(spec: DDPJobSpec) -> bool:
    mounts = trainer_container(spec.template).get("volumeMounts") or ()
    paths = (f"{normpath(mount.get('mountPath') or '/')}/" for mount in mounts)
    return not any(path.startswith(f"{MEMORY_PATH}/") for path in paths)


MEMORY_CHECKPOINT_RULES = (
    Rule(
        f"spec.memoryCheckpoint.sizeLimit: less than {_LEAST}; set it to 2 x (1 + copies) x the "
        "state of a pod's ranks",
        f"quantity(self.sizeLimit).compareTo(quantity('{_LEAST}')) >= 0",
        lambda spec: (
            spec.memory_checkpoint is None or spec.memory_checkpoint.size_bytes >= _LEAST_BYTES
        ),
        on="memoryCheckpoint",
    ),
    Rule(
        "spec.memoryCheckpoint.sizeLimit: must be less than the trainer container's memory limit, "
        "which it counts towards; lower it, or raise the limit",
        f"{_NONE} || "
        + for_trainer(
            f"!({HAS_LIMITS} && 'memory' in {LIMITS}) || !isQuantity({_MEMORY_LIMIT})"
            f" || quantity({_SIZE}).compareTo(quantity({_MEMORY_LIMIT})) < 0"
        ),
        _fits,
    ),
    Rule(
        "spec.memoryCheckpoint.copies: other pods keep them, so there must be fewer copies than "
        "pods (spec.elastic.minReplicas, or replicas); lower copies, or add pods",
        f"{_NONE} || self.memoryCheckpoint.copies < {_FEWEST}",
        lambda spec: (
            spec.memory_checkpoint is None or spec.memory_checkpoint.copies < spec.min_size
        ),
    ),
    Rule(
        "spec.memoryCheckpoint: needs restart.scope Auto or InPlace, which keep the pods and their "
        "memory while processes restart; change the scope, or remove memoryCheckpoint",
        f"{_NONE} || self.restart.scope in ['Auto', 'InPlace']",
        lambda spec: spec.memory_checkpoint is None or spec.restart.scope in ("Auto", "InPlace"),
    ),
    Rule(
        f"spec.template.spec.containers: remove the trainer's volumeMounts in {MEMORY_PATH}; "
        "spec.memoryCheckpoint mounts its own volume there",
        f"{_NONE} || "
        + for_trainer(
            "!has(c.volumeMounts) || c.volumeMounts.all(m, !has(m.mountPath)"
            f" || m.mountPath != '{MEMORY_PATH}' && !m.mountPath.startsWith('{MEMORY_PATH}/'))"
        ),
        lambda spec: spec.memory_checkpoint is None or _leaves_path(spec),
        cel_sees_all=False,
    ),
)
