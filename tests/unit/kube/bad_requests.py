"""Requests that the operator never sends, each with the validation of its policy that must refuse
it.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from ddp_operator.api.constants import GROUP, LABEL_JOB_UID

from tests.unit.kube.admission import AdmissionRequest

MANIFESTS: Final = Path(__file__).parents[3] / "manifests"
POLICY, BINDING = yaml.safe_load_all(
    (MANIFESTS / "components/admission-policy/admission-policy.yaml").read_text()
)

OWNED, DOMAIN, PLACE, HOST, PRIVILEGES, HOST_PATHS, HEADLESS, *LATER = POLICY["spec"]["validations"]
SPEC, METADATA, ANNOTATIONS, FINALIZERS, EVENT, LEASE, SECRET, FINISHED = LATER
BOOST: Final = "boost workloads"
"""The update of a Workload that Kueue made for a pod group."""


@dataclass(frozen=True)
class Bad:
    """A request of the operator with one change, and the validation that must refuse it."""

    name: str
    act: str
    change: Callable[[Any], None]
    refused_by: Mapping[str, str]
    changes_old: bool = False
    """The old object is changed, too, so the request itself changes nothing of it."""

    def request(self, good: AdmissionRequest) -> AdmissionRequest:
        """Return the changed request."""
        changed = copy.deepcopy(good)
        if changed.object is not None:
            self.change(changed.object)
        if changed.old_object is not None and (changed.object is None or self.changes_old):
            self.change(changed.old_object)
        return changed


def metadata(**fields: Any) -> Callable[[Any], None]:
    """Set fields of the metadata."""
    return lambda manifest: manifest["metadata"].update(fields)


def without(*path: str) -> Callable[[Any], None]:
    """Remove a field."""

    def change(manifest: Any) -> None:
        for name in path[:-1]:
            manifest = manifest[name]
        del manifest[path[-1]]

    return change


def owner(**fields: Any) -> Callable[[Any], None]:
    """Set fields of the owner."""
    return lambda manifest: manifest["metadata"]["ownerReferences"][0].update(fields)


def with_an_annotation_less(manifest: Any) -> None:
    manifest["metadata"]["annotations"].popitem()


def with_a_new_annotation(manifest: Any) -> None:
    manifest["metadata"]["annotations"]["example.com/more"] = "x"


def of_bootstrap(manifest: Any) -> None:
    manifest["type"] = "bootstrap.kubernetes.io/token"


def no_controller(manifest: Any) -> None:
    del manifest["metadata"]["ownerReferences"][0]["controller"]


def container(**fields: Any) -> Callable[[Any], None]:
    """Set fields of the first container."""
    return lambda manifest: manifest["spec"]["containers"][0].update(fields)


def pod(**fields: Any) -> Callable[[Any], None]:
    """Set fields of a pod's spec."""
    return lambda manifest: manifest["spec"].update(fields)


def init_container(**security_context: Any) -> Callable[[Any], None]:
    """Add an init container with this securityContext."""
    added = {"name": "first", "image": "x", "securityContext": security_context}
    return pod(initContainers=[added])


def host_path(path: str) -> Callable[[Any], None]:
    """Add a volume with a folder of the node."""
    volume = {"name": "node", "hostPath": {"path": path}}
    return lambda manifest: manifest["spec"]["volumes"].append(volume)


def of_all_nodes(manifest: Any) -> None:
    manifest["spec"]["type"] = "NodePort"
    del manifest["spec"]["clusterIP"]


def involved(**fields: Any) -> Callable[[Any], None]:
    """Set fields of an Event's object."""
    return lambda manifest: manifest["involvedObject"].update(fields)


BAD_OWNERS: Final[Mapping[str, Callable[[Any], None]]] = {
    "without owners": without("metadata", "ownerReferences"),
    "with an empty list of owners": metadata(ownerReferences=[]),
    "of a ReplicaSet": owner(kind="ReplicaSet"),
    "of another group": owner(apiVersion="apps/v1"),
    "of a group with the same prefix": owner(apiVersion=f"{GROUP}.example/v1"),
    "of an owner that is no controller": owner(controller=False),
    "of an owner without controller": no_controller,
}

BAD_OWNERS_OF_GROUPS: Final[Mapping[str, Callable[[Any], None]]] = {
    "without owners": without("metadata", "ownerReferences"),
    "of a Job": metadata(ownerReferences=[{"apiVersion": "batch/v1", "kind": "Job"}]),
    "of a pod of another group": metadata(ownerReferences=[{"apiVersion": "a/v1", "kind": "Pod"}]),
}
POLICIES: Final = ("CREATE networkpolicies", "UPDATE networkpolicies", "DELETE networkpolicies")

