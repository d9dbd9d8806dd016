"""The operator's installed permissions, granted to a user of the tests, and a job that uses all of
them.
"""

import contextlib
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Final

import yaml
from ddp_operator.kube import (
    CUSTOM_RESOURCE_DEFINITIONS,
    LEASES,
    NETWORK_POLICIES,
    ApiClient,
    load_credentials,
)
from ddp_operator.ports import ClusterError, Key, Manifest
from ddp_operator.process import startup
from ddp_operator.process.handlers import JOBS

from tests.good_manifests import job
from tests.integration.http_proxy import HttpProxy, Seen, write
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.waiting import eventually

MANIFESTS: Final = Path(__file__).parents[2] / "manifests"
_AUTHORIZATION: Final = "/apis/rbac.authorization.k8s.io/v1"


def roles_in(*files: str) -> list[Manifest]:
    """Return the operator's ClusterRoles and Roles in some of the manifests."""
    return [
        document
        for file in files
        for document in yaml.safe_load_all((MANIFESTS / file).read_text())
        if document["kind"] in ("ClusterRole", "Role")
        and document["metadata"]["name"].startswith("ddp-operator")
    ]


def permissions(roles: Iterable[Manifest]) -> list[tuple[str, str]]:
    """Return each (verb, resource) that the roles grant."""
    return sorted(
        {
            (verb, resource)
            for role in roles
            for rule in role["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
    )


LEASE_NAME: Final = "ddp-operator"
ABOUT_OBJECTS: Final = (
    *("/api/v1/", f"{JOBS.root}/", LEASES.root, NETWORK_POLICIES.root),
    f"{CUSTOM_RESOURCE_DEFINITIONS.root}/",
)
"""Prefixes of paths that roles cover; other requests ask what is served or allowed."""
INSTALLED: Final = roles_in("install/rbac.yaml")
INSTALLED_IN_ONE_NAMESPACE: Final = [
    *(role for role in INSTALLED if role["kind"] == "Role"),
    *roles_in("components/one-namespace/rbac.yaml"),
]


OPERATOR: Final[Manifest] = {
    "apiGroup": "rbac.authorization.k8s.io",
    "kind": "User",
    "name": "operator",
}


class Roles:
    """The rights of a subject, as in the manifests, without what a test removes.

    `namespace` is the operator's own.
    """

    def __init__(
        self, admin: ApiClient, namespace: str, roles: Sequence[Manifest], subject: Manifest
    ) -> None:
        self._admin = admin
        self._subject = subject
        self._roles = roles
        self._suffix = uuid.uuid4().hex[:8]
        self.namespace = namespace

    def _name(self, role: Manifest) -> str:
        return f"{role['metadata']['name']}-{self._suffix}"

    def _path(self, kind: str) -> str:
        where = f"/namespaces/{self.namespace}" if kind.startswith("Role") else ""
        return f"{_AUTHORIZATION}{where}/{kind.lower()}s"

    async def grant(self, *, without: tuple[str, str] | None = None) -> None:
        """Write the roles, either completely or without one verb of one resource."""
        for role in self._roles:
            name, path = self._name(role), self._path(role["kind"])
            rules = [
                {**rule, "verbs": [v for v in rule["verbs"] if (v, what) != without]}
                for rule in role["rules"]
                for what in rule.get("resources", [""])[:1]  # none: rights on URLs
            ]
            rules = [rule for rule in rules if rule["verbs"]]
            body = {**role, "metadata": {"name": name}, "rules": rules}
            try:
                await self._admin.request("PUT", f"{path}/{name}", body=body)
            except ClusterError:
                await self._admin.request("POST", path, body=body)

    async def bind(self) -> None:
        group = {"apiGroup": "rbac.authorization.k8s.io"}
        for role in self._roles:
            binding = {
                "metadata": {"name": self._name(role)},
                "roleRef": {**group, "kind": role["kind"], "name": self._name(role)},
                "subjects": [self._subject],
            }
            await self._admin.request("POST", self._path(f"{role['kind']}Binding"), body=binding)

    async def remove(self) -> None:
        """Delete the roles and bindings."""
        for role in self._roles:
            for path in (self._path(f"{role['kind']}Binding"), self._path(role["kind"])):
                await self._admin.request("DELETE", f"{path}/{self._name(role)}")


@contextlib.asynccontextmanager
async def granted(
    admin: ApiClient, namespace: str, roles: Sequence[Manifest], *, to: Manifest = OPERATOR
) -> AsyncIterator[Roles]:
    """Bind the roles to a subject, by default the user `operator`, during the block."""
    rights = Roles(admin, namespace, roles, to)
    await rights.grant()
    await rights.bind()
    try:
        yield rights
    finally:
        await rights.remove()


async def until_checks_report(
    kubeconfig: Path, lease_namespace: str, expected: str, *, serves: str | None = None
) -> None:
    """Wait until the start-up checks fail with this message, or pass if it is empty.

    The server applies changed roles a moment later.
    """
    report = ""

    async def as_expected() -> bool:
        nonlocal report
        report = ""
        async with ApiClient(load_credentials(kubeconfig=str(kubeconfig))) as client:
            try:
                secret = Key(lease_namespace, startup.SECRET_NAME)
                lease = Key(lease_namespace, LEASE_NAME)
                await startup.check(client, serves, secret=secret, lease=lease)
            except startup.StartupError as error:
                report = str(error)
        return report == expected

    await eventually(
        as_expected, interval_seconds=0.05, describe=lambda: f"{report!r} is not {expected!r}"
    )


_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def permission_for(seen: Seen) -> tuple[str, str]:
    """Return the permission that the server requires for this request."""
    parts = seen.path.split("/")
    if "namespaces" in parts:
        rest = parts[parts.index("namespaces") + 2 :]
    else:
        rest = parts[3 if parts[1] == "api" else 4 :]
    resource = "/".join(rest[::2])
    if seen.method == "GET":
        verb = "watch" if seen.watch else "get" if len(rest) > 1 else "list"
    elif seen.method == "DELETE" and len(rest) == 1:
        verb = "deletecollection"
    else:
        verb = _VERBS[seen.method]
    return verb, resource


async def use_every_permission(proxy: HttpProxy, jobs: Jobs, kubelet: FakeKubelet) -> None:
    """Make the operator use each of its permissions for a job."""
    # After a lost answer the operator reads what it has created.
    proxy.lose_answers(write("POST", "/pods"), times=1)
    proxy.lose_answers(write("POST", "/services"), times=1)
    restart = {"scope": "Pod"}
    manifest = job(
        replicas=2,
        restart=restart,
        ttlSecondsAfterFinished=0,
        isolation="Job",
        progress={"logPattern": r"step (?P<step>\d+)"},
    )
    await jobs.create(manifest)
    await jobs.until_pods("job-0-0", "job-0-1")
    # A new attempt corrects the NetworkPolicy.
    await jobs.admit_all_traffic()
    await jobs.until(lambda status: status.is_true("PodsCreated"))
    await jobs.annotate(restart_requested="1")
    await jobs.until_pods("job-1-0", "job-1-1")
    await jobs.set_spec(isolation="None")
    await eventually(lambda: is_answered(proxy, "DELETE", "/networkpolicies/"))
    for pod in ("job-1-0", "job-1-1"):
        await kubelet.run(pod)
    await jobs.until_phase("Running")
    await eventually(lambda: is_answered(proxy, "GET", "/job-1-0/log"))
    await jobs.delete_pod("job-1-1")
    await jobs.until_pods("job-1-0", "job-1-1-r1")
    await kubelet.run("job-1-1-r1")
    await kubelet.fail("job-1-1-r1")
    await jobs.until_pods("job-1-0", "job-1-1-r2")
    for pod in ("job-1-0", "job-1-1-r2"):
        await kubelet.succeed(pod)

    async def gone() -> bool:
        return not await jobs.exists()

    await eventually(gone, interval_seconds=0.05)
    # The proxy records a request when its answer passes, perhaps after the job is gone.
    await eventually(lambda: is_answered(proxy, "DELETE", "/ddpjobs/"))
    await eventually(lambda: is_answered(proxy, "PUT", "/leases/"))  # renewed


def is_answered(proxy: HttpProxy, method: str, resource: str) -> bool:
    return any(seen.method == method and resource in seen.path for seen in proxy.seen)


def namespace_of(seen: Seen) -> str:
    """Return the namespace of a request; empty for requests about all namespaces."""
    _, _, rest = seen.path.partition("/namespaces/")
    return rest.split("/")[0]
