"""Tokens by which a job's pods and the operator authenticate each other's requests."""

import base64
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ddp_operator.api.constants import MANAGED_BY
from ddp_operator.job.pods.access import SECRET_PREFIX, SecretKey
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import SentToken, TokenSource

_NAME_DIGITS: Final = 10
_KEY_DIGITS: Final = 2
"""A Secret has 256 tokens: jobs of a namespace rarely share one, and it stays small (24 KB)."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """The operator's own secret, from which all tokens are derived, and its namespace."""

    secret: bytes = field(repr=False)
    """The same for all replicas and restarts of the operator, or pods of one job would
    not match."""

    operator_namespace: str | None = None
    """Namespace of the operator's pod; None where it does not run in one."""

    has_secrets: bool = False
    """True if the operator may create Secrets. If not, pods have their tokens in plain text."""

    def token_of(self, namespace: str, job_uid: str, source: TokenSource) -> str:
        """Return the token of a job's pods from this source: 64 hexadecimal digits."""
        if source is TokenSource.SECRET:
            return self._token(namespace, _key(job_uid))
        token = self._digest(job_uid)
        return SentToken(token) if source is TokenSource.SENT else token

    def source_for(self, job_uid: str, attempt: int, pods: Iterable[PodState]) -> TokenSource:
        """Return the source of tokens for new pods of an attempt.

        All pods of an attempt need the same token, even if another release, or an operator with
        other rights, created the existing ones.
        """
        sources = {
            pod.token_source
            for pod in pods
            if pod.owner_uid == job_uid and pod.identity.attempt == attempt
        }
        has_secret = TokenSource.SECRET in sources if sources else self.has_secrets
        return TokenSource.SECRET if has_secret else TokenSource.VARIABLE

    def variable(self, namespace: str, job_uid: str, source: TokenSource) -> str | SecretKey:
        """Return the value of a new pod's variable: the token, or the Secret that has it."""
        if source is TokenSource.SECRET:
            return SecretKey(self.secret_name(namespace), _key(job_uid))
        return self.token_of(namespace, job_uid, TokenSource.VARIABLE)

    def secret_name(self, namespace: str) -> str:
        """Return the name of a namespace's Secret.

        It depends on the operator's own secret. So a Secret of that name comes from the same
        operator, or from somebody who may change the namespace's pods anyway.
        """
        return f"{SECRET_PREFIX}{self._digest(f'{namespace}/name')[:_NAME_DIGITS]}"

    def secret_manifest(self, namespace: str) -> dict[str, Any]:
        """Return the Secret with the tokens of a namespace's pods."""
        keys = (f"{number:0{_KEY_DIGITS}x}" for number in range(16**_KEY_DIGITS))
        tokens = {key: self._token(namespace, key).encode() for key in keys}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "namespace": namespace,
                "name": self.secret_name(namespace),
                "labels": MANAGED_BY,
            },
            "type": "Opaque",
            "immutable": True,
            "data": {key: base64.b64encode(token).decode() for key, token in tokens.items()},
        }

    def _token(self, namespace: str, key: str) -> str:
        return self._digest(f"{namespace}/{key}")

    def _digest(self, text: str) -> str:
        return hmac.digest(self.secret, text.encode(), "sha256").hex()


def _key(job_uid: str) -> str:
    """Return the key of a job's token in the Secret."""
    return hashlib.sha256(job_uid.encode()).hexdigest()[:_KEY_DIGITS]
