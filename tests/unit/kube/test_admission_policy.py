"""The admission policy for the operator: it admits all its requests, and refuses bad ones."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
import yaml
from ddp_operator.api.constants import KUEUE_RETRIABLE, LABEL_JOB_UID, LABEL_SERVING
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.engine.tokens.access import Access
from ddp_operator.job.planning.decisions import finish
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests, multikueue
from ddp_operator.job.pods.prerequisites import compute_domain, network_policy, prerequisites
from ddp_operator.job.pods.state import Identity
from ddp_operator.kube import ApiClient, Credentials, KubeCluster, Reflector
from ddp_operator.kube.election.lease import LeaderLease
from ddp_operator.kube.own_secret import own_secret
from ddp_operator.kube.resources import PODS
from ddp_operator.ports import Event, Key
from ddp_operator.process import startup
from ddp_operator.process.handlers import JOBS

from tests.good_manifests import GOOD_MANIFESTS
from tests.mergepatch import merged
from tests.unit.job.builders import NAMESPACE, NOW, stored_job
from tests.unit.kube.admission import AdmissionRequest, AdmittingServer, Policy
from tests.unit.kube.bad_requests import (
    BAD,
    BINDING,
    BOOST,
    HOST,
    HOST_PATHS,
    MANIFESTS,
    POLICY,
    PRIVILEGES,
)
from tests.unit.kube.test_lease import PATIENT
from tests.waiting import eventually

OPERATOR: Final = "system:serviceaccount:ddp-operator:ddp-operator"
COMPONENTS: Final = ("dranet", "compute-domains", "gangs", "multikueue", "priority-boost")
"""Components that let the operator write something."""
A4X: Final = {"type": "nvidia-gb200", "count": 4, "network": "auto"}
ELSEWHERE: Final[dict[str, Any]] = {
    "managedBy": "kueue.x-k8s.io/multikueue",
    "scheduling": {"queueName": "team"},
}
ADMISSION_POLICY: Final = Policy(POLICY)
ENDED: Final = finish(DDPJobStatus(), "Succeeded", "Completed", "all is well", NOW).status


@pytest.fixture
async def server() -> AsyncIterator[AdmittingServer]:
    async with AdmittingServer(OPERATOR).running() as running:
        assert isinstance(running, AdmittingServer)
        yield running


@pytest.fixture
async def cluster(client: ApiClient) -> KubeCluster[Key]:
    """Return the operator's cluster, without a watch."""
    pods = Reflector(
        client,
        PODS.path(),
        label_selector="",
        project=_key,
        group=_key,
        on_change=lambda _: None,
    )
    return KubeCluster(client, job_resource=JOBS, pods=pods)


def _key(manifest: Mapping[str, Any]) -> Key:
    return Key(manifest["metadata"]["namespace"], manifest["metadata"]["name"])


