"""Who may talk to a job's pods: who has its token, which no other job can compute; the operator."""

import hmac
from dataclasses import dataclass, field

from ddp_operator.ports import SentToken


@dataclass(frozen=True, kw_only=True)
class Access:
    """What the operator alone knows, what it makes of that for each job, and where it is."""

    secret: bytes = field(repr=False)
    """The same in all replicas of the operator and in all its lives, or pods of one job would not
    know each other.
    """

    operator_namespace: str | None = None
    """Of the operator's pod; None where it runs in none."""

    def token_of(self, job_uid: str) -> str:
        """Return the token of all pods and attempts of a job: 64 hexadecimal digits."""
        return hmac.digest(self.secret, job_uid.encode(), "sha256").hex()

    def token_for(self, job_uid: str, *, signs: bool) -> str:
        """Return the same, to sign requests to a pod with; or to send, if its launcher knows no
        signatures.
        """
        token = self.token_of(job_uid)
        return token if signs else SentToken(token)
