"""Tests of a GPU that is lost under a rank whose launcher could restart it in place."""

from dataclasses import replace

import pytest
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.avoided_nodes import kept_off
from ddp_operator.ports import Node
from ddp_protocol.world import PodFailure

from tests.unit.job.builders import later, listening, running_job, stored

NODES = [Node(f"node-{number}", {}) for number in range(8)]
LOST = [
    "rank 1 ended with exit code 1\nRuntimeError: CUDA error: uncorrectable ECC error encountered",
    "rank 1 ended with exit code 1\nNVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    "RuntimeError: CUDA error: unknown error",
    "rank 1 differs from the other ranks after step 9; 1 of 3: flipped bits in memory",
]
"""Reports of launchers."""


@pytest.mark.parametrize("scope", ["InPlace", "Auto"])
@pytest.mark.parametrize("words", LOST, ids=["ecc", "bus", "flipped-bits"])
def test_pod_whose_gpu_is_lost_in_place_moves_to_another_node(words: str, scope: str) -> None:
    job, pods = running_job(replicas=3, restart={"scope": scope, "maxRestarts": 0})
    pods = [replace(listening(each), node=f"node-{each.identity.index}") for each in pods]
    listens = LauncherStates(scope="InPlace")
    job = stored(job, plan(job, pods, later(20), launchers=listens, nodes=NODES))
    lost = PodFailure(
        pod=pods[1].key.name,
        generation=0,
        exit_code=1,
        message=words,
        time=later(59).isoformat(),
    )
    reported = replace(listens, failures=(lost,))
    decision = plan(job, pods, later(60), launchers=reported, nodes=NODES)
    [failure] = decision.status.failures
    assert (failure.class_, failure.action, failure.charged) == (
        "Infrastructure",
        "RestartInPlace",
        False,
    )
    assert decision.status.excluded_nodes == ("node-1",)
    job = stored(job, decision)
    planned = plan(job, pods, later(60), launchers=reported, nodes=NODES)
    assert planned.delete == (pods[1].key,)
    [new] = planned.create
    assert kept_off(manifests.pod(job, new)["spec"]) == ("node-1",)
    assert not any(each.group.start for each in planned.assignments), "the others wait for it"