@pytest.fixture
async def sent(
    server: AdmittingServer, credentials: Credentials, cluster: KubeCluster[Key]
) -> dict[str, AdmissionRequest]:
    """Return each kind of write of the operator, once, by its action and object."""
    status = ENDED.model_dump(mode="json", by_alias=True, exclude_none=True)
    ended = stored_job(status=status, ttlSecondsAfterFinished=0)
    server.objects["ddpjobs", NAMESPACE, ended["metadata"]["name"]] = ended
    job = DDPJob.parse(ended)
    assert plan(job, (), NOW).delete_job
    pod = manifests.pod(job, Identity(0, 0))
    await cluster.create_service(manifests.service(job))
    template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "spec": {}}
    await cluster.apply({**manifests.service(job), **template})
    domain = compute_domain(DDPJob.parse(stored_job(accelerator=A4X)))
    assert domain is not None
    await cluster.apply(domain)
    [stored_domain] = await cluster.find(domain, labels={LABEL_JOB_UID: job.uid})
    await cluster.delete(stored_domain)
    for replicas in (2, 3):
        gang = DDPJob.parse(stored_job(replicas=replicas, scheduling={"gang": "coscheduling"}))
        for needed in prerequisites(gang):
            await cluster.apply(needed.manifest)
    elsewhere, suspended = (
        DDPJob.parse(stored_job(suspend=suspend, **ELSEWHERE)) for suspend in (False, True)
    )
    await cluster.apply(multikueue.workload(elsewhere, None))
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload"}
    stored = {**await cluster.read(multikueue.reference(elsewhere)), **kind}
    changed = multikueue.updated(suspended, stored)
    assert changed is not None
    stored = {**await cluster.update(changed), **kind}
    await cluster.patch_status_of(stored, {"admission": None, "a": "b"})
    await cluster.delete(stored)
    for namespace in (None, "ddp-operator"):
        await cluster.apply(network_policy(job, operator_namespace=namespace))
    await cluster.delete_network_policy(job.key, owner_uid=job.uid)
    access = Access(keys={"1": b"own"})
    await cluster.create_secret(access.secret_manifest(job, "1"))
    await cluster.create_pod(pod)
    await cluster.patch_pod(_key(pod), {"labels": {LABEL_SERVING: None}})
    await cluster.delete_pod(_key(pod), grace_seconds=15)
    await cluster.emit_event(ended, Event("Completed", "all is well"))
    await cluster.close()
    await cluster.patch_status(job.key, {"phase": "Succeeded", "a": "b"}, resource_version=None)
    await cluster.delete_job(job.key, uid=job.uid)
    async with ApiClient(credentials) as client:
        await own_secret(client, Key("ddp-operator", startup.SECRET_NAME))
        lease = LeaderLease(
            client, Key("ddp-operator", "ddp-operator"), identity="me", timing=PATIENT
        )
        running = asyncio.create_task(lease.run())
        await eventually(lambda: "UPDATE leases" in {a.act for a in server.admissions})
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    admissions = {request.act: request for request in server.admissions}
    pods_group = await _boosted(server, cluster)
    return {**admissions, BOOST: pods_group}


async def _boosted(server: AdmittingServer, cluster: KubeCluster[Key]) -> AdmissionRequest:
    """Return the request that boosts the Workload that Kueue made for a pod group."""
    owners = [
        {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name}
        for name in ("digits-0-0", "digits-0-1")
    ]
    metadata: dict[str, Any] = {"namespace": NAMESPACE, "name": "digits-7d1c-0"}
    metadata |= {"resourceVersion": "1", "ownerReferences": owners}
    spec, status = {"queueName": "team"}, {"admission": {"clusterQueue": "team"}}
    group = {"metadata": metadata, "spec": spec, "status": status}
    server.objects["workloads", NAMESPACE, metadata["name"]] = group
    await cluster.set_priority_boost(_key(group), 3)
    return server.admissions[-1]


async def test_all_writes_of_the_operator_are_admitted(sent: dict[str, AdmissionRequest]) -> None:
    writes = _granted() | {BOOST}
    assert {act: ADMISSION_POLICY.refusals(sent[act]) for act in sent} == {
        act: [] for act in writes
    }
    checked = {act for act, request in sent.items() if ADMISSION_POLICY.applies_to(request)}
    # RBAC names the one Lease, and the server lets the operator change only a job's status.
    assert writes - checked == {"UPDATE leases", "UPDATE ddpjobs/status"}


