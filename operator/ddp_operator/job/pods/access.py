"""Who may talk to a job's pods: who has its token, which no other job can compute."""

import hmac
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Access:
    """What the operator alone knows, and makes of it for each job."""

    secret: bytes = field(repr=False)
    """The same in all replicas of the operator and in all its lives, or pods of one job would not
    know each other.
    """

    def token_of(self, job_uid: str) -> str:
        """Return the token of all pods and attempts of a job: 64 hexadecimal digits."""
        return hmac.digest(self.secret, job_uid.encode(), "sha256").hex()
