"""Leader election among replicas: reads and writes the Lease by the rules in `rules`."""

import asyncio
import logging
import platform
import time
import uuid
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, assert_never

from ddp_operator.kube.client import ApiClient
from ddp_operator.kube.election.rules import Candidate, LeaseRecord, Lost, Read, Timing, Wait, Write
from ddp_operator.kube.repeated_log import RepeatedLog
from ddp_operator.kube.resources import LEASES
from ddp_operator.ports import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    Key,
    Manifest,
    NotFoundError,
    NotLeaderError,
)

logger = logging.getLogger(__name__)

_RELEASED_DURATION_SECONDS: Final = 1
"""Duration in a released lease: a program that ignores the missing holder then waits only this
long."""


class LeaseLostError(Exception):
    """The lease was held and is lost. The message says why."""


def new_identity() -> str:
    """Return a unique name for this process that starts with the name of its pod."""
    return f"{platform.node()}_{uuid.uuid4().hex[:8]}"


def monotonic_clock() -> float:
    """Return seconds that never jump back. Where the system allows, they continue while a machine
    is suspended: a holder that wakes up must not think that it has just renewed.
    """
    boot_time: int | None = getattr(time, "CLOCK_BOOTTIME", None)  # Linux
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


class LeaderLease:
    """One replica's part in the election over one Lease.

    Run `run()` as a task; `held` is set once this replica leads. Call `check` right before
    everything that only the leader may do. `client` must not be shared: a renewal that waits behind
    a hundred other writes comes too late.
    """

    def __init__(
        self,
        client: ApiClient,
        lease: Key,
        *,
        identity: str,
        timing: Timing | None = None,
    ) -> None:
        self._client = client
        self._timing = timing or Timing()
        self._candidate = Candidate(identity, self._timing)
        self._manifest: Manifest = {}
        self._collection = LEASES.path(namespace=lease.namespace)
        self._path = LEASES.path(namespace=lease.namespace, name=lease.name)
        self._has_written = False
        self._log = RepeatedLog(logger, clock=monotonic_clock)
        self.key = lease
        self.held = asyncio.Event()

    def check(self) -> None:
        """Raise `NotLeaderError` unless this replica leads now."""
        if not self._candidate.may_act(monotonic_clock()):
            raise NotLeaderError(f"this replica does not hold the lease {self.key}")

    async def run(self) -> NoReturn:
        """Stand by until the lease is free, then hold it until cancelled.

        Raises `LeaseLostError` if the lease was held and is lost.
        """
        while True:
            now = monotonic_clock()
            step = self._candidate.next_step(now)
            match step:
                case Wait():
                    await asyncio.sleep(step.until - now)
                case Read():
                    await self._read(now)
                case Write():
                    await self._write(now)
                case Lost():
                    self.held.clear()
                    raise LeaseLostError(f"lost the lease {self.key}: {step.reason}")
                case _:
                    assert_never(step)

    async def release(self, *, timeout_seconds: float = 2.0) -> None:
        """Release the lease, so that a standby takes over at once.

        Call it only when `run` has ended and nothing that the leader began still runs. If it fails,
        a standby takes over when the lease expires.
        """
        identity = self._candidate.identity
        self._candidate = Candidate(identity, self._timing)
        self.held.clear()
        if not self._has_written:
            return
        try:
            async with asyncio.timeout(timeout_seconds):
                # Read the version again: the response to the last renewal may be lost.
                manifest = await self._request("GET", self._path, timeout_seconds)
                if _record(manifest, self._timing).holder != identity:
                    return
                await self._request(
                    "PUT", self._path, timeout_seconds, {**manifest, "spec": _released(manifest)}
                )
        except (ClusterError, TimeoutError) as error:
            logger.warning("cannot release the lease %s; it will expire: %s", self.key, error)
        else:
            logger.info("released the lease %s", self.key)

    async def _read(self, sent_at: float) -> None:
        try:
            manifest = await self._request("GET", self._path, self._patience(sent_at))
        except NotFoundError:
            self._candidate = self._candidate.read(None, at=monotonic_clock())
            return
        except ClusterError as error:
            self._unanswered(error, sent_at)
            return
        self._manifest = manifest
        record = _record(manifest, self._timing)
        self._candidate = self._candidate.read(record, at=monotonic_clock())
        if record.holder not in ("", self._candidate.identity):
            self._log.add(logging.INFO, f"standing by: {record.holder} holds the lease {self.key}")

    async def _write(self, sent_at: float) -> None:
        self._has_written = True
        try:
            if self._candidate.record is None:
                manifest = await self._request(
                    "POST", self._collection, self._patience(sent_at), self._new_manifest()
                )
            else:
                body = {**self._manifest, "spec": self._renewed_spec()}
                manifest = await self._request("PUT", self._path, self._patience(sent_at), body)
        except (AlreadyExistsError, ConflictError, NotFoundError):
            self._candidate = self._candidate.refused(at=monotonic_clock())
            return
        except ClusterError as error:
            self._unanswered(error, sent_at)
            return
        self._manifest = manifest
        self._candidate = self._candidate.wrote(_record(manifest, self._timing), sent_at=sent_at)
        if not self.held.is_set():
            logger.info("%s holds the lease %s", self._candidate.identity, self.key)
            self.held.set()

    def _patience(self, now: float) -> float:
        """Return how long to wait for a response: a holder must notice in time that it has lost the
        lease.
        """
        left = self._candidate.held_until - now
        return min(self._timing.request_timeout, left) if left > 0 else self._timing.request_timeout

    def _unanswered(self, error: ClusterError, sent_at: float) -> None:
        self._candidate = self._candidate.unanswered(sent_at=sent_at, at=monotonic_clock())
        self._log.add(logging.WARNING, f"cannot reach the lease {self.key}: {error.message}")

    async def _request(
        self, method: str, path: str, timeout_seconds: float, body: Manifest | None = None
    ) -> Manifest:
        answer: Manifest = await self._client.request(
            method, path, body=body, timeout_seconds=timeout_seconds, max_attempts=1
        )
        return answer

    def _new_manifest(self) -> Manifest:
        self._manifest = {}
        return {
            "apiVersion": f"{LEASES.group}/{LEASES.version}",
            "kind": "Lease",
            "metadata": {"namespace": self.key.namespace, "name": self.key.name},
            "spec": self._renewed_spec(),
        }

    def _renewed_spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = dict(self._manifest.get("spec") or {})
        now = _timestamp()
        if spec.get("holderIdentity") != self._candidate.identity:
            spec["holderIdentity"] = self._candidate.identity
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        spec["leaseDurationSeconds"] = self._timing.lease_duration
        spec["renewTime"] = now
        return spec


def _record(manifest: Manifest, timing: Timing) -> LeaseRecord:
    spec: Manifest = manifest.get("spec") or {}
    return LeaseRecord(
        holder=spec.get("holderIdentity") or "",
        duration=float(spec.get("leaseDurationSeconds") or timing.lease_duration),
        version=manifest["metadata"]["resourceVersion"],
    )


def _released(manifest: Manifest) -> dict[str, Any]:
    spec: dict[str, Any] = dict(manifest.get("spec") or {})
    spec.pop("holderIdentity", None)
    return {**spec, "leaseDurationSeconds": _RELEASED_DURATION_SECONDS, "renewTime": _timestamp()}


def _timestamp() -> str:
    """Return the time, for people to read. No decision depends on it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
