"""Permissions in the manifests, compared with those that the operator checks when it starts."""

from pathlib import Path
from typing import Any, Final

import yaml
from ddp_operator.endpoints.metrics import PATH
from ddp_operator.job.pods import multikueue
from ddp_operator.job.pods.prerequisites import COMPUTE_DOMAIN, prerequisites
from ddp_operator.kube import NODES, PODS, Permission
from ddp_operator.kube.resources import WORKLOADS, Resource, resource_of
from ddp_operator.ports import Key
from ddp_operator.process import crd_fit, startup

from tests.good_manifests import template
from tests.unit.job.builders import fresh_job

MANIFESTS: Final = Path(__file__).parents[2] / "manifests"
READ_LOGS: Final = Permission("get", PODS, "log")
"""Only for `progress.logPattern`."""
LEASE: Final = Key("ddp-operator", "ddp-operator")
SECRET: Final = Key("ddp-operator", startup.SECRET_NAME)


def roles(path: str) -> dict[tuple[str, str], list[Any]]:
    """Return the rules of all roles in a file, by kind and name."""
    return {
        (document["kind"], document["metadata"]["name"]): document["rules"]
        for document in yaml.safe_load_all((MANIFESTS / path).read_text())
        if document["kind"] in ("Role", "ClusterRole")
    }


FILES: Final = (
    "install/rbac.yaml",
    "components/one-namespace/rbac.yaml",
    "components/metrics-auth/rbac.yaml",
    "components/dranet/rbac.yaml",
    "components/compute-domains/rbac.yaml",
    "components/gangs/rbac.yaml",
    "components/multikueue/rbac.yaml",
    "components/priority-boost/rbac.yaml",
)
EVERYWHERE, IN_ONE_NAMESPACE, REVIEWS, CLAIMS, DOMAINS, GANGS, MULTIKUEUE, BOOSTS = map(
    roles, FILES
)
TO_LEAD: Final = EVERYWHERE["Role", "ddp-operator"]


def covers(rules: list[Any], permission: Permission) -> bool:
    """Return whether a role with these rules grants a permission."""
    resource = permission.resource.plural
    if permission.subresource:
        resource = f"{resource}/{permission.subresource}"
    return any(
        permission.resource.group in rule["apiGroups"]
        and resource in rule["resources"]
        and permission.verb in rule["verbs"]
        and ("resourceNames" not in rule or permission.name in rule["resourceNames"])
        for rule in rules
    )


def grants_exactly(rules: list[Any], *needed: Permission) -> bool:
    """Return whether a role grants these permissions and no others."""
    amount = sum(len(rule["resources"]) * len(rule["verbs"]) for rule in rules)
    return amount == len(needed) and all(covers(rules, permission) for permission in needed)


def test_cluster_roles_grant_exactly_what_all_namespaces_need() -> None:
    needed = startup.needed(None, secret=SECRET, lease=LEASE)
    assert grants_exactly([*EVERYWHERE["ClusterRole", "ddp-operator"], *TO_LEAD], *needed)
    nodes = [Permission(verb, NODES) for verb in ("list", "watch")]
    assert grants_exactly(EVERYWHERE["ClusterRole", "ddp-operator-nodes"], *nodes)
    assert grants_exactly(EVERYWHERE["ClusterRole", "ddp-operator-logs"], READ_LOGS)
    tokens = startup.create_token_secrets(None)
    assert grants_exactly(EVERYWHERE["ClusterRole", "ddp-operator-tokens"], tokens)
    assert grants_exactly(EVERYWHERE["ClusterRole", "ddp-operator-crd"], crd_fit.READ_CRD)


