"""Jobs in a namespace that admits only pods of the Pod Security Standard `restricted`."""

from collections.abc import AsyncIterator

import pytest
from ddp_client import AsyncClient
from ddp_operator.api.pod_security import read_refusal
from ddp_operator.kube import PODS, ApiClient
from ddp_operator.ports import ForbiddenError

from tests import cluster
from tests.good_manifests import Json, container, job, template
from tests.integration.conftest import Ddp, new_namespace
from tests.integration.jobs import Jobs

pytestmark = pytest.mark.usefixtures("shared_operator")

POD: Json = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.fixture
async def namespace(admin: ApiClient) -> AsyncIterator[str]:
    """The name of a new namespace, instead of one that admits all pods."""
    async with new_namespace(admin, enforce="restricted") as name:
        yield name


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--user", "1000", "--mount", "pvc/data:/data", "--checkpoint", "pvc/saved"),
        ("--launcher", "inject", "--mount", "gs://bucket:/data", "--checkpoint", "gs://saved"),
        ("--gpus", "l4:2", "--spot", "--env-from", "secret/keys"),
    ],
    ids=lambda options: options[0] if options else "plain",
)
async def test_pods_of_run_are_admitted(ddp: Ddp, jobs: Jobs, options: tuple[str, ...]) -> None:
    line = ("run", "job", "--image", "registry.example/t:1", "--replicas", "2", "--yes", "--detach")
    result = await ddp(*line, *options, "--", "python", "train.py")
    assert result.exit_code == 0, result.stderr
    await jobs.until_pods("job-0-0", "job-0-1")
    await jobs.until(lambda status: status.is_true("PodsCreated"))


async def test_pods_of_the_python_client_are_admitted(
    control_plane: cluster.ControlPlane, jobs: Jobs
) -> None:
    async with AsyncClient(kubeconfig=control_plane.kubeconfig, namespace=jobs.namespace) as client:
        await client.run(command=["python", "train.py"], name="job", image="registry.example/t:1")
    await jobs.until_pods("job-0-0")


async def test_parts_added_by_the_operator_are_admitted(jobs: Jobs) -> None:
    trainer = container(command=["python", "train.py"], securityContext=CONTAINER)
    own = template(trainer, securityContext=POD)
    spec: Json = {"template": own, "launcher": "inject", "checkpoint": {"gcsBucket": "saved"}}
    await jobs.create(job(replicas=2, spares=1, isolation="Job", **spec))
    await jobs.until_pods("job-0-0", "job-0-1")


async def test_injected_launcher_passes_the_minimum_of_a_limit_range(
    admin: ApiClient, jobs: Jobs
) -> None:
    """It applies to each init container."""
    bounds = {"min": {"cpu": "1", "memory": "1Gi"}, "max": {"cpu": "4", "memory": "8Gi"}}
    limits: Json = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "bounds"},
        "spec": {"limits": [{"type": "Container", **bounds}]},
    }
    path = f"/api/v1/namespaces/{jobs.namespace}/limitranges"
    await admin.request("POST", path, body=limits)
    resources = {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"cpu": "4", "memory": "2Gi"}}
    plain = container(command=["python", "train.py"], securityContext=CONTAINER)
    for name, trainer in (("sized", {**plain, "resources": resources}), ("default", plain)):
        spec: Json = {"template": template(trainer, securityContext=POD), "launcher": "inject"}
        await jobs.create(job(replicas=1, **spec), name=name)
        await jobs.until_pods(f"{name}-0-0", name=name)


async def test_refused_job_names_the_missing_fields_of_its_template(ddp: Ddp, jobs: Jobs) -> None:
    await jobs.create(job(template=template(container(), container("logs"))))
    status = await jobs.until(lambda status: status.reason == "PodsForbidden")
    assert status.message == (
        f"namespace {jobs.namespace} enforces Pod Security restricted: in spec.template.spec set "
        "containers[trainer, logs].securityContext.allowPrivilegeEscalation: false, "
        "containers[trainer, logs].securityContext.capabilities.drop: [ALL], "
        "securityContext.runAsNonRoot: true, securityContext.seccompProfile.type: RuntimeDefault"
    )
    assert await jobs.until_told("PodsForbidden") == status.message
    why = " ".join((await ddp("why", "job")).stdout.split())
    assert status.message in why
    assert "change the fields of the template that the message names" in why
    assert await jobs.live_pods() == set()

    containers = (
        container(securityContext=CONTAINER),
        container("logs", securityContext=CONTAINER),
    )
    await jobs.create(job(template=template(*containers, securityContext=POD)), name="corrected")
    await jobs.until_pods("corrected-0-0", name="corrected")


async def test_doctor_reports_the_level_of_the_namespace(ddp: Ddp) -> None:
    report = " ".join((await ddp("doctor")).stdout.split())
    assert "enforces restricted (latest): spec.template.spec needs securityContext.runAs" in report


async def test_remedy_covers_every_check_of_this_server(admin: ApiClient, namespace: str) -> None:
    """Quote the server's message for checks without a field to set."""
    trainer: Json = {
        "name": "trainer",
        "image": "registry.example/t:1",
        "ports": [{"containerPort": 8080, "hostPort": 8080}],
        "securityContext": {
            "privileged": True,
            "runAsNonRoot": False,
            "runAsUser": 0,
            "capabilities": {"add": ["NET_ADMIN"]},
            "seccompProfile": {"type": "Unconfined"},
        },
    }
    spec: Json = {
        "hostNetwork": True,
        "securityContext": {
            "appArmorProfile": {"type": "Unconfined"},
            "seLinuxOptions": {"user": "u"},
            "sysctls": [{"name": "kernel.sem", "value": "1"}],
        },
        "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
        "containers": [trainer],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad"}, "spec": spec}
    path = PODS.path(namespace=namespace)
    with pytest.raises(ForbiddenError) as refused:
        await admin.request("POST", path, body=pod, params={"dryRun": "All"})
    found = read_refusal(refused.value.message, spec)
    assert found is not None
    context = "containers[trainer].securityContext"
    assert found.remedy == (
        f"set {context}.privileged: false, {context}.allowPrivilegeEscalation: false, "
        f"{context}.capabilities.drop: [ALL], {context}.runAsNonRoot: true, "
        f"{context}.seccompProfile.type: RuntimeDefault; "
        f"remove {context}.capabilities.add: NET_ADMIN, {context}.runAsUser: 0; "
        'change forbidden AppArmor profile (pod must not set AppArmor profile type to "Unconfined"'
        '), host namespaces (hostNetwork=true), hostPort (container "trainer" uses hostPort 8080), '
        "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: user may not be set), "
        'forbidden sysctls (kernel.sem), restricted volume types (volume "data" uses restricted '
        'volume type "hostPath")'
    )
