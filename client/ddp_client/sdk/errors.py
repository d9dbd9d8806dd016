"""Errors of the client. Errors of the cluster are `ddp_operator.ports.ClusterError`."""

from ddp_operator.api.values.text import clean

from ddp_client.local.run.manifest import ManifestError
from ddp_client.text import duration
from ddp_client.views.job.diagnosis import Diagnosis

__all__ = [
    "ClientError",
    "FunctionError",
    "JobFailedError",
    "JobGoneError",
    "ManifestError",
    "WaitTimeoutError",
]


class ClientError(Exception):
    """Base class of the client's errors."""


class FunctionError(ClientError, ValueError):
    """The function cannot run on its own in a pod; says what to change."""


class JobFailedError(ClientError):
    """The job failed; `diagnosis` says why and what to do."""

    def __init__(self, name: str, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.sentence)
        self.name = name
        self.diagnosis = diagnosis


class JobGoneError(ClientError):
    """The job was deleted; another job may have its name now."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{clean(name)} no longer exists: it was deleted")
        self.name = name


class WaitTimeoutError(ClientError, TimeoutError):
    """The job did not end in time; it continues."""

    def __init__(self, name: str, seconds: float, state: str) -> None:
        super().__init__(
            f"{clean(name)} has not ended in {duration(seconds)}: it is {state} and continues; "
            "wait again, or call why()"
        )
        self.name = name
