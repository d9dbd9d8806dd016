"""The requests that the operator sends to trainers, whoever sends them."""

from typing import Final, Protocol

from ddp_protocol.world import GroupAssignment, WorldAnswer

NOTHING_YET: Final = "HTTP status 503"


class Trainers(Protocol):
    """The trainers in pods, over HTTP; an address is `ip:port`. With a job's token, a request is
    signed but does not carry the token.

    Failures are part of the result: methods raise nothing, except `OutOfFilesError` where
    documented.
    """

    async def status(self, address: str) -> bytes | str:
        """GET /status: return the response's content, or a text that says why there is none.
        `NOTHING_YET` is a launcher's response while there is nothing to report.
        """

    async def dump_stacks(self, address: str, *, token: str) -> bool:
        """POST /dump-stacks, with the job's token. Return whether the trainer will write its stacks
        to the pod's log.
        """

    async def traces(self, address: str, *, token: str) -> bytes | str:
        """GET /traces, with the job's token: return the response's content, or a text that says why
        there is none. The launcher responds with its ranks' last collectives and stacks.
        """

    async def checkpoint(self, address: str, *, token: str) -> bool:
        """POST /checkpoint, with the job's token. Return whether the trainer will save at the next
        possible step.
        """

    async def put_world(
        self, address: str, group: GroupAssignment, *, wait_seconds: int, token: str
    ) -> WorldAnswer | None:
        """PUT /world, with the job's token. The launcher responds when processes of an earlier
        generation have ended, but at the latest after `wait_seconds`. Return None without a
        response. Raises `OutOfFilesError`.
        """

    async def poll_world(
        self, address: str, *, after: int, wait_seconds: int, lead_seconds: int, token: str
    ) -> bytes | str:
        """GET /world: return the response's content, or a text that says why there is none. The
        launcher responds once its number is beyond `after`, or after `wait_seconds`. It may decide
        about failures if no poll follows within `lead_seconds`. With too few connections, the
        request asks for a shorter wait, and names at least `LEAD_SECONDS`.

        Raises `OutOfFilesError`.
        """

    async def close(self) -> None:
        """Close the connections."""
