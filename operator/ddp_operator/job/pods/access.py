"""The Secret from which pods get their job's token: many users may read pods but no Secrets."""

from dataclasses import dataclass
from typing import Final

from ddp_operator.job.pods.state import CONFIG_ERROR, PodState

SECRET_PREFIX: Final = "ddp-operator-tokens-"
"""Prefix of the names of these Secrets."""


@dataclass(frozen=True)
class SecretKey:
    """One entry of a Secret."""

    secret: str
    """Name of the Secret in the pod's namespace."""
    key: str


def lacks_token(pod: PodState, secret: str = SECRET_PREFIX) -> bool:
    """Return whether a pod cannot start because the Secret with its token is missing."""
    return pod.waiting == CONFIG_ERROR and f'secret "{secret}' in pod.waiting_message
