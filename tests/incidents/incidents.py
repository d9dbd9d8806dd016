"""The incidents: what is done to a job, and what is due."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final

from tests.cluster import ClusterError
from tests.cluster.preparation import images
from tests.cluster.second_node import second, second_node
from tests.e2e.environment import OPERATOR_NAMESPACE, operator_leader
from tests.e2e.jobs import TRAINER_IMAGE, Job, digits_job, force_delete
from tests.e2e.queues import Queue, queued
from tests.e2e.test_queues import leaves_no_pod
from tests.incidents import faults
from tests.incidents.poison import POISONED, full_nodes, poisoned_node
from tests.incidents.public import PUBLIC
from tests.incidents.scene import Incident, Scene
from tests.incidents.verdict import Expected

HANG: Final = 20
"""Seconds without a step after which a job hangs."""
OUTAGE_SECONDS: Final = 60.0
STALL_SECONDS: Final = 30.0
FULL_SECONDS: Final = 10.0
_TRAINER: Final = f"docker.io/library/{TRAINER_IMAGE}"
_SEAT: Final = "example.com/seat"
"""Each pod takes one of this resource: it decides which node a pod gets."""
_REMOVABLE: Final = "docker.io/library/ddp-trainer:removable"


def _stop_loader(scene: Scene) -> None:
    scene.order("wedge", 1)


def _freeze_rank(scene: Scene) -> None:
    faults.signal_rank(scene.pod(1), signal.SIGSTOP)


def _lose_host_of_rank_0(scene: Scene) -> None:
    """Its packets are lost first, and then the API server drops the pod with its node."""
    pod = scene.pod(0)
    faults.Link(scene.victim.node, pod).pull()
    force_delete(scene.job, pod["metadata"]["name"])


def _node_comes_back(scene: Scene) -> None:
    """The kubelet cannot end the old pod: the process that would do so for it does not run."""
    pod = scene.pod(1)
    link, shim = faults.Link(scene.victim.node, pod), faults.shim(pod)
    os.kill(shim, signal.SIGSTOP)
    try:
        link.pull()
        force_delete(scene.job, pod["metadata"]["name"])
        scene.pod(1)
        scene.wait_for_steps()
        link.plug()
        scene.wait_for_steps(30)
    finally:
        os.kill(shim, signal.SIGCONT)


@contextmanager
def _own_disk(scene: Scene) -> Iterator[None]:
    """Give the checkpoints a file system of their own, which can hang and fill."""
    node, folder = scene.victim.node, scene.checkpoints
    image = folder.with_suffix(".ext4")
    with image.open("wb") as file:
        file.truncate(64 << 20)
    node.run("mkfs.ext4", "-q", "-F", image)
    node.run("mount", "-o", "loop", image, folder)
    node.run("chmod", "1777", folder)
    try:
        yield
    finally:
        scene.remove()
        node.run("umount", folder)


def _hang_disk(scene: Scene) -> None:
    node = scene.victim.node
    node.run("fsfreeze", "--freeze", scene.checkpoints)
    try:
        time.sleep(STALL_SECONDS)
    finally:
        node.run("fsfreeze", "--unfreeze", scene.checkpoints)


def _fill_disk(scene: Scene) -> None:
    filler, rank_0 = scene.checkpoints / "filler", scene.pod(0)["metadata"]["name"]
    with suppress(ClusterError):  # the disk is full then
        scene.victim.node.run("dd", "if=/dev/zero", f"of={filler}", "bs=64k")
    scene.job.log_with(rank_0, "No space left on device")
    time.sleep(FULL_SECONDS)
    scene.victim.node.run("rm", filler)


def _lose_control_plane(scene: Scene) -> None:
    pod, node = scene.pod(1), scene.victim.node
    node.stop_control_plane()
    try:
        time.sleep(OUTAGE_SECONDS / 3)
        faults.signal_rank(pod, signal.SIGKILL)
        time.sleep(OUTAGE_SECONDS * 2 / 3)
    finally:
        node.start_control_plane()


@contextmanager
def _image_of_its_own(scene: Scene) -> Iterator[None]:
    node = scene.victim.node
    node.tag_image(_TRAINER, as_name=_REMOVABLE)
    try:
        yield
    finally:
        with suppress(ClusterError):
            node.remove_image(_REMOVABLE)


def _lose_registry(scene: Scene) -> None:
    """No registry serves the image: once it is removed from the node, it cannot be pulled."""
    node, pod = scene.victim.node, scene.pod(1)
    node.remove_image(_REMOVABLE)
    force_delete(scene.job, pod["metadata"]["name"])
    time.sleep(OUTAGE_SECONDS)
    node.tag_image(_TRAINER, as_name=_REMOVABLE)


def _evict_pods(scene: Scene) -> None:
    """Evict two of three pods at the same time, three times."""
    for _ in range(3):
        for pod in [scene.pod(1), scene.pod(2)]:
            metadata = pod["metadata"]
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/eviction"
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": metadata["name"]},
            }
            scene.victim.node.client.request("POST", path, body)
        scene.wait_for_steps(15)


def _slow_down(scene: Scene) -> None:
    """Give one pod's rank three percent of a core until the status names it."""
    with faults.throttled(scene.pod(1), percent=3):
        scene.wait_until_rank_is_named_slow(1)


