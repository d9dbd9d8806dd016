"""What the operator knows of a job's launchers, between its requests to them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ddp_protocol.world import LEAD_SECONDS, LauncherStatus

from ddp_operator.job.pods.state import PodState


@dataclass(slots=True)
class KnownLaunchers:
    """State of a job's launchers and their pods."""

    uid: str
    told: dict[str, tuple[int, bool]] = field(default_factory=dict)
    unreached_since: dict[str, datetime] = field(default_factory=dict)
    status: LauncherStatus | None = None
    """Last status of the launcher of node rank 0, or None before the first one."""
    leader: str = ""
    """Name of the pod of node rank 0; empty while it does not run."""
    address: str = ""
    """Address of its launcher."""
    token_key: str = ""
    """Name of the key from which that pod's token is derived."""
    lead_seconds: int = LEAD_SECONDS
    """After how long without a poll its launcher may decide about failures."""
    silent: int = 0
    """Failed polls in a row."""
    has_answered: bool = False
    """A launcher of the job has ever answered."""
    silent_since: datetime | None = None
    """When the first call failed since a launcher of the job answered."""
    is_silent: bool = False
    """True once none has answered for so long that plans must know."""
    next_witness_at: float = 0.0
    """When another launcher may be asked, by the event loop's clock, because one is silent."""
    spec_hash: str = ""
    """Of the pods that are asked: those of another spec may have no launcher."""
    refused: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By pod name: the generation that its launcher refused last, and the led generation that it
    has instead."""
    polling: asyncio.Task[None] | None = None
    under_way: set[tuple[str, int, bool]] = field(default_factory=set)

    def forget_gone(self, pods: Sequence[PodState]) -> None:
        """Forget pods that are not among these any more."""
        if not (self.told or self.unreached_since):
            return
        names = {pod.key.name for pod in pods}
        for gone in self.told.keys() - names:
            del self.told[gone]
        for gone in self.unreached_since.keys() - names:
            del self.unreached_since[gone]
            self.refused.pop(gone, None)

    def stop_polling(self) -> None:
        """Stop the poll that is under way."""
        if self.polling is not None:
            self.polling.cancel()
            self.polling = None