def test_roles_grant_exactly_what_one_namespace_needs() -> None:
    needed = startup.needed("training", secret=SECRET, lease=LEASE)
    assert grants_exactly([*IN_ONE_NAMESPACE["Role", "ddp-operator-jobs"], *TO_LEAD], *needed)
    assert grants_exactly(IN_ONE_NAMESPACE["Role", "ddp-operator-logs"], READ_LOGS)
    tokens = startup.create_token_secrets("training")
    assert grants_exactly(IN_ONE_NAMESPACE["Role", "ddp-operator-tokens"], tokens)
    own_pods = Permission("get", PODS)
    assert grants_exactly(IN_ONE_NAMESPACE["Role", "ddp-operator-image"], own_pods)
    assert {kind for kind, _ in IN_ONE_NAMESPACE} == {"Role"}


def test_claims_and_boosts_need_few_permissions() -> None:
    templates = Resource("resource.k8s.io", "v1", "resourceclaimtemplates")
    needed = [Permission(verb, templates) for verb in ("get", "create")]
    assert grants_exactly(CLAIMS["ClusterRole", "ddp-operator-claims"], *needed)
    boosts = BOOSTS["ClusterRole", "ddp-operator-workloads"]
    assert grants_exactly(boosts, Permission("patch", WORKLOADS))


def test_compute_domains_need_four_permissions() -> None:
    domains = resource_of(COMPUTE_DOMAIN)
    needed = [Permission(verb, domains) for verb in ("get", "list", "create", "delete")]
    assert grants_exactly(DOMAINS["ClusterRole", "ddp-operator-compute-domains"], *needed)


def test_gangs_need_three_permissions_for_each_scheduler() -> None:
    granted = GANGS["ClusterRole", "ddp-operator-gangs"]
    for gang in ("native", "coscheduling", "kai"):
        [needed] = prerequisites(fresh_job(scheduling={"gang": gang}))
        resource = resource_of(needed.manifest)
        rules = [rule for rule in granted if resource.group in rule["apiGroups"]]
        verbs = ("get", "create", "update")
        assert grants_exactly(rules, *(Permission(verb, resource) for verb in verbs))
    assert len([group for rule in granted for group in rule["apiGroups"]]) == 3


def test_multikueue_needs_seven_more_permissions() -> None:
    job = fresh_job(managedBy="kueue.x-k8s.io/multikueue", scheduling={"queueName": "team"})
    workloads = resource_of(multikueue.workload(job, None))
    needed = [Permission(verb, workloads) for verb in ("get", "create", "update", "delete")]
    needed.append(Permission("patch", workloads, "status"))
    for metadata, spec in (
        ({"labels": {"kueue.x-k8s.io/priority-class": "a"}}, {}),
        ({}, {"priorityClassName": "a"}),
    ):
        pods = template(**spec) | {"metadata": metadata}
        priority_class = multikueue.priority_class(fresh_job(template=pods))
        assert priority_class is not None
        needed.append(Permission("get", resource_of(priority_class)))
    assert grants_exactly(MULTIKUEUE["ClusterRole", "ddp-operator-multikueue"], *needed)


def test_reviews_of_metrics_need_two_more_permissions() -> None:
    granted = REVIEWS["ClusterRole", "ddp-operator-metrics-auth"]
    assert grants_exactly(granted, *startup.NEEDED_TO_REVIEW)
    [reader] = REVIEWS["ClusterRole", "ddp-operator-metrics-reader"]
    assert reader == {"nonResourceURLs": [PATH], "verbs": ["get"]}


def test_every_role_is_bound_only_to_the_operator() -> None:
    for path in FILES:
        documents = list(yaml.safe_load_all((MANIFESTS / path).read_text()))
        bindings = {
            (document["roleRef"]["kind"], document["roleRef"]["name"]): document
            for document in documents
            if document["kind"].endswith("Binding")
        }
        # The others are for people, and for clients of the metrics.
        assert bindings.keys() == {
            (kind, name)
            for kind, name in roles(path)
            if name.startswith("ddp-operator") and not name.endswith("-reader")
        }
        for (kind, name), binding in bindings.items():
            assert binding["kind"] == f"{kind}Binding"
            assert binding["metadata"]["name"] == name
            assert binding["subjects"] == [
                {"kind": "ServiceAccount", "name": "ddp-operator", "namespace": "ddp-operator"}
            ]