@contextmanager
def _two_nodes(scene: Scene) -> Iterator[None]:
    """Run two real nodes. The second one has no seat yet."""
    first = scene.victim.node
    with full_nodes(first), second_node(first) as machine:
        images.load(images.find(images.TRAINER), machine)
        first.set_capacity(_SEAT, scene.incident.replicas)
        try:
            yield
        finally:
            scene.remove()


def _slow_down_for_good(scene: Scene) -> None:
    """Slow one pod's rank down until the pod is gone, with a spare on the other node."""
    first, other = scene.victim.node, second(scene.victim.node)
    other.set_capacity(_SEAT, 2)
    scene.wait(lambda: scene.job.status().ready.endswith("+1"), what="the spare")
    slow, spare = scene.pod(1), scene.pod(2)
    assert [pod["spec"]["nodeName"] for pod in (slow, spare)] == [first.node_name, other.node_name]
    with faults.throttled(slow, percent=3):
        scene.wait_until_gone(slow)
    scene.wait_for_steps(10)
    assert scene.steps()[1][-1].pod == spare["metadata"]["name"]
    assert scene.job.status().excluded_nodes == (first.node_name,)
    # The next spare has the slow pod's slot. There is a seat for it on both nodes.
    assert scene.pod(1)["spec"]["nodeName"] == other.node_name


def _poison(scene: Scene) -> AbstractContextManager[None]:
    return poisoned_node(scene.victim.node)


def _is_avoided(scene: Scene) -> None:
    """The node is poisoned before the job starts; nothing else is done."""
    assert scene.job.status().excluded_nodes == (POISONED,)


@contextmanager
def _queue(scene: Scene) -> Iterator[None]:
    Queue.made(scene.kubectl, chips=2)
    yield


def _finish_in_queue(scene: Scene) -> None:
    """Another job waits for the quota; the operator dies as soon as the first one has ended."""
    job, environment = scene.job, scene.victim.environment
    scene.kubectl.apply(queued(digits_job("other", "--epochs=1")))
    other = Job(scene.kubectl, "other")
    Queue(scene.kubectl).until_queued(other)
    job.wait_until("Succeeded")
    leader = operator_leader(environment.kubectl)
    operator = environment.kubectl.within(OPERATOR_NAMESPACE)
    operator.run("delete", "pod", "--force", "--grace-period=0", leader)
    other.wait_until("Succeeded")
    leaves_no_pod(job)


