"""Carries out a schedule on the pods that exist at that moment."""

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from ddp_operator.api.constants import LABEL_JOB_NAME

from tests.chaos.journal import Journal
from tests.chaos.schedule import Kind
from tests.cluster import ClusterError
from tests.cluster.node import Node
from tests.e2e.environment import OPERATOR_NAMESPACE, operator_pods
from tests.e2e.jobs import Job, NothingTrainsError, kill_rank
from tests.e2e.kubectl import Kubectl, KubectlError

OUTAGE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Chaos:
    """Disturbs jobs of one namespace, the operator, and the cluster below them."""

    node: Node
    kubectl: Kubectl
    random: Random
    journal: Journal

    def disturb(self, kind: Kind, pod: Any = None) -> None:
        """Do one thing; what cannot be done just now is noted.

        `pod`: to disturb; None: any.
        """
        try:
            if pod is None:
                self._disturb(kind)
            else:
                self._hit(kind, pod)
        except (
            KubectlError,
            ClusterError,
            NothingTrainsError,
            subprocess.TimeoutExpired,
        ) as refused:
            # The target has not begun yet, or has ended at this very moment.
            self.journal.note(f"could not {kind.value}: {refused}")

    def _disturb(self, kind: Kind) -> None:
        match kind:
            case Kind.KILL_OPERATOR:
                self._hit(kind, self._choose(_running(operator_pods(self.kubectl))))
            case Kind.DELETE_OPERATOR:
                self._delete_operator()
            case Kind.KILL_API_SERVER:
                self.node.stop_apiserver()
                self.node.start_apiserver()
                self.journal.did(kind)
            case Kind.OUTAGE:
                self._outage()
            case Kind.KILL_RANK:
                self._kill_rank()
            case _:
                self._hit(kind, self._choose(self._pods()))

    def _pods(self) -> list[Any]:
        return _running(self.kubectl.items("pods", "--selector", LABEL_JOB_NAME))

    def _hit(self, kind: Kind, pod: Any) -> None:
        job, name = _job_of(pod), pod["metadata"]["name"]
        match kind:
            case Kind.DELETE_POD:
                self.kubectl.run("delete", "pod", name, "--wait=false")
            case Kind.FORCE_DELETE_POD:
                self.kubectl.run("delete", "pod", name, "--force", "--grace-period=0")
            case Kind.KILL_RANK:
                kill_rank(Job(self.kubectl, job), name)
            case _:
                self.node.kill_container(pod)
        self.journal.did(kind, job=job, pod=name)

    def _kill_rank(self) -> None:
        pods = self._pods()
        for pod in self.random.sample(pods, len(pods)):
            try:
                self._hit(Kind.KILL_RANK, pod)
            except (NothingTrainsError, KubectlError) as refused:
                self.journal.note(f"not in {pod['metadata']['name']}: {refused}")
            else:
                return

    def _delete_operator(self) -> None:
        name = self._choose(operator_pods(self.kubectl))["metadata"]["name"]
        self.kubectl.within(OPERATOR_NAMESPACE).run("delete", "pod", name, "--wait=false")
        self.journal.did(Kind.DELETE_OPERATOR, pod=name)

    def _outage(self) -> None:
        pods = self._pods()
        victims = [self._choose(pods), self._choose(pods)]
        self.node.stop_apiserver()
        self.journal.did(Kind.OUTAGE)
        try:
            for pod in victims:
                time.sleep(OUTAGE_SECONDS / 3)
                try:
                    self._hit(Kind.KILL_CONTAINER, pod)
                except ClusterError as refused:
                    self.journal.note(f"could not kill {pod['metadata']['name']}: {refused}")
            time.sleep(OUTAGE_SECONDS / 3)
        finally:
            self.node.start_apiserver()
            self.journal.note("the API server is back")

    def _choose(self, pods: Sequence[Any]) -> Any:
        if not pods:
            raise ClusterError("no pod runs that could be disturbed")
        return self.random.choice(pods)


def _running(pods: Sequence[Any]) -> list[Any]:
    """Return the pods with a running container that nobody has deleted yet."""
    return [
        pod
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and any("running" in s["state"] for s in pod["status"].get("containerStatuses", ()))
    ]


def _job_of(pod: Any) -> str:
    name: str = pod["metadata"]["labels"].get(LABEL_JOB_NAME, "")
    return name
