"""Nodes that say that they are about to go: a real operator watches a real API server's nodes."""

import contextlib
from collections.abc import AsyncIterator

import pytest
from ddp_operator.kube import NODES, ApiClient
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.ports import ClusterError

from tests.good_manifests import template
from tests.integration.jobs import Jobs
from tests.integration.kubelet import NODE, FakeKubelet, run_all, start

pytestmark = pytest.mark.usefixtures("shared_operator")

LEAVING = {"labels": {"cloud.google.com/active-node-maintenance": "ONGOING"}}


@pytest.fixture
async def nodes(admin: ApiClient) -> AsyncIterator[None]:
    """Four of them, one of which has all pods; nobody runs there, and they are tainted for that."""
    names = [NODE, "node-2", "node-3", "node-4"]
    for name in names:
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        await admin.request("POST", NODES.path(), body=body)
    yield
    for name in names:
        with contextlib.suppress(ClusterError):
            await admin.request("DELETE", NODES.path(name=name))


@pytest.mark.usefixtures("nodes")
async def test_a_job_leaves_a_node_before_it_goes(
    jobs: Jobs, kubelet: FakeKubelet, admin: ApiClient
) -> None:
    await start(jobs, kubelet, template=template(tolerations=[{"operator": "Exists"}]))
    body = {"metadata": LEAVING}
    await admin.request("PATCH", NODES.path(name=NODE), body=body, content_type=MERGE_PATCH)
    await kubelet.let_go("job-0-0", "job-0-1")
    await jobs.until_pods("job-1-0", "job-1-1")
    status = await jobs.status()
    [failure] = status.failures
    assert (failure.reason, failure.node, failure.charged) == ("NodeLeaving", NODE, False)
    assert (status.restarts, status.disruptions) == (0, 1)
    assert status.excluded_nodes == (NODE,)
    told = await jobs.until_told("Restarting")
    assert f"node {NODE} is about to be terminated (label cloud.google.com/active-node-" in told
    new = (await jobs.pods())["job-1-0"]
    assert f"'values': ['{NODE}']" in str(new["spec"]["affinity"])
    await run_all(jobs, kubelet)  # on the same node, in spite of all that
    status = await jobs.until_phase("Running")
    assert status.bookkeeping.left_nodes == (NODE,)
