"""What can go wrong, beside what the cluster itself refuses (`ddp_operator.ports.ClusterError`)."""

from ddp_operator.local.run.manifest import ManifestError
from ddp_operator.views.job.diagnosis import Diagnosis
from ddp_operator.views.text import clean, duration

__all__ = [
    "ClientError",
    "FunctionError",
    "JobFailedError",
    "JobGoneError",
    "ManifestError",
    "WaitTimeoutError",
]


class ClientError(Exception):
    """Anything that this client has to say."""


class FunctionError(ClientError, ValueError):
    """A function that cannot run anywhere else as it is; says what to change."""


class JobFailedError(ClientError):
    """The job has ended, and not well: `diagnosis` says why, and what to do."""

    def __init__(self, name: str, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.sentence)
        self.name = name
        self.diagnosis = diagnosis


class JobGoneError(ClientError):
    """The job was deleted, or another one has taken its name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{clean(name)} is gone: somebody has deleted it")
        self.name = name


class WaitTimeoutError(ClientError, TimeoutError):
    """The time is over, and the job has not ended; it goes on."""

    def __init__(self, name: str, seconds: float, state: str) -> None:
        super().__init__(
            f"{clean(name)} has not ended in {duration(seconds)}: it is {state} and goes on; wait "
            "again, or ask why()"
        )
        self.name = name