INCIDENTS: Final = (
    Incident(
        name="wedge",
        what="a silent wedge",
        done="one rank's data loader stops",
        inject=_stop_loader,
        spec={"progressDeadlineSeconds": HANG},
        expected=Expected(class_="Application", words=r"NoProgress: .*rank 1", charged=1),
    ),
    Incident(
        name="frozen-rank",
        what="a frozen process",
        done="SIGSTOP to one rank",
        inject=_freeze_rank,
        plain=False,
        expected=Expected(failures=range(1)),
    ),
    Incident(
        name="crash-of-all",
        what="a crash of all ranks",
        done="three ranks raise an exception at the same step",
        inject=lambda scene: scene.order("crash", 0, 1, 2),
        replicas=3,
        expected=Expected(class_="Application", words="bad batch", charged=1),
    ),
    Incident(
        name="host-of-rank-0",
        what="the host of rank 0 is lost",
        done="its packets are dropped, its pod is removed with its node",
        inject=_lose_host_of_rank_0,
        plain=False,
        expected=Expected(words="Deleted|Vanished", new_pods=range(1, 2)),
    ),
    Incident(
        name="old-survivor",
        what="an old survivor",
        done="a pod is replaced while its node is cut off, runs on, and its node comes back",
        inject=_node_comes_back,
        plain=False,
        expected=Expected(words="Deleted|Vanished", new_pods=range(1, 2)),
    ),
    Incident(
        name="control-plane",
        what="a control plane that is away for a minute",
        done="API server and etcd are killed; a rank dies meanwhile",
        inject=_lose_control_plane,
        steps=500,
        expected=Expected(class_="Application", charged=1),
    ),
    Incident(
        name="registry",
        what="a registry outage",
        done="a pod is deleted; its image cannot be pulled for a minute",
        inject=_lose_registry,
        around=_image_of_its_own,
        image=_REMOVABLE,
        others=False,
        plain=False,
        expected=Expected(words="Deleted|Vanished", new_pods=range(1, 2)),
    ),
    Incident(
        name="storm",
        what="a preemption storm",
        done="two of three pods are evicted at once, three times",
        inject=_evict_pods,
        plain=False,
        replicas=3,
        expected=Expected(
            failures=range(3, 7), new_pods=range(6, 7), new_groups=range(3, 7), words="Evict"
        ),
    ),
    Incident(
        name="stalled-save",
        what="a stall during a checkpoint",
        done="the checkpoints' volume hangs for half a minute",
        inject=_hang_disk,
        around=_own_disk,
        plain=False,
        expected=Expected(failures=range(1), new_groups=range(1)),
    ),
    Incident(
        name="full-disk",
        what="a disk that fills",
        done="another program fills the checkpoints' volume, and frees it later",
        inject=_fill_disk,
        around=_own_disk,
        plain=False,
        expected=Expected(failures=range(1), new_groups=range(1)),
    ),
    Incident(
        name="slow-node",
        what="a slow node",
        done="one rank gets three percent of a core until the status names it",
        inject=_slow_down,
        plain=False,
        expected=Expected(failures=range(1), new_groups=range(1)),
    ),
    Incident(
        name="slow-node-spare",
        what="a slow node with a spare",
        done="one rank gets three percent of a core until its pod is gone",
        inject=_slow_down_for_good,
        around=_two_nodes,
        spec={
            "spares": 1,
            "restart": {"slowRank": {"factor": 1.5, "forSeconds": 5, "action": "Replace"}},
        },
        limits={_SEAT: "1"},
        others=False,
        plain=False,
        expected=Expected(
            class_="Infrastructure", words="SlowRank", new_pods=range(2, 3), keeps_steps=True
        ),
    ),
    Incident(
        name="poisoned-node",
        what="a poisoned node",
        done="the kubelet of one of four nodes refuses each pod",
        inject=_is_avoided,
        around=_poison,
        others=False,
        plain=False,
        expected=Expected(
            class_="Infrastructure",
            words="UnexpectedAdmissionError",
            failures=range(1, 3),
            new_pods=range(2, 5),
            new_groups=range(1),
        ),
    ),
    Incident(
        name="finished-in-queue",
        what="a finished job in a queue",
        done="another job waits for its quota; the operator is killed when the job ends",
        inject=_finish_in_queue,
        around=_queue,
        queued=True,
        others=False,
        plain=False,
        expected=Expected(failures=range(1), new_groups=range(1)),
    ),
    *PUBLIC,
)
