"""The Python client: run jobs on a cluster or this machine from a program or a notebook.

`client` and `job` are asynchronous; `sync` wraps them for synchronous code. Both use a backend
from `backends`: a cluster or this machine.
"""

from ddp_operator.client.cluster import NoSuchJobError, NotInstalledError
from ddp_operator.client.submission import NameTakenError
from ddp_operator.sdk.client import AsyncClient, AsyncLocalClient
from ddp_operator.sdk.errors import (
    ClientError,
    FunctionError,
    JobFailedError,
    JobGoneError,
    ManifestError,
    WaitTimeoutError,
)
from ddp_operator.sdk.job import AsyncJob
from ddp_operator.sdk.logs import LogLine
from ddp_operator.sdk.manifests import Options
from ddp_operator.sdk.report import JobReport
from ddp_operator.sdk.sync import Client, Job, LocalClient
from ddp_operator.submit import JobRequestError
from ddp_operator.views.changes import RefusedError

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