def _granted() -> set[str]:
    """Return all writes that RBAC allows the operator."""
    operations = {"create": "CREATE", "update": "UPDATE", "patch": "UPDATE", "delete": "DELETE"}
    return {
        f"{operations[verb]} {resource}"
        for file in ("install/rbac.yaml", *(f"components/{name}/rbac.yaml" for name in COMPONENTS))
        for document in yaml.safe_load_all((MANIFESTS / file).read_text())
        if document["kind"] in ("Role", "ClusterRole")
        and document["metadata"]["name"].startswith("ddp-operator")
        for rule in document["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb in operations
    }


FABRICS: Final = {
    "/dev/aperture_devices",
    "/home/kubernetes/bin",
    "/proc/sys",
    "/run/tcpx",
    "/sys",
}
"""Folders of nodes that accelerator.network mounts."""
PERMISSIVE: Final = Policy(
    POLICY,
    hostNetwork="true",
    hostPaths=str(sorted(FABRICS | {"/var/lib/training"})),
    capabilities='["NET_ADMIN"]',
)


def test_jobs_that_use_their_nodes_are_admitted_only_by_parameter() -> None:
    refused = {}
    for name, manifest in GOOD_MANIFESTS.items():
        pod = manifests.pod(DDPJob.parse(stored_job(**manifest["spec"])), Identity(0, 2, 1))
        request = AdmissionRequest("CREATE", "", "pods", OPERATOR, pod, None)
        assert PERMISSIVE.refusals(request) == [], name
        if messages := ADMISSION_POLICY.refusals(request):
            refused[name] = messages
    assert refused["on the nodes' network"] == [HOST["message"]]
    assert refused["checkpoints on the node"] == [HOST_PATHS["message"]]
    assert {m for found in refused.values() for m in found} == {
        each["message"] for each in (HOST, HOST_PATHS, PRIVILEGES)
    }


def test_folder_beside_an_allowed_one_is_refused() -> None:
    policy = Policy(POLICY, hostPaths='["/data"]')
    for path, expected in (("/data", []), ("/data/a", []), ("/database", [HOST_PATHS["message"]])):
        job = DDPJob.parse(stored_job(checkpoint={"hostPath": path}))
        pod = manifests.pod(job, Identity(0, 0))
        request = AdmissionRequest("CREATE", "", "pods", OPERATOR, pod, None)
        assert policy.refusals(request) == expected, path


def test_page_lists_the_folders_of_fabrics() -> None:
    page = (MANIFESTS.parent / "docs/how-to/fast-networks.md").read_text()
    assert set(re.findall(r"`(/[^`]+)`", page)) >= FABRICS


def test_updates_of_pods_of_all_valid_jobs_are_admitted() -> None:
    for name, manifest in GOOD_MANIFESTS.items():
        job = DDPJob.parse(stored_job(**manifest["spec"]))
        pod = manifests.pod(job, Identity(0, 2, 1))
        unlabelled = merged(pod, {"metadata": {"labels": {LABEL_SERVING: None}}})
        annotated = merged(pod, {"metadata": {"annotations": {KUEUE_RETRIABLE: "false"}}})
        for operation, new, old in (
            ("UPDATE", unlabelled, pod),
            ("UPDATE", annotated, pod),
            ("DELETE", None, pod),
        ):
            request = AdmissionRequest(operation, "", "pods", OPERATOR, new, old)
            assert ADMISSION_POLICY.refusals(request) == [], name


async def test_each_bad_request_is_refused_by_one_validation(
    sent: dict[str, AdmissionRequest],
) -> None:
    requests = {bad.name: (bad, bad.request(sent[bad.act])) for bad in BAD}
    assert len(requests) == len(BAD)
    for bad, request in requests.values():
        assert request != sent[bad.act], bad.name
        assert ADMISSION_POLICY.applies_to(request), bad.name
        assert ADMISSION_POLICY.refusals(request) == [bad.refused_by["message"]], bad.name


def test_every_validation_refuses_something() -> None:
    assert {bad.refused_by["message"] for bad in BAD} == set(ADMISSION_POLICY.messages)


async def test_policy_applies_to_the_service_account_of_the_operator_alone(
    sent: dict[str, AdmissionRequest],
) -> None:
    for username, expected in {
        OPERATOR: True,
        "system:serviceaccount:training:ddp-operator": True,
        "system:serviceaccount:ddp-operator:default": False,
        "system:serviceaccount:ddp-operator:my-ddp-operator": True,
        "system:serviceaccount:ddp-operator:ddp-operator-2": True,
        "system:serviceaccount:ddp-operator:ddp-operator-test": False,
        "system:serviceaccount:training:trainer": False,
        "system:serviceaccount:kube-system:replicaset-controller": False,
        "ddp-operator": False,
        "admin": False,
    }.items():
        request = replace(sent["CREATE pods"], username=username)
        assert ADMISSION_POLICY.applies_to(request) is expected, username
    deployment = yaml.safe_load((MANIFESTS / "install/deployment.yaml").read_text())
    namespace = deployment["metadata"]["namespace"]
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    assert f"system:serviceaccount:{namespace}:{account}" == OPERATOR


def test_binding_enforces_the_policy() -> None:
    assert BINDING["kind"] == "ValidatingAdmissionPolicyBinding"
    assert BINDING["spec"]["policyName"] == POLICY["metadata"]["name"]
    assert BINDING["spec"]["validationActions"] == ["Deny"]
