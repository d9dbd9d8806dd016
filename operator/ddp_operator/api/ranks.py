"""Ranks of each pod: as many as its processes, counted over the pods before it."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby

from ddp_operator.api.rules import gpu_limit
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.spec.overrides import kinds, spec_of


def local_world_size(spec: DDPJobSpec, index: int) -> int:
    """Return the number of training processes in one pod."""
    return processes(spec_of(spec, index))


def world_size(spec: DDPJobSpec, pods: int | None = None) -> int:
    """Return the number of training processes in all pods; `pods`: their number, by default
    spec.replicas.
    """
    return first_rank(spec, spec.replicas if pods is None else pods)


def first_rank(spec: DDPJobSpec, index: int) -> int:
    """Return the rank of a pod's first process: the number of processes in the pods before it."""
    if not spec.overrides:  # a group may have more pods than replicas
        return processes(spec) * index
    # By kinds, since there are few of them but thousands of pods.
    return sum(
        processes(kind) * sum(len(range(pods.start, min(pods.stop, index))) for pods in where)
        for kind, where in kinds(spec)
    )


def ranks(spec: DDPJobSpec, index: int) -> range:
    """Return the ranks of one pod."""
    first = first_rank(spec, index)
    return range(first, first + local_world_size(spec, index))


def pod_of(spec: DDPJobSpec, rank: int) -> int:
    """Return the index of the pod with this rank; the last pod if none has it."""
    if not spec.overrides:
        return min(rank // processes(spec), spec.max_size - 1)
    # The last pod that starts at or before it; each pod has at least one process.
    found = bisect_right(range(spec.replicas), rank, key=lambda index: first_rank(spec, index))
    return max(found - 1, 0)


def pod_sizes(spec: DDPJobSpec) -> str:
    """Return how many processes the pods have in order: `4,2x3` is one pod of 4 and three of 2.
    Empty if all have the same number.
    """
    sizes = _sizes(spec) if spec.overrides else ()
    if len({size for size, _ in sizes}) <= 1:
        return ""
    return ",".join(f"{size}x{pods}" if pods > 1 else str(size) for size, pods in sizes)


def backend(spec: DDPJobSpec) -> str:
    """Return torch.distributed's backend: as asked, else nccl if all pods have GPUs, else gloo."""
    if spec.backend != "auto":
        return spec.backend
    return "nccl" if all(gpu_limit(kind) for kind, _ in kinds(spec)) else "gloo"


def processes(kind: DDPJobSpec) -> int:
    """Return the training processes in each pod of a kind: as asked, else one per GPU, else one."""
    asked = kind.nproc_per_node
    return max(gpu_limit(kind), 1) if asked == "auto" else asked


def _sizes(spec: DDPJobSpec) -> Sequence[tuple[int, int]]:
    """Return pairs (processes, number of consecutive pods) in the order of the pods."""
    runs = [
        (pods.start, processes(kind), len(pods)) for kind, where in kinds(spec) for pods in where
    ]
    by_size = groupby(sorted(runs), key=lambda run: run[1])
    return [(size, sum(pods for _, _, pods in same)) for size, same in by_size]
