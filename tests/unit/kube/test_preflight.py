import pytest
from ddp_operator.kube import (
    PODS,
    ApiClient,
    Permission,
    Resource,
    check_access,
    check_served,
    list_uids,
)
from ddp_operator.kube.errors import GoneError
from ddp_operator.ports import Key, UnavailableError

from tests.unit.kube.fake_api_server import FakeApiServer, Fault

JOBS = Resource("example.com", "v1", "trainings")


def test_paths_of_resources() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path(namespace="ns", name="a") == "/api/v1/namespaces/ns/pods/a"
    assert (
        JOBS.path(namespace="ns", name="a", subresource="status")
        == "/apis/example.com/v1/namespaces/ns/trainings/a/status"
    )


async def test_missing_permissions_are_listed_in_order(
    client: ApiClient, server: FakeApiServer
) -> None:
    wanted = [
        Permission("create", PODS),
        Permission("list", JOBS),
        Permission("patch", JOBS, subresource="status", namespace="ns"),
        Permission("delete", PODS, namespace="ns"),
    ]
    assert await check_access(client, wanted) == []
    server.denied = {("delete", "pods"), ("patch", "trainings")}
    missing = await check_access(client, wanted)
    assert [str(permission) for permission in missing] == [
        "patch trainings/status.example.com in namespace ns",
        "delete pods in namespace ns",
    ]
    attributes = [r.body["spec"]["resourceAttributes"] for r in server.requests]
    assert {
        "verb": "patch",
        "group": "example.com",
        "resource": "trainings",
        "subresource": "status",
        "namespace": "ns",
        "name": "",
    } in attributes


async def test_missing_resource_is_not_served(client: ApiClient, server: FakeApiServer) -> None:
    assert not await check_served(client, JOBS)
    server.resource_lists = {JOBS.root: ["others"]}
    assert not await check_served(client, JOBS)
    server.resource_lists = {JOBS.root: ["others", "trainings", "trainings/status"]}
    assert await check_served(client, JOBS)
    server.faults = [Fault("GET", 503, {"message": "starting"}, times=99)]
    with pytest.raises(UnavailableError):
        await check_served(client, JOBS)


async def test_uids_are_listed_by_metadata_alone(client: ApiClient, server: FakeApiServer) -> None:
    for index in range(5):
        server.create("trainings", {"metadata": {"namespace": "ns", "name": f"j{index}"}})
    uids = await list_uids(client, JOBS.path(), page_size=2)
    assert uids == {Key("ns", f"j{index}"): f"uid-{index + 1}" for index in range(5)}
    assert len(server.requests) == 3
    assert all("PartialObjectMetadataList" in r.headers["Accept"] for r in server.requests)


async def test_expired_list_is_an_error(client: ApiClient, server: FakeApiServer) -> None:
    """Half a list would make the others look deleted."""
    for index in range(3):
        server.create("trainings", {"metadata": {"namespace": "ns", "name": f"j{index}"}})
    server.faults = [Fault("GET", 410, {"message": "expired"}, path_part="continue")]
    with pytest.raises(GoneError, match="expired"):
        await list_uids(client, JOBS.path(), page_size=2)
