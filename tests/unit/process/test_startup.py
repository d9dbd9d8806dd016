"""How long a start waits for an API server, and what it logs about a CRD of another release."""

import logging
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from ddp_operator import __version__
from ddp_operator.api.schema.comparison import Difference
from ddp_operator.api.schema.crd import custom_resource_definition
from ddp_operator.job.pods.fabrics import SideCars
from ddp_operator.kube import ApiClient, repeated_log
from ddp_operator.ports import ForbiddenError, Key, NotFoundError, UnavailableError
from ddp_operator.process import crd_fit, startup

OPERATOR = {"name": "operator", "image": "registry.example/operator:1"}
MESH = {"name": "mesh", "image": "mesh:2"}


UNREACHABLE = UnavailableError("connection refused")


async def reach(*answers: Exception | str) -> str:
    """Wait for the API server, which gives these answers in turn."""
    left = [*answers]

    async def look() -> str:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return await startup.when_reachable(look)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(crd_fit, "_CRD_SECONDS", 0.0)


async def test_unreachable_server_is_awaited_and_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = UnavailableError("no route")
    with caplog.at_level(logging.WARNING):
        assert await reach(*[UNREACHABLE] * 1000, other, UNREACHABLE, "here") == "here"
    said = [message.removeprefix("waiting for the API server: ") for message in caplog.messages]
    assert said == ["connection refused", "no route", "connection refused"]
    caplog.clear()
    monkeypatch.setattr(repeated_log, "SECONDS", 0.0)
    with caplog.at_level(logging.WARNING):
        assert await reach(*[UNREACHABLE] * 3, "here") == "here"
    assert len(caplog.messages) == 3


async def test_missing_crd_is_retried_only_after_an_outage() -> None:
    assert await reach(UNREACHABLE, startup.StartupError("no CRD"), "here") == "here"
    with pytest.raises(startup.StartupError, match="no CRD"):
        await reach(startup.StartupError("no CRD"))


async def test_permanent_error_is_raised_at_once() -> None:
    with pytest.raises(ForbiddenError):
        await reach(ForbiddenError("no such user", status=401))


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (
            "v1.29.9",
            "Kubernetes v1.29.9 is too old: upgrade the cluster to Kubernetes 1.30 or later",
        ),
        ("v1.20.2-gke.5", "Kubernetes v1.20.2-gke.5 is too old: upgrade the cluster to Kub"),
        ("v1.30.0-gke.1", "install the CRD first"),
        ("v1.36.3", "install the CRD first"),
        ("unknown", "install the CRD first"),
        (None, "install the CRD first"),
    ],
)
async def test_old_kubernetes_is_refused(version: str | None, error: str) -> None:
    with pytest.raises(startup.StartupError, match=error):
        await startup.check(with_version(version), None, secret=Key("operators", "tokens"))


async def test_own_namespace_as_the_only_served_one_is_refused() -> None:
    client = cast(ApiClient, SimpleNamespace(credentials=SimpleNamespace(pod_namespace="training")))
    with pytest.raises(startup.StartupError, match="--namespace training: the operator runs in th"):
        await startup.check(client, "training", secret=Key("training", "tokens"))


def with_version(version: str | None) -> ApiClient:
    """Return a server of this version without the CRD. None: its version is forbidden."""

    class Bare:
        async def request(self, method: str, path: str) -> dict[str, Any]:
            if path != "/version":
                raise NotFoundError("there is none", status=404)
            assert method == "GET"
            if version is None:
                raise ForbiddenError("may not", status=403)
            return {"gitVersion": version}

    return cast(ApiClient, Bare())


def test_manifests_allow_reading_only_the_operators_secret() -> None:
    rbac = Path(__file__).parents[3] / "manifests/install/rbac.yaml"
    rules = [
        (document["kind"], document["metadata"].get("namespace"), rule)
        for document in yaml.safe_load_all(rbac.read_text())
        for rule in document.get("rules") or ()
        if "secrets" in rule["resources"]
    ]
    own = [rule for kind, _, rule in rules if kind == "Role"]
    assert {namespace for kind, namespace, _ in rules if kind == "Role"} == {"ddp-operator"}
    read = [rule["resourceNames"] for rule in own if rule["verbs"] == ["get"]]
    assert read == [[startup.SECRET_NAME]]
    assert [rule["verbs"] for rule in own] == [["get"], ["create"]]
    elsewhere = [rule["verbs"] for kind, _, rule in rules if kind != "Role"]
    assert elsewhere == [["create"]]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, SideCars()),
        ({}, SideCars()),
        ({"tcpxo": "mirror.example/rxdm:v9"}, SideCars(tcpxo="mirror.example/rxdm:v9")),
        ({"tcpx": f"a@sha256:{'0' * 64}"}, SideCars(tcpx=f"a@sha256:{'0' * 64}")),
    ],
)
async def test_side_cars_of_the_config_map_are_read(
    data: dict[str, str] | None, expected: SideCars
) -> None:
    assert await startup.side_cars(with_config_map(data), "operators") == expected


