"""Levels of Pod Security, and refusals with the texts of Kubernetes 1.36, which integration tests
compare with a real API server.
"""

import pytest
from ddp_operator.api.pod_security import read_refusal
from ddp_operator.job.planning.convergence import explain_refusal

from tests.good_manifests import Json, container, template
from tests.unit.job.builders import fresh_job

POD: Json = {
    "initContainers": [{"name": "fetch"}],
    "containers": [{"name": "trainer"}, {"name": "logs"}],
}
PLAIN = (
    'allowPrivilegeEscalation != false (container "trainer" must set '
    "securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "
    '"trainer" must set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or '
    'container "trainer" must set securityContext.runAsNonRoot=true), seccompProfile (pod or '
    'container "trainer" must set securityContext.seccompProfile.type to "RuntimeDefault" or '
    '"Localhost")'
)
WHAT_PLAIN_LACKS = (
    "set containers[trainer].securityContext.allowPrivilegeEscalation: false, "
    "containers[trainer].securityContext.capabilities.drop: [ALL], "
    "securityContext.runAsNonRoot: true, securityContext.seccompProfile.type: RuntimeDefault"
)


def refusal(checks: str, *, pod: str = "digits-0-0", level: str = "restricted") -> str:
    return f'pods "{pod}" is forbidden: violates PodSecurity "{level}:latest": {checks}'


@pytest.mark.parametrize(
    ("checks", "remedy"),
    [
        (PLAIN, WHAT_PLAIN_LACKS),
        (
            'allowPrivilegeEscalation != false (containers "fetch", "trainer", "logs" must set '
            "securityContext.allowPrivilegeEscalation=false), runAsNonRoot != true (pod or "
            'containers "fetch", "trainer", "logs" must set securityContext.runAsNonRoot=true)',
            "set initContainers[fetch].securityContext.allowPrivilegeEscalation: false, "
            "containers[trainer, logs].securityContext.allowPrivilegeEscalation: false, "
            "securityContext.runAsNonRoot: true",
        ),
        (
            'unrestricted capabilities (container "trainer" must set '
            'securityContext.capabilities.drop=["ALL"]; container "trainer" must not include '
            '"NET_ADMIN", "SYS_PTRACE" in securityContext.capabilities.add)',
            "set containers[trainer].securityContext.capabilities.drop: [ALL]; remove "
            "containers[trainer].securityContext.capabilities.add: [NET_ADMIN, SYS_PTRACE]",
        ),
        (
            'procMount (container "trainer" must not set securityContext.procMount to "Unmasked"), '
            'runAsNonRoot != true (pod and container "trainer" must not set '
            'securityContext.runAsNonRoot=false), runAsUser=0 (pod and container "trainer" must '
            'not set runAsUser=0), seccompProfile (pod and container "trainer" must not set '
            'securityContext.seccompProfile.type to "Unconfined")',
            "set securityContext.runAsNonRoot: true, "
            "containers[trainer].securityContext.runAsNonRoot: true, "
            "securityContext.seccompProfile.type: RuntimeDefault, "
            "containers[trainer].securityContext.seccompProfile.type: RuntimeDefault; remove "
            "containers[trainer].securityContext.procMount: Unmasked, "
            "securityContext.runAsUser: 0, containers[trainer].securityContext.runAsUser: 0",
        ),
        (
            'privileged (container "trainer" must not set securityContext.privileged=true), '
            'forbidden AppArmor profile (pod must not set AppArmor profile type to "Unconfined")',
            "set containers[trainer].securityContext.privileged: false; change forbidden AppArmor "
            'profile (pod must not set AppArmor profile type to "Unconfined")',
        ),
        (
            "host namespaces (hostNetwork=true, hostPID=true), hostPort (container "
            '"trainer" uses hostPort 8080), seLinuxOptions (pod set forbidden '
            'securityContext.seLinuxOptions: type "spc_t"; user may not be set; role may not be '
            'set), restricted volume types (volumes "data", "share" use restricted volume types '
            '"hostPath", "nfs")',
            "change host namespaces (hostNetwork=true, hostPID=true), hostPort (container "
            '"trainer" uses hostPort 8080), seLinuxOptions (pod set forbidden '
            'securityContext.seLinuxOptions: type "spc_t"; user may not be set; role may not be '
            'set), restricted volume types (volumes "data", "share" use restricted volume types '
            '"hostPath", "nfs")',
        ),
        (
            'privileged (container "istio-init" must not set securityContext.privileged=true)',
            "set (in containers that the template does not have: istio-init) "
            "securityContext.privileged: false",
        ),
        ("a check of tomorrow", "change this: a check of tomorrow"),
    ],
)
def test_refusal_becomes_a_remedy(checks: str, remedy: str) -> None:
    found = read_refusal(refusal(checks), POD)
    assert found is not None
    assert (found.level, found.remedy) == ("restricted", remedy)


def test_remedy_is_bounded() -> None:
    many = ", ".join(f'"container-{number}"' for number in range(1000))
    checks = f"privileged (containers {many} must not set securityContext.privileged=true)"
    pod = {"containers": [{"name": f"container-{number}"} for number in range(1000)]}
    found = read_refusal(refusal(checks), pod)
    assert found is not None
    assert found.remedy == (
        "set containers[container-0, container-1, container-2 and 997 more]"
        ".securityContext.privileged: false"
    )
    found = read_refusal(refusal("x" * 100_000), pod)
    assert found is not None
    assert (len(found.remedy), found.remedy[-1]) == (1000, "…")


@pytest.mark.parametrize("said", ["", "exceeded quota: pods", "violates PodSecurity"])
def test_other_refusals_are_ignored(said: str) -> None:
    assert read_refusal(said, POD) is None


def test_message_names_the_template() -> None:
    own = {"spec": {"containers": [container(), container("logs")]}}
    labels = {"metadata": {"labels": {"a": "b"}}}
    overrides = [{"indexes": ["1"], "template": labels}, {"indexes": ["2"], "template": own}]
    job = fresh_job(replicas=3, template=template(container()), overrides=overrides)
    head = "namespace research enforces Pod Security restricted: in "
    for pod in ("digits-0-0", "digits-4-1-r2"):
        said = explain_refusal(job, refusal(PLAIN, pod=pod))
        assert said == f"{head}spec.template.spec {WHAT_PLAIN_LACKS}"
    said = explain_refusal(job, refusal(PLAIN.replace('"trainer"', '"logs"'), pod="digits-0-2"))
    assert said.startswith(f"{head}spec.overrides[1].template.spec set containers[logs].")


def test_volume_that_the_operator_adds_is_traced_to_its_field() -> None:
    job = fresh_job(checkpoint={"hostPath": "/saved"})
    said = explain_refusal(
        job, refusal('hostPath volumes (volume "ddp-checkpoints")', level="baseline")
    )
    assert said.endswith(
        'change hostPath volumes (volume "ddp-checkpoints"); ddp-checkpoints comes from '
        "spec.checkpoint.hostPath"
    )
