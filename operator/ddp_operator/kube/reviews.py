"""Asks the API server whether the bearer of a token may read something that the operator serves.

It asks who the bearer is (TokenReview), and whether they are allowed (SubjectAccessReview). Anybody
who reaches the operator can send tokens. So verdicts are kept for a moment, and the rate of reviews
is limited.
"""

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, Final

from ddp_operator.kube.client import ApiClient
from ddp_operator.kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from ddp_operator.ports import Manifest, UnavailableError

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""Form of a bearer token (RFC 6750, section 2.1)."""

_ALLOWED_SECONDS: Final = 60.0
"""How long a revoked token still counts. controller-runtime's metrics server, too, reviews a token
once a minute."""
_REFUSED_SECONDS: Final = 10.0
_KEPT: Final = 256
"""Kept verdicts of each kind. Positive and negative ones are separate, so that strangers cannot
push out an allowed client."""

_SLOTS: Final = 2
_SLOT_SECONDS: Final = 0.1
"""A slot stays taken for this long after its use: at most twenty tokens a second are reviewed."""
_WAITING_LIMIT: Final = 20
_SECONDS: Final = 5.0
"""Deadline of a verdict; Prometheus waits ten seconds by default."""


class TokenStatus(Enum):
    """The API server's verdict on a token."""

    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"
    """The bearer is known but not allowed."""
    UNKNOWN = "unknown"
    """The token is not valid, or no longer."""


class BusyError(Exception):
    """Too many tokens wait for a review; try again later."""


class AccessReviews:
    """Asks whether tokens' bearers may `get` the path `path`.

    `client` should not be shared: neither reviews nor other writes should wait for each other.
    """

    def __init__(
        self, client: ApiClient, path: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._path = path
        self._slots = asyncio.Semaphore(_SLOTS)
        self._waiting = 0
        self._allowed = _Kept(_ALLOWED_SECONDS, clock)
        self._refused = _Kept(_REFUSED_SECONDS, clock)

    async def verdict(self, token: str) -> TokenStatus:
        """Return the API server's verdict on a token, from now or a moment ago.

        Raises:
            BusyError: too many other tokens wait.
            ClusterError: the API server did not answer, or not in time.
        """
        if not _TOKEN.fullmatch(token):
            return TokenStatus.UNKNOWN
        key = hashlib.sha256(token.encode()).digest()
        if known := self._known(key):
            return known
        if self._waiting >= _WAITING_LIMIT:
            raise BusyError
        self._waiting += 1
        try:
            async with asyncio.timeout(_SECONDS), self._slot():
                # The same token may have been reviewed while this one waited.
                return self._known(key) or await self._reviewed(key, token)
        except TimeoutError:
            raise UnavailableError(f"no review of a token within {_SECONDS:g} s") from None
        finally:
            self._waiting -= 1

    def _known(self, key: bytes) -> TokenStatus | None:
        return self._allowed.get(key) or self._refused.get(key)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        await self._slots.acquire()
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(_SLOT_SECONDS, self._slots.release)

    async def _reviewed(self, key: bytes, token: str) -> TokenStatus:
        verdict = await self._ask(token)
        kept = self._allowed if verdict is TokenStatus.ALLOWED else self._refused
        kept.put(key, verdict)
        return verdict

    async def _ask(self, token: str) -> TokenStatus:
        body: Manifest = {
            "apiVersion": f"{TOKEN_REVIEWS.group}/{TOKEN_REVIEWS.version}",
            "kind": "TokenReview",
            "spec": {"token": token},
        }
        answer = await self._client.request("POST", TOKEN_REVIEWS.path(), body=body)
        if not answer["status"].get("authenticated"):
            return TokenStatus.UNKNOWN
        user: dict[str, Any] = answer["status"]["user"]
        body = {
            "apiVersion": f"{SUBJECT_ACCESS_REVIEWS.group}/{SUBJECT_ACCESS_REVIEWS.version}",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user.get("username", ""),
                "uid": user.get("uid", ""),
                "groups": user.get("groups") or [],
                "extra": user.get("extra") or {},
                "nonResourceAttributes": {"path": self._path, "verb": "get"},
            },
        }
        answer = await self._client.request("POST", SUBJECT_ACCESS_REVIEWS.path(), body=body)
        return TokenStatus.ALLOWED if answer["status"].get("allowed") else TokenStatus.FORBIDDEN


class _Kept:
    """The latest verdicts, each for a while. Tokens are stored only as digests."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._verdicts: OrderedDict[bytes, tuple[TokenStatus, float]] = OrderedDict()

    def get(self, key: bytes) -> TokenStatus | None:
        verdict, until = self._verdicts.get(key, (None, 0.0))
        return verdict if self._clock() < until else None

    def put(self, key: bytes, verdict: TokenStatus) -> None:
        self._verdicts[key] = (verdict, self._clock() + self._seconds)
        self._verdicts.move_to_end(key)
        if len(self._verdicts) > _KEPT:
            self._verdicts.popitem(last=False)
