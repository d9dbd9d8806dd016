"""Which ranks each pod has: as many as it has processes, counted over the pods before it."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby

from ddp_operator.api.rules import gpu_limit
from ddp_operator.api.spec import DDPJobSpec
from ddp_operator.api.spec.overrides import kinds, spec_of
from ddp_operator.job.membership.world import max_size


def local_world_size(spec: DDPJobSpec, index: int) -> int:
    """Training processes in one pod."""
    return processes(spec_of(spec, index))


def world_size(spec: DDPJobSpec, pods: int | None = None) -> int:
    """Training processes in all pods; `pods`: how many, where that is not `spec.replicas`."""
    return first_rank(spec, spec.replicas if pods is None else pods)


def first_rank(spec: DDPJobSpec, index: int) -> int:
    """The rank of a pod's first process: how many processes the pods before it have."""
    if not spec.overrides:  # a group may have more pods than replicas
        return processes(spec) * index
    # By kinds, of which there are few, and not by pods, of which there are thousands.
    return sum(
        processes(kind) * sum(len(range(pods.start, min(pods.stop, index))) for pods in where)
        for kind, where in kinds(spec)
    )


def ranks(spec: DDPJobSpec, index: int) -> range:
    """The ranks of one pod."""
    first = first_rank(spec, index)
    return range(first, first + local_world_size(spec, index))


def pod_of(spec: DDPJobSpec, rank: int) -> int:
    """The index of the pod that has a rank; of one that no pod has, the last."""
    if not spec.overrides:
        return min(rank // processes(spec), max_size(spec) - 1)
    # The last pod that begins at it or before: each has a process at least.
    found = bisect_right(range(spec.replicas), rank, key=lambda index: first_rank(spec, index))
    return max(found - 1, 0)


def pod_sizes(spec: DDPJobSpec) -> str:
    """How many processes the pods have, in their order: `4,2x3` is one of 4 and three of 2.

    Empty where all have as many.
    """
    sizes = _sizes(spec) if spec.overrides else ()
    if len({size for size, _ in sizes}) <= 1:
        return ""
    return ",".join(f"{size}x{pods}" if pods > 1 else str(size) for size, pods in sizes)


def backend(spec: DDPJobSpec) -> str:
    """torch.distributed's backend: as asked, else nccl where all pods have GPUs, else gloo."""
    if spec.backend != "auto":
        return spec.backend
    return "nccl" if all(gpu_limit(kind) for kind, _ in kinds(spec)) else "gloo"


def processes(kind: DDPJobSpec) -> int:
    """Training processes in each pod of a kind: as asked, else one for each GPU, else one."""
    asked = kind.nproc_per_node
    return max(gpu_limit(kind), 1) if asked == "auto" else asked


def _sizes(spec: DDPJobSpec) -> Sequence[tuple[int, int]]:
    """(processes, how many pods in a row have them), in the order of the pods."""
    runs = [
        (pods.start, processes(kind), len(pods)) for kind, where in kinds(spec) for pods in where
    ]
    by_size = groupby(sorted(runs), key=lambda run: run[1])
    return [(size, sum(pods for _, _, pods in same)) for size, same in by_size]
