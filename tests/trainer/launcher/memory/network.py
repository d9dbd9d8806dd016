"""Launchers of one job in this process: real files and real decisions, requests without sockets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

from ddp_trainer.launcher.memory.copying import Copy
from ddp_trainer.launcher.memory.group import GenerationMemory
from ddp_trainer.launcher.memory.pod_memory import PodMemory
from ddp_trainer.launcher.memory.protocol.messages import RankReport
from ddp_trainer.launcher.memory.protocol.peers import NoAnswerError, PeerResponse
from ddp_trainer.launcher.memory.protocol.requests import MemoryRequests
from ddp_trainer.launcher.memory.restoring import Restored, Restoring
from ddp_trainer.launcher.memory.store import Store
from ddp_trainer.launcher.status_server.bounded_http import BoundedHandler
from ddp_trainer.launcher.world.rank_environment import RankEnvironment
from ddp_trainer.launcher.world.state import GroupState
from ddp_trainer.memory.volume import Key, SnapshotName
from ddp_trainer.process_group.admission import Request

from tests.trainer.launcher.memory.files import content_of, save, snapshot, volume_at
from tests.trainer.support.pods import contract


@dataclass
class FakeRequest:
    """A request as its handler receives it."""

    command: str
    path: str
    body: bytes
    client_address: tuple[str, int] = ("10.0.0.9", 1)
    headers: Message = field(default_factory=Message)
    answered: PeerResponse | None = None

    def content(self, *, most: int) -> bytes:
        assert len(self.body) <= most
        return self.body

    def answer(
        self, code: HTTPStatus, content: bytes, content_type: str, headers: Mapping[str, str]
    ) -> None:
        assert content_type
        assert headers
        assert self.answered is None
        self.answered = PeerResponse(code, content)


class SimulatedPod:
    """A launcher and its ranks."""

    def __init__(self, job: SimulatedJob, host: str, folder: Path) -> None:
        self.job = job
        self.host = host
        self.volume = volume_at(folder, size=job.size, copies=job.copies)
        environment = RankEnvironment(
            contract(nodes=job.nodes, local_world_size=job.local_world_size)
        )
        self.world = GroupState(replace(environment.initial, generation=0, node_rank=None))
        self.memory = PodMemory(
            self.volume, Store(self.volume), self.world, environment, call=job.call
        )
        self.requests = MemoryRequests(self.memory, environment.placement)

    @property
    def group(self) -> GenerationMemory:
        assert self.memory.group is not None
        return self.memory.group

    @property
    def ranks(self) -> range:
        return self.group.pod.ranks

    def save(self, local_rank: int, step: int, *, lose_datagram: bool = False) -> bool:
        """Save a step as a rank does."""
        name = snapshot(
            step,
            self.ranks[local_rank],
            generation=self.job.generation,
            world_size=self.job.world_size,
            replicated=self.job.replicated,
        )
        saved = save(self.volume, local_rank, name)
        if not lose_datagram:
            report = RankReport(
                rank=name.rank,
                generation=name.key.generation,
                step=step,
                saved=saved,
                replicated=name.replicated,
            )
            self.memory.note(report)
        return saved

    def turn(self) -> None:
        """Do what is due now, as the launcher's thread does."""
        for _ in range(4):
            if self.memory.turn(math.inf) != math.inf:
                return

    def wanted(self) -> list[Copy]:
        copying = self.memory.copying
        return [copy for copy in copying._wanted if not copying.is_done(copy)]

    def restored(self) -> Restored:
        found = self.group.restoring.result(wait_seconds=0)
        assert found is not None
        return found