BAD: Final = [
    *(
        Bad(f"{act} {what}", act, change, OWNED, changes_old=True)
        for act in (
            *("CREATE pods", "UPDATE pods", "DELETE pods", "CREATE services"),
            *("CREATE resourceclaimtemplates", "CREATE podgroups", "UPDATE podgroups", *POLICIES),
            *("CREATE workloads", "UPDATE workloads", "UPDATE workloads/status"),
        )
        for what, change in BAD_OWNERS.items()
        # Kueue would finish a Workload that the job controls.
        if not (" workloads" in act and "controller" in what)
    ),
    *(
        Bad(f"{BOOST} {what}", BOOST, change, OWNED, changes_old=True)
        for what, change in BAD_OWNERS_OF_GROUPS.items()
    ),
    *(
        Bad(f"{act} without a job", act, change, DOMAIN)
        for act in ("CREATE computedomains", "DELETE computedomains")
        for change in (without("metadata", "labels", LABEL_JOB_UID),)
    ),
    Bad("a domain without labels", "DELETE computedomains", without("metadata", "labels"), DOMAIN),
    *(
        Bad(f"{act} in {namespace}", act, metadata(namespace=namespace), PLACE)
        for act in ("CREATE pods", "CREATE services", "CREATE networkpolicies", "CREATE podgroups")
        for namespace in ("kube-system", "kube-node-lease", "ddp-operator")
    ),
    Bad("a Secret of the system", "CREATE secrets", metadata(namespace="kube-system"), PLACE),
    Bad("the node's processes", "CREATE pods", pod(hostPID=True), HOST),
    Bad("the node's memory", "CREATE pods", pod(hostIPC=True), HOST),
    Bad("the node's network", "CREATE pods", pod(hostNetwork=True), HOST),
    Bad(
        "privileged",
        "CREATE pods",
        container(securityContext={"privileged": True}),
        PRIVILEGES,
    ),
    Bad("privileged at first", "CREATE pods", init_container(privileged=True), PRIVILEGES),
    Bad(
        "a capability",
        "CREATE pods",
        init_container(capabilities={"add": ["CHOWN", "SYS_ADMIN"]}),
        PRIVILEGES,
    ),
    Bad("the node's disk", "CREATE pods", host_path("/"), HOST_PATHS),
    Bad("a folder of the node", "CREATE pods", host_path("/var/lib/kubelet"), HOST_PATHS),
    Bad("a Service of all nodes", "CREATE services", of_all_nodes, HEADLESS),
    Bad("a foreign address", "CREATE services", pod(externalIPs=["192.0.2.1"]), HEADLESS),
    Bad("a virtual address", "CREATE services", without("spec", "clusterIP"), HEADLESS),
    Bad("another queue", BOOST, lambda m: m["spec"].update(queueName="other"), SPEC),
    Bad("another status", BOOST, lambda m: m["status"].update(admission=None), SPEC),
    Bad("no status", BOOST, without("status"), SPEC),
    Bad("a label", BOOST, metadata(labels={"a": "b"}), METADATA),
    Bad("a missing pod", BOOST, lambda m: m["metadata"]["ownerReferences"].pop(), METADATA),
    Bad("a held Workload", BOOST, metadata(finalizers=["example.com/mine"]), METADATA),
    Bad("another annotation", BOOST, with_a_new_annotation, ANNOTATIONS),
    Bad("another image", "UPDATE pods", container(image="registry.example/other:1"), SPEC),
    Bad("a deadline", "UPDATE pods", lambda m: m["spec"].update(activeDeadlineSeconds=1), SPEC),
    Bad("a missing field", "UPDATE pods", without("spec", "subdomain"), SPEC),
    Bad("a missing annotation", "UPDATE pods", with_an_annotation_less, ANNOTATIONS),
    Bad("no annotations", "UPDATE pods", without("metadata", "annotations"), ANNOTATIONS),
    Bad("an additional annotation", "UPDATE pods", with_a_new_annotation, ANNOTATIONS),
    Bad("a finalizer", "UPDATE pods", metadata(finalizers=["example.com/mine"]), FINALIZERS),
    Bad("another generated name", "UPDATE pods", metadata(generateName="other-"), METADATA),
    Bad("another owner", "UPDATE pods", owner(name="other", uid="other"), METADATA),
    Bad("a missing owner", "UPDATE pods", without("metadata", "ownerReferences"), METADATA),
    Bad("about a pod", "CREATE events", involved(kind="Pod"), EVENT),
    Bad("about another group", "CREATE events", involved(apiVersion=f"{GROUP}.example/v1"), EVENT),
    Bad("a Lease of another name", "CREATE leases", metadata(name="other-operator"), LEASE),
    Bad("another Secret", "CREATE secrets", metadata(name="other-tokens"), SECRET),
    Bad("a bootstrap token", "CREATE secrets", of_bootstrap, SECRET),
    Bad(
        "a job without a TTL",
        "DELETE ddpjobs",
        without("spec", "ttlSecondsAfterFinished"),
        FINISHED,
    ),
    Bad("a running job", "DELETE ddpjobs", without("status", "completionTime"), FINISHED),
    Bad("a job without a status", "DELETE ddpjobs", without("status"), FINISHED),
]
