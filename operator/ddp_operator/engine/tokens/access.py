"""Tokens by which a job's pods and the operator authenticate each other's requests."""

import base64
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ddp_operator.api.constants import MANAGED_BY
from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods.access import SECRET_ENTRY, SECRET_PREFIX, PodToken
from ddp_operator.job.pods.manifests import owner_reference
from ddp_operator.job.pods.state import PodState

_NAME_DIGITS: Final = 20


@dataclass(frozen=True, kw_only=True)
class Access:
    """The operator's own keys, from which all tokens are derived, and its namespace."""

    keys: Mapping[str, bytes] = field(repr=False)
    """By name, the last name being that of the newest key. They are the same for all replicas and
    restarts of the operator, or pods of one job would not match."""

    operator_namespace: str | None = None
    """Namespace of the operator's pod; None where it does not run in one."""

    has_secrets: bool = False
    """True if the operator may create Secrets. If not, pods have their tokens in plain text."""

    def token_of(self, job_uid: str, key: str) -> str:
        """Return the token of a job's pods with this key: 64 hexadecimal digits.

        The newest key replaces a key that was removed. Pods with the removed one refuse its tokens.
        """
        return self._digest(key, job_uid)

    def key_for(self, job_uid: str, attempt: int, pods: Iterable[PodState]) -> str:
        """Return the name of the key for new pods of an attempt: the newest, unless the attempt has
        pods already. All of them need the same token.
        """
        keys = {
            pod.token_key
            for pod in pods
            if pod.owner_uid == job_uid and pod.identity.attempt == attempt
        }
        return max(keys & self.keys.keys() or self.keys)

    def pod_token(self, job_uid: str, key: str) -> PodToken:
        """Return what new pods receive."""
        if self.has_secrets:
            return PodToken(key=key, secret=self.secret_name(job_uid, key))
        return PodToken(key=key, plain=self.token_of(job_uid, key))

    def secret_name(self, job_uid: str, key: str) -> str:
        """Return the name of a job's Secret.

        It depends on the operator's key, so nobody can create a Secret of that name before the
        operator does.
        """
        return f"{SECRET_PREFIX}{self._digest(key, f'{job_uid}/name')[:_NAME_DIGITS]}"

    def secret_manifest(self, job: DDPJob, key: str) -> dict[str, Any]:
        """Return the Secret with the token of a job's pods. It is deleted with the job."""
        token = self.token_of(job.uid, key).encode()
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "namespace": job.namespace,
                "name": self.secret_name(job.uid, key),
                "labels": MANAGED_BY,
                "ownerReferences": [owner_reference(job.name, job.uid)],
            },
            "type": "Opaque",
            "immutable": True,
            "data": {SECRET_ENTRY: base64.b64encode(token).decode()},
        }

    def _digest(self, key: str, text: str) -> str:
        secret = self.keys.get(key) or self.keys[max(self.keys)]
        return hmac.digest(secret, text.encode(), "sha256").hex()