class SimulatedJob:
    """Pods with requests that arrive or are lost."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 2,
        local_world_size: int = 1,
        copies: int = 1,
        replicated: bool = False,
        size: int = 1 << 20,
    ) -> None:
        """`size`: of each pod's volume; a snapshot has 1000 bytes."""
        self.folder = folder
        self.size = size
        self.nodes = nodes
        self.local_world_size = local_world_size
        self.copies = copies
        self.replicated = replicated
        self.copy_order = ""
        self.generation = 0
        self.created = 0
        self.loses: Callable[[], str] = lambda: ""
        """Returns whether the next `request` is lost, or its `answer`."""
        self.pods = [self.create() for _ in range(nodes)]
        """By node rank."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.local_world_size

    @property
    def leader(self) -> PodMemory:
        return self.pods[0].memory

    @property
    def savers(self) -> range:
        """The local ranks that save."""
        return range(1 if self.replicated else self.local_world_size)

    def create(self) -> SimulatedPod:
        host = f"job-{self.created}"
        self.created += 1
        return SimulatedPod(self, host, self.folder / host)

    def call(self, host: str, request: Request, most: int) -> PeerResponse:
        """Answer a request as `peers.caller` does."""
        found = [pod for pod in self.pods if pod.host == host]
        lost = self.loses()
        if not found or lost == "request":
            raise NoAnswerError("unreachable")
        handled = FakeRequest(request.method, request.target, request.body)
        found[0].requests.handle(cast(BoundedHandler, handled))
        assert handled.answered is not None
        if lost:
            raise NoAnswerError("timed out")
        assert len(handled.answered.body) <= most
        return handled.answered

    def restart(self) -> None:
        """Begin the next generation with the present pods, in their order."""
        self.generation += 1
        self.nodes = len(self.pods)
        for node_rank, pod in enumerate(self.pods):
            accepted = pod.world.accept(
                replace(
                    pod.world.assignment,
                    generation=self.generation,
                    node_rank=node_rank,
                    nodes=self.nodes,
                    master_addr=self.pods[0].host,
                    members=",".join(each.host.rpartition("-")[2] for each in self.pods),
                    copy_order="" if node_rank else self.copy_order,
                    start=True,
                )
            )
            assert accepted
        for pod in self.pods:  # node rank 0 decides first
            pod.memory.begin(pod.world.assignment)
            pod.group.restoring.run()

    def reorder(self, copy_order: str) -> None:
        """Send node rank 0 another order for copies while the group runs."""
        self.copy_order = copy_order
        world = self.pods[0].world
        assert world.accept(replace(world.assignment, copy_order=copy_order))

    def settle(self) -> None:
        """Let all requests and copies arrive."""
        for _ in range(4):
            for pod in self.pods:
                pod.turn()
                for copy in pod.wanted():
                    pod.memory.copying.attempt(copy)

    def step(self, step: int) -> None:
        """Let all ranks save a step, and all requests arrive."""
        for pod in self.pods:
            for local_rank in self.savers:
                pod.save(local_rank, step)
        self.settle()

    def fewest_copies(self, key: Key) -> int:
        """Return how many pods besides one have the snapshot of a step that the fewest have."""
        names = [
            {file.name.rank for file in pod.memory.store.files() if file.name.key == key}
            for pod in self.pods
        ]
        ranks = set().union(*names)
        return min(sum(rank in of_pod for of_pod in names) for rank in ranks) - 1

    def complete(self) -> int | None:
        leading = self.pods[0].group.leading
        assert leading is not None
        return leading.completeness.complete

    def check_restored(self) -> int | None:
        """Check that all ranks resume from one step; return it."""
        results = [pod.restored() for pod in self.pods]
        assert not any(result.failed for result in results), results
        [key] = {result.key for result in results}
        if key is None:
            assert all(result.reason for result in results)
            return None
        for pod, result in zip(self.pods, results, strict=True):
            assert set(result.paths) == set(pod.ranks)
            for rank, path in result.paths.items():
                name = SnapshotName.parse(path.name)
                assert name is not None
                assert name.key == key
                assert name.replicated == self.replicated
                assert path.read_bytes() == content_of(name)
                if not name.replicated:
                    assert (name.rank, name.world_size) == (rank, self.world_size)
        return key.step


def without_threads(monkeypatch: Any) -> None:
    """Let a test say when a restore runs."""
    monkeypatch.setattr(Restoring, "start", lambda _: None)
