"""Checks of the cluster's version, the CRD, the operator, and the user's rights."""

from collections.abc import Iterator
from typing import Final

from ddp_operator.api import kubernetes
from ddp_operator.api.schema.comparison import compare
from ddp_operator.api.values.text import clean, counted

from ddp_client.documents import nested
from ddp_client.views.doctor.facts import (
    Facts,
    Finding,
    Unknown,
    count,
    first_few,
    not_known,
)

_BY_VERSION: Final = (
    ((1, 34), "network cards by claims (manifests/components/dranet)"),
    (kubernetes.NATIVE_GANGS, "scheduling.gang: native"),
)
_NO_CRD: Final = "kubectl apply -f crds/ddpjobs.yaml, or install the Helm chart ddp-operator"


def server(facts: Facts) -> Finding:
    """Check the cluster's version, and name features that need a newer one."""
    if isinstance(facts.version, Unknown):
        return not_known("cluster", facts.version)
    version = clean(facts.version.get("gitVersion"), 64)
    release = kubernetes.release(version)
    if release is None:
        return Finding("not known", "cluster", f"cannot read its version: {version}")
    if release < kubernetes.OLDEST:
        return Finding(
            "fail",
            "cluster",
            f"Kubernetes {version} is too old; the operator does not start",
            f"upgrade the cluster to Kubernetes {kubernetes.in_words(kubernetes.OLDEST)} or later",
        )
    newer = [f"{what} ({kubernetes.in_words(n)})" for n, what in _BY_VERSION if release < n]
    lacking = f"; too old for {'; '.join(newer)}" if newer else ""
    return Finding("ok", "cluster", f"Kubernetes {version}{lacking}")


def crd(facts: Facts) -> Iterator[Finding]:
    """Check that DDPJobs are served, and compare the CRD with this release."""
    if isinstance(facts.served, Unknown):
        yield not_known("CRD", facts.served)
    elif not facts.served:
        yield Finding("fail", "CRD", "the DDPJob CRD is not installed", _NO_CRD)
    elif isinstance(facts.crd, Unknown):
        yield Finding("ok", "CRD", f"DDPJobs are served; release unknown: {facts.crd.why}")
    else:
        difference = compare(facts.crd)
        if difference.lacking:
            some = first_few(sorted(difference.lacking))
            text = f"it is older than this program, {facts.release}: it lacks {some}"
            yield Finding("warn", "CRD", text, "kubectl apply -f crds/ddpjobs.yaml of this release")
        if difference.unknown:
            some = first_few(sorted(difference.unknown))
            text = f"it is newer than this program, {facts.release}, which cannot read {some}"
            yield Finding("warn", "CRD", text, "pip install --upgrade ddp-client")
        if difference.lacking == difference.unknown:
            yield Finding("ok", "CRD", f"DDPJobs are served, release {facts.release}")


def operator(facts: Facts) -> Finding:
    """Check that an operator runs."""
    subject = "operator"
    if isinstance(facts.operators, Unknown):
        return not_known(subject, facts.operators)
    if not facts.operators:
        return Finding(
            "fail",
            subject,
            "not installed: no Deployment has the label ddp-operator.io/component=operator",
            "kubectl apply -k manifests/install, or install the Helm chart ddp-operator",
        )
    ready = [each for each in facts.operators if count(nested(each, "status", "readyReplicas"))]
    shown = (ready or facts.operators)[0]
    namespace = clean(nested(shown, "metadata", "namespace"), 63)
    name = clean(nested(shown, "metadata", "name"), 253)
    if not ready:
        return Finding(
            "fail",
            subject,
            f"{namespace}/{name} has no ready pod",
            f"kubectl -n {namespace} logs deployment/{name}",
        )
    pods = counted(count(nested(shown, "status", "readyReplicas")), "ready pod")
    containers = nested(shown, "spec", "template", "spec", "containers") or [{}]
    image = clean(nested(containers[0], "image"), 253)
    return Finding("ok", subject, f"{namespace}/{name} has {pods}, image {image}")


def rights(facts: Facts) -> Finding:
    """Check the user's rights to jobs and pods."""
    if isinstance(facts.missing, Unknown):
        return not_known("your rights", facts.missing)
    where = f"in namespace {clean(facts.namespace, 63)}"
    if not facts.missing:
        return Finding(
            "ok", "your rights", f"you may read jobs, change them and access their pods {where}"
        )
    return Finding(
        "warn",
        "your rights",
        f"you may not {'; '.join(facts.missing)}",
        f"if you need them, ask an administrator for a Role {where} that grants them",
    )
