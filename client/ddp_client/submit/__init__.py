"""Build the manifests of a job from a short request; pure functions."""

from ddp_client.submit.code import CodeFolder
from ddp_client.submit.gpus import GpuRequest
from ddp_client.submit.job import admitted, job_manifest
from ddp_client.submit.mounts import Mount
from ddp_client.submit.request import (
    CheckpointLocation,
    JobRequest,
    MemoryCheckpoint,
    ranks_per_pod,
)
from ddp_client.submit.scripts import Scripts
from ddp_client.submit.validation import JobRequestError

__all__ = [
    "CheckpointLocation",
    "CodeFolder",
    "GpuRequest",
    "JobRequest",
    "JobRequestError",
    "MemoryCheckpoint",
    "Mount",
    "Scripts",
    "admitted",
    "job_manifest",
    "ranks_per_pod",
]
