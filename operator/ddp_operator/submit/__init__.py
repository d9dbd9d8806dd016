"""From what a person asks for in a few words to the manifests of a job: pure."""

from ddp_operator.submit.gpus import GpuRequest
from ddp_operator.submit.job import CheckpointPlace, Wish, admitted, job, ranks_per_pod
from ddp_operator.submit.mounts import Mount
from ddp_operator.submit.scripts import Scripts
from ddp_operator.submit.words import WishError

__all__ = [
    "CheckpointPlace",
    "GpuRequest",
    "Mount",
    "Scripts",
    "Wish",
    "WishError",
    "admitted",
    "job",
    "ranks_per_pod",
]