@pytest.mark.parametrize(
    ("namespace", "answer", "image"),
    [
        ("operators", {"spec": {"containers": [MESH, OPERATOR]}}, "registry.example/operator:1"),
        ("operators", {"spec": {"containers": [MESH]}}, ""),
        ("operators", NotFoundError("there is none", status=404), ""),
        ("operators", ForbiddenError("may not", status=403), ""),
        (None, AssertionError("a pod of that name is another's"), ""),
    ],
)
async def test_operator_finds_its_own_image(
    namespace: str | None, answer: dict[str, Any] | Exception, image: str
) -> None:
    class Pods:
        credentials = SimpleNamespace(pod_namespace=namespace)

        async def request(self, method: str, path: str) -> dict[str, Any]:
            own = f"/api/v1/namespaces/operators/pods/{socket.gethostname()}"
            assert (method, path) == ("GET", own)
            if isinstance(answer, Exception):
                raise answer
            return answer

    assert await startup.own_image(cast(ApiClient, Pods())) == image


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"rdma": "a:1"}, "data.rdma: not a fabric with a side car; choose tcpx or tcpxo"),
        ({"tcpx": "untagged"}, "data.tcpx: not an image with a tag or digest, such as us-docker"),
        ({"tcpx": "a:1", "tcpxo": "not an image:1"}, "data.tcpxo: not an image with a tag"),
        ({"tcpxo": ""}, "data.tcpxo: not an image"),
    ],
)
async def test_invalid_side_cars_are_named(data: dict[str, str], says: str) -> None:
    with pytest.raises(startup.StartupError) as refusal:
        await startup.side_cars(with_config_map(data), "operators")
    assert str(refusal.value).startswith("the ConfigMap operators/ddp-operator-side-cars: data.")
    assert says in str(refusal.value)


def with_config_map(data: dict[str, str] | None) -> ApiClient:
    """Return a server with this ConfigMap of the sidecars; None: it has none."""

    class Config:
        async def request(self, method: str, path: str) -> dict[str, Any]:
            assert (method, path) == (
                "GET",
                "/api/v1/namespaces/operators/configmaps/ddp-operator-side-cars",
            )
            if data is None:
                raise NotFoundError("there is none", status=404)
            return {"data": data} if data else {}

    return cast(ApiClient, Config())


class Server:
    """Answers the requests of the CRD comparison."""

    def __init__(self, crd: dict[str, Any] | None, *, allowed: bool = True) -> None:
        self.crd = crd
        self.allowed = allowed

    async def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        if method == "POST":
            return {"status": {"allowed": self.allowed}}
        assert self.allowed
        assert path.endswith("/customresourcedefinitions/ddpjobs.ddp-operator.io")
        if self.crd is None:
            raise NotFoundError("there is none", status=404)
        return self.crd


async def comparison(
    server: Server, caplog: pytest.LogCaptureFixture
) -> tuple[Difference, list[str]]:
    """Return the last difference, and the log lines with their levels."""
    caplog.clear()
    noted: list[Difference] = []
    with caplog.at_level(logging.INFO):
        await crd_fit.when_crd_fits(cast(ApiClient, server), noted.append)
    return noted[-1], [f"{record.levelname} {record.message}" for record in caplog.records]


async def test_crd_of_this_release_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await comparison(Server(custom_resource_definition()), caplog) == (Difference(), [])
    assert await comparison(Server(None), caplog) == (Difference(), [])


async def test_log_about_another_crd_release_has_a_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    crd, fields = with_fields()
    for name in list(fields["spec"]["properties"])[:7]:
        del fields["spec"]["properties"][name]
    found, [line] = await comparison(Server(crd), caplog)
    assert len(found.lacking) == 7
    assert line.startswith("ERROR the CRD is older than this operator: the server drops or refuses")
    assert " and 4 more: apply the CRD of this release" in line
    fields["spec"]["properties"]["novelty"] = {"type": "integer"}
    found, [_, line] = await comparison(Server(crd), caplog)
    assert found.unknown == {"spec.novelty"}
    assert line.startswith("WARNING the CRD is newer than this operator")
    assert line.endswith("with spec.novelty unchanged: upgrade the operator")


def with_fields() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return this release's CRD, and its fields `spec` and `status`."""
    crd = custom_resource_definition()
    return crd, crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


class UpgradedServer(Server):
    """Has an old CRD, is away for one request, and then has this release's CRD."""

    def __init__(self, old: dict[str, Any], *, after: int) -> None:
        super().__init__(old)
        self._left = after

    async def request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        if method == "GET":
            self._left -= 1
            if self._left == 1:
                raise UNREACHABLE
            if self._left == 0:
                self.crd = custom_resource_definition()
        return await super().request(method, path, **options)


@pytest.mark.parametrize("lacking", ["status.failures[].class", "status.gaps[].reason=Leaving"])
async def test_operator_waits_for_a_crd_that_stores_decisions(
    caplog: pytest.LogCaptureFixture, lacking: str
) -> None:
    crd, fields = with_fields()
    status = fields["status"]["properties"]
    if "=" in lacking:
        status["gaps"]["items"]["properties"]["reason"]["enum"].remove("Leaving")
    else:
        del status["failures"]["items"]["properties"]["class"]
    found, lines = await comparison(UpgradedServer(crd, after=10), caplog)
    assert found == Difference()
    assert lines == [
        "ERROR the CRD is older than this operator, which waits for a newer one before it acts: "
        f"the server drops or refuses {lacking}: apply the CRD of this release, {__version__} "
        "(kubectl apply -f crds/ddpjobs.yaml)",
        "WARNING waiting for the API server: connection refused",
    ]


async def test_operator_acts_although_the_crd_lacks_fields_for_people(
    caplog: pytest.LogCaptureFixture,
) -> None:
    crd, fields = with_fields()
    del fields["status"]["properties"]["progress"]["properties"]["lastStepTime"]
    found, [line] = await comparison(Server(crd), caplog)
    assert found.lacking == {"status.progress.lastStepTime"}
    assert "drops or refuses status.progress.lastStepTime: apply the CRD" in line


async def test_missing_permission_to_read_the_crd_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found, [line] = await comparison(Server(None, allowed=False), caplog)
    assert found == Difference()
    assert line.endswith(
        "get customresourcedefinitions.apiextensions.k8s.io ddpjobs.ddp-operator.io "
        "in all namespaces"
    )
