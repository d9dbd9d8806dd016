"""Requests about snapshots from one launcher to another.

The address of a pod may belong to a foreign pod by now. So answers are signed too: a foreign pod
can neither confirm a copy nor feed a rank.
"""

from __future__ import annotations

import hmac
import http.client
from collections.abc import Callable
from dataclasses import dataclass

from ddp_trainer.process_group.admission import (
    ANSWER_HEADER,
    Request,
    answer_signature,
    credentials,
)
from ddp_trainer.settings.environment import Placement

_SECONDS = 5.0
"""How long a launcher may be silent; it closes a request that takes longer, too."""


@dataclass(frozen=True)
class PeerResponse:
    """The answer of a launcher."""

    status: int
    body: bytes


class NoAnswerError(Exception):
    """A launcher cannot be reached, or its answer is not from a pod of this job."""


Call = Callable[[str, Request, int], PeerResponse]
"""Sends a request to a host; the answer has at most so many bytes. Raises NoAnswerError."""


def caller(placement: Placement) -> Call:
    """Return the function that sends requests from this pod."""

    def call(host: str, request: Request, most: int) -> PeerResponse:
        connection = http.client.HTTPConnection(host, placement.status_port, timeout=_SECONDS)
        try:
            headers = credentials(placement, request)
            connection.request(request.method, request.target, request.body, headers)
            response = connection.getresponse()
            body = response.read(most + 1)
            if len(body) > most:
                raise NoAnswerError(f"the answer has more than {most} bytes")
            expected = answer_signature(
                placement, headers.get("Authorization"), response.status, body
            )
            found = response.headers.get(ANSWER_HEADER, "")
            if not hmac.compare_digest(expected.encode(), found.encode()):
                raise NoAnswerError("the answer is not signed with this job's token")
            return PeerResponse(response.status, body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoAnswerError(str(error) or type(error).__name__) from error
        finally:
            connection.close()

    return call
