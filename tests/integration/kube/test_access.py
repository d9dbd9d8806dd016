"""What a user may do, and what the server serves, is found out beforehand."""

from pathlib import Path
from typing import Any

import pytest
from ddp_operator.kube import (
    PODS,
    SERVICES,
    ApiClient,
    Permission,
    Resource,
    check_access,
    check_served,
    load_credentials,
)
from ddp_operator.ports import (
    ForbiddenError,
)

from tests.cluster import ControlPlane
from tests.integration.kube.view import JOBS, pod, rewritten
from tests.waiting import eventually


async def test_a_user_without_rights_is_told_what_is_missing(
    control_plane: ControlPlane, admin: ApiClient, namespace: str
) -> None:
    wanted = [
        Permission("create", PODS, namespace=namespace),
        Permission("watch", PODS, namespace=namespace),
        Permission("patch", JOBS, subresource="status", namespace=namespace),
    ]
    path = str(control_plane.kubeconfig_for("operator"))
    async with ApiClient(load_credentials(kubeconfig=path)) as client:
        assert await check_access(client, wanted) == wanted
        with pytest.raises(ForbiddenError, match='User "operator" cannot create resource "pods"'):
            await client.request("POST", PODS.path(namespace=namespace), body=pod(namespace, "a"))
        await grant(admin, namespace, verbs=["create", "watch"], resource=PODS)

        async def only_status_is_missing() -> bool:
            return await check_access(client, wanted) == wanted[2:]

        await eventually(only_status_is_missing)
    assert await check_access(admin, wanted) == []


async def grant(admin: ApiClient, namespace: str, *, verbs: list[str], resource: Resource) -> None:
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    role = {
        "metadata": {"name": "some"},
        "rules": [{"apiGroups": [resource.group], "resources": [resource.plural], "verbs": verbs}],
    }
    binding = {
        "metadata": {"name": "some"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "some"},
        "subjects": [{"kind": "User", "name": "operator", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    await admin.request("POST", f"{rbac}/roles", body=role)
    await admin.request("POST", f"{rbac}/rolebindings", body=binding)


async def test_an_unknown_token_is_refused(control_plane: ControlPlane, tmp_path: Path) -> None:
    def with_wrong_token(config: dict[str, Any]) -> None:
        config["users"][0]["user"]["token"] = "wrong"

    path = rewritten(control_plane.kubeconfig, tmp_path / "wrong", with_wrong_token)
    async with ApiClient(load_credentials(kubeconfig=path)) as client:
        with pytest.raises(ForbiddenError, match="Unauthorized") as raised:
            await client.request("GET", PODS.path())
    assert raised.value.status == 401


async def test_what_is_served_is_known(admin: ApiClient) -> None:
    assert await check_served(admin, JOBS)
    assert await check_served(admin, SERVICES)
    assert not await check_served(admin, JOBS._replace(version="v2"))
    assert not await check_served(admin, JOBS._replace(plural="holidays"))
