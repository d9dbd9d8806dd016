"""The incidents: what is done to a job, and what is due."""

from __future__ import annotations

import os
import signal
from typing import Final

from tests.e2e.jobs import force_delete
from tests.incidents import faults
from tests.incidents.scene import Incident, Scene
from tests.incidents.verdict import Expected

HANG: Final = 20
"""Seconds without a step after which a job hangs."""


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
)
