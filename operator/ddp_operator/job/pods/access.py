"""The token of a job's pods. Many users may read pods but no Secrets, so a Secret has it."""

from dataclasses import dataclass, field
from typing import Final

from ddp_operator.api.constants import TOKEN_SECRETS
from ddp_operator.job.pods.state import CONFIG_ERROR, PodState

SECRET_PREFIX: Final = f"{TOKEN_SECRETS}-"
"""Prefix of the names of these Secrets."""
SECRET_ENTRY: Final = "token"
"""Name of the only entry of such a Secret."""


@dataclass(frozen=True, kw_only=True)
class PodToken:
    """The token that new pods of a job receive, in a Secret or in plain text."""

    key: str
    """Name of the operator's key from which it is derived."""
    secret: str = ""
    """Name of the Secret in the pod's namespace."""
    plain: str = field(default="", repr=False)


def lacks_token(pod: PodState) -> bool:
    """Return whether a pod cannot start because the Secret with its token is missing."""
    return pod.waiting == CONFIG_ERROR and f'secret "{SECRET_PREFIX}' in pod.waiting_message
