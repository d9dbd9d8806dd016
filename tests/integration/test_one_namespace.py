"""An operator that serves its own namespace, with rights nowhere else."""

from pathlib import Path

from ddp_operator.kube import ApiClient

from tests.integration.http_proxy import http_proxy
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import running_operator
from tests.integration.rights import (
    ABOUT_OBJECTS,
    INSTALLED_IN_ONE_NAMESPACE,
    granted,
    namespace_of,
    permissions,
    question,
    until_said,
    use_every_permission,
)


async def test_rights_in_its_own_namespace_are_all_it_needs_and_uses(
    admin: ApiClient, as_operator: Path, jobs: Jobs, kubelet: FakeKubelet, tmp_path: Path
) -> None:
    own = jobs.namespace
    assert {role["kind"] for role in INSTALLED_IN_ONE_NAMESPACE} == {"Role"}
    async with (
        granted(admin, own, INSTALLED_IN_ONE_NAMESPACE),
        http_proxy(as_operator, tmp_path / "proxied") as proxy,
    ):
        await until_said(as_operator, own, "", serves=own)
        options = ["--leader-elect", "--lease-namespace", own]
        with running_operator(
            tmp_path / "proxied", tmp_path / "log", namespace=own, options=options
        ) as process:
            await use_every_permission(proxy, jobs, kubelet)
            assert "jobs will not avoid bad nodes, because a permission is missing" in process.log
    assert [seen for seen in proxy.seen if seen.status == 403] == []
    about_objects = [seen for seen in proxy.seen if seen.path.startswith(ABOUT_OBJECTS)]
    assert {namespace_of(seen) for seen in about_objects} == {own}
    assert sorted({question(seen) for seen in about_objects}) == permissions(
        INSTALLED_IN_ONE_NAMESPACE
    )
