"""The Python client: run jobs on a cluster or this machine from a program or a notebook.

`client` and `job` are asynchronous; `sync` wraps them for synchronous code. Both use a backend
from `backends`: a cluster or this machine.
"""

from ddp_client.remote.cluster import NoSuchJobError, NotInstalledError
from ddp_client.remote.submission import NameTakenError
from ddp_client.sdk.client import AsyncClient, AsyncLocalClient
from ddp_client.sdk.errors import (
    ClientError,
    FunctionError,
    JobFailedError,
    JobGoneError,
    ManifestError,
    WaitTimeoutError,
)
from ddp_client.sdk.job import AsyncJob
from ddp_client.sdk.logs import LogLine
from ddp_client.sdk.manifests import Options
from ddp_client.sdk.report import JobReport
from ddp_client.sdk.result import JobResult
from ddp_client.sdk.sync import Client, Job, LocalClient
from ddp_client.submit import JobRequestError
from ddp_client.views.refused import RefusedError

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "AsyncLocalClient",
    "Client",
    "ClientError",
    "FunctionError",
    "Job",
    "JobFailedError",
    "JobGoneError",
    "JobReport",
    "JobRequestError",
    "JobResult",
    "LocalClient",
    "LogLine",
    "ManifestError",
    "NameTakenError",
    "NoSuchJobError",
    "NotInstalledError",
    "Options",
    "RefusedError",
    "WaitTimeoutError",
]
