"""Permissions that the manifests grant the operator, against those that it checks when
it starts.
"""

from pathlib import Path
from typing import Any, Final

import yaml
from ddp_operator import startup
from ddp_operator.endpoints.metrics import PATH
from ddp_operator.job.pods import multikueue
from ddp_operator.job.pods.prerequisites import prerequisites
from ddp_operator.kube import NODES, PODS, Permission
from ddp_operator.kube.resources import WORKLOADS, Resource, resource_of
from ddp_operator.ports import Key

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
    "components/gangs/rbac.yaml",
    "components/multikueue/rbac.yaml",
    "components/priority-boost/rbac.yaml",
)
EVERYWHERE, IN_ONE_NAMESPACE, REVIEWS, CLAIMS, GANGS, MULTIKUEUE, BOOSTS = map(roles, FILES)
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


def amount(rules: list[Any]) -> int:
    """Return how many permissions a role grants."""
    return sum(len(rule["resources"]) * len(rule["verbs"]) for rule in rules)


def test_cluster_roles_grant_exactly_what_all_namespaces_need() -> None:
    needed = startup.needed(None, secret=SECRET, lease=LEASE)
    granted = [*EVERYWHERE["ClusterRole", "ddp-operator"], *TO_LEAD]
    assert [permission for permission in needed if not covers(granted, permission)] == []
    assert amount(granted) == len(needed)
    nodes = EVERYWHERE["ClusterRole", "ddp-operator-nodes"]
    assert all(covers(nodes, Permission(verb, NODES)) for verb in ("list", "watch"))
    assert amount(nodes) == 2
    logs = EVERYWHERE["ClusterRole", "ddp-operator-logs"]
    assert covers(logs, READ_LOGS)
    assert amount(logs) == 1
    tokens = EVERYWHERE["ClusterRole", "ddp-operator-tokens"]
    assert covers(tokens, startup.create_token_secrets(None))
    assert amount(tokens) == 1
    crd = EVERYWHERE["ClusterRole", "ddp-operator-crd"]
    assert covers(crd, startup.READ_CRD)
    assert amount(crd) == 1


def test_roles_grant_exactly_what_one_namespace_needs() -> None:
    needed = startup.needed(
        "training",
        secret=Key("training", SECRET.name),
        lease=Key("training", LEASE.name),
    )
    granted = [*IN_ONE_NAMESPACE["Role", "ddp-operator-jobs"], *TO_LEAD]
    assert [permission for permission in needed if not covers(granted, permission)] == []
    assert amount(granted) == len(needed)
    logs = IN_ONE_NAMESPACE["Role", "ddp-operator-logs"]
    assert covers(logs, READ_LOGS)
    assert amount(logs) == 1
    tokens = IN_ONE_NAMESPACE["Role", "ddp-operator-tokens"]
    assert covers(tokens, startup.create_token_secrets("training"))
    assert amount(tokens) == 1
    assert {kind for kind, _ in IN_ONE_NAMESPACE} == {"Role"}


def test_claims_need_two_more_permissions() -> None:
    granted = CLAIMS["ClusterRole", "ddp-operator-claims"]
    templates = Resource("resource.k8s.io", "v1", "resourceclaimtemplates")
    needed = [Permission(verb, templates) for verb in ("get", "create")]
    assert all(covers(granted, permission) for permission in needed)
    assert amount(granted) == len(needed)


def test_gangs_need_three_permissions_for_each_scheduler() -> None:
    granted = GANGS["ClusterRole", "ddp-operator-gangs"]
    for gang in ("native", "coscheduling", "volcano"):
        [needed] = prerequisites(fresh_job(scheduling={"gang": gang}))
        resource = resource_of(needed.manifest)
        verbs = ("get", "create", "update")
        assert all(covers(granted, Permission(verb, resource)) for verb in verbs)
    groups = [group for rule in granted for group in rule["apiGroups"]]
    assert (len(groups), amount(granted)) == (3, 3)


def test_multikueue_needs_seven_more_permissions() -> None:
    granted = MULTIKUEUE["ClusterRole", "ddp-operator-multikueue"]
    job = fresh_job(managedBy="kueue.x-k8s.io/multikueue", scheduling={"queueName": "team"})
    resource = resource_of(multikueue.workload(job, None))
    verbs = ("get", "create", "update", "delete")
    assert all(covers(granted, Permission(verb, resource)) for verb in verbs)
    assert covers(granted, Permission("patch", resource, "status"))
    for metadata, spec in (
        ({"labels": {"kueue.x-k8s.io/priority-class": "a"}}, {}),
        ({}, {"priorityClassName": "a"}),
    ):
        pods = template(**spec) | {"metadata": metadata}
        found = multikueue.priority_class(fresh_job(template=pods))
        assert found is not None
        assert covers(granted, Permission("get", resource_of(found)))
    assert amount(granted) == 7


def test_boosts_need_one_more_permission() -> None:
    granted = BOOSTS["ClusterRole", "ddp-operator-workloads"]
    assert covers(granted, Permission("patch", WORKLOADS))
    assert amount(granted) == 1


def test_reviews_of_metrics_need_two_more_permissions() -> None:
    granted = REVIEWS["ClusterRole", "ddp-operator-metrics-auth"]
    assert all(covers(granted, permission) for permission in startup.NEEDED_TO_REVIEW)
    assert amount(granted) == len(startup.NEEDED_TO_REVIEW)
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
