"""The rights that the operator is installed with, as those of a user of the tests, and a life of a
job that uses every one of them.
"""

import uuid
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml
from ddp_operator.kube import ApiClient
from ddp_operator.ports import ClusterError

from tests.good_manifests import job
from tests.integration.http_proxy import HttpProxy, Seen, write
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.waiting import eventually

RBAC: Final = Path(__file__).parents[2] / "manifests/install/rbac.yaml"
_AUTHORIZATION: Final = "/apis/rbac.authorization.k8s.io/v1"


def installed_role(kind: str) -> dict[str, Any]:
    """The ClusterRole, or the Role in its own namespace, that the operator is installed with."""
    documents = yaml.safe_load_all(RBAC.read_text())
    role: dict[str, Any] = next(
        document
        for document in documents
        if document["kind"] == kind and document["metadata"]["name"] == "ddp-operator"
    )
    return role


def permissions(role: dict[str, Any]) -> set[tuple[str, str]]:
    """All (verb, resource) that a role grants."""
    return {
        (verb, resource)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


LEASE_NAME: Final = "ddp-operator"
KINDS: Final = ("ClusterRole", "Role")
PERMISSIONS: Final = sorted(set().union(*(permissions(installed_role(kind)) for kind in KINDS)))


class Roles:
    """The ClusterRole and the Role of the user `operator`, as installed but for what a test takes
    away; `namespace` is the operator's own.
    """

    def __init__(self, admin: ApiClient, namespace: str) -> None:
        self._admin = admin
        self.namespace = namespace
        self.name = f"operator-{uuid.uuid4().hex[:8]}"

    def _path(self, kind: str) -> str:
        where = f"/namespaces/{self.namespace}" if kind.startswith("Role") else ""
        return f"{_AUTHORIZATION}{where}/{kind.lower()}s"

    async def grant(self, *, without: tuple[str, str] | None = None) -> None:
        """Write the roles, complete or without one verb of one resource."""
        for kind in KINDS:
            role = deepcopy(installed_role(kind))
            role["metadata"] = {"name": self.name}
            role["rules"] = [
                {
                    **rule,
                    "verbs": [v for v in rule["verbs"] if without != (v, rule["resources"][0])],
                }
                for rule in role["rules"]
            ]
            role["rules"] = [rule for rule in role["rules"] if rule["verbs"]]
            path = self._path(kind)
            try:
                await self._admin.request("PUT", f"{path}/{self.name}", body=role)
            except ClusterError:
                await self._admin.request("POST", path, body=role)

    async def bind(self) -> None:
        """Give the roles to the user."""
        group = {"apiGroup": "rbac.authorization.k8s.io"}
        for kind in KINDS:
            binding = {
                "metadata": {"name": self.name},
                "roleRef": {**group, "kind": kind, "name": self.name},
                "subjects": [{**group, "kind": "User", "name": "operator"}],
            }
            await self._admin.request("POST", self._path(f"{kind}Binding"), body=binding)

    async def remove(self) -> None:
        """Take all of it away again."""
        for kind in KINDS:
            for path in (self._path(f"{kind}Binding"), self._path(kind)):
                await self._admin.request("DELETE", f"{path}/{self.name}")


VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def question(seen: Seen) -> tuple[str, str]:
    """The permission that the server asks for when it gets this request."""
    parts = seen.path.split("/")
    rest = parts[parts.index("namespaces") + 2 :] if "namespaces" in parts else parts[-1:]
    resource = "/".join(rest[::2])
    if seen.method == "GET":
        verb = "watch" if seen.watch else "get" if len(rest) > 1 else "list"
    else:
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[
            seen.method
        ]
    return verb, resource


async def use_every_permission(proxy: HttpProxy, jobs: Jobs, kubelet: FakeKubelet) -> None:
    """Take a job through everything for which the operator asks the server for something else."""
    # An answer that is lost makes the operator look for what it has created.
    proxy.lose_answers(write("POST", "/pods"), times=1)
    proxy.lose_answers(write("POST", "/services"), times=1)
    manifest = job(replicas=2, restart={"scope": "Pod"}, ttlSecondsAfterFinished=0)
    await jobs.create(manifest)
    await jobs.until_pods("job-0-0", "job-0-1")
    for pod in ("job-0-0", "job-0-1"):
        await kubelet.run(pod)
    await jobs.until_phase("Running")
    await jobs.delete_pod("job-0-1")
    await jobs.until_pods("job-0-0", "job-0-1-r1")
    await kubelet.run("job-0-1-r1")
    await kubelet.fail("job-0-1-r1")
    await jobs.until_pods("job-0-0", "job-0-1-r2")
    for pod in ("job-0-0", "job-0-1-r2"):
        await kubelet.succeed(pod)

    async def gone() -> bool:
        return not await jobs.exists()

    await eventually(gone, interval_seconds=0.05)
    # A request is seen when its answer passes, the job's deletion perhaps after the job is gone.
    await eventually(lambda: is_answered(proxy, "DELETE", "/ddpjobs/"))
    await eventually(lambda: is_answered(proxy, "PUT", "/leases/"))  # renewed


def is_answered(proxy: HttpProxy, method: str, resource: str) -> bool:
    return any(seen.method == method and resource in seen.path for seen in proxy.seen)


def namespace_of(seen: Seen) -> str:
    """The namespace that a request is about; empty for requests about all of them."""
    _, _, rest = seen.path.partition("/namespaces/")
    return rest.split("/")[0]
