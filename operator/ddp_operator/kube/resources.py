"""Resources of the Kubernetes API; the only place that builds request paths."""

from typing import NamedTuple

from ddp_operator.ports import Manifest


class Resource(NamedTuple):
    """One kind of object, as in the API server's URLs; `group` is empty for core/v1."""

    group: str
    version: str
    plural: str

    def path(
        self, *, namespace: str | None = None, name: str | None = None, subresource: str = ""
    ) -> str:
        """Return the path of a collection, an object or its subresource; without a namespace, of
        all.
        """
        parts = [self.root]
        if namespace is not None:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)

    @property
    def root(self) -> str:
        """Path of the group and version, which serves discovery."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = Resource("", "v1", "pods")
NAMESPACES = Resource("", "v1", "namespaces")
NODES = Resource("", "v1", "nodes")
SERVICES = Resource("", "v1", "services")
EVENTS = Resource("", "v1", "events")
CONFIG_MAPS = Resource("", "v1", "configmaps")
SECRETS = Resource("", "v1", "secrets")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
CUSTOM_RESOURCE_DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews")
SUBJECT_ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews")


def resource_of(manifest: Manifest) -> Resource:
    """Return the resource of an object. The plural follows from its kind, by Kubernetes' rules."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    kind: str = manifest["kind"].lower()
    if kind.endswith("y"):
        return Resource(group, version, f"{kind[:-1]}ies")
    plural = f"{kind}es" if kind.endswith("s") else f"{kind}s"
    return Resource(group, version, plural)
