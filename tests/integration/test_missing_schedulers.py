"""Gangs where no scheduler of that kind is installed, or the operator may not tell it of them."""

from pathlib import Path

from ddp_operator.kube import ApiClient

from tests.good_manifests import job
from tests.integration.jobs import Jobs
from tests.integration.operator_process import running_operator
from tests.integration.pod_groups import VOLCANO, served
from tests.integration.rights import INSTALLED, granted, roles_in, until_said


async def test_what_a_gang_lacks_is_said_until_it_is_there(
    admin: ApiClient, as_operator: Path, jobs: Jobs, tmp_path: Path
) -> None:
    own = jobs.namespace
    options = ["--leader-elect", "--lease-namespace", own]
    async with granted(admin, own, INSTALLED):
        await until_said(as_operator, own, "")
        log = tmp_path / "log"
        with running_operator(as_operator, log, namespace=own, options=options) as process:
            await jobs.create(job(replicas=2, scheduling={"gang": "volcano"}))
            needs = "spec.scheduling.gang: volcano needs Volcano's PodGroups"
            await until_message(jobs, "is forbidden", needs, "manifests/components/gangs")
            async with granted(admin, own, roles_in("components/gangs/rbac.yaml")):
                missing = f"the API server does not serve {VOLCANO} {VOLCANO.version}: {needs}"
                await until_message(jobs, missing)
                status = await jobs.status()
                assert (status.phase, status.reason) == ("Pending", "PodsForbidden")
                assert await jobs.pods() == {}
                async with served(admin, VOLCANO):
                    await jobs.until_pods("job-0-0", "job-0-1")
                    await jobs.discard()
            assert "Traceback" not in process.log


async def until_message(jobs: Jobs, *parts: str) -> None:
    """Wait until the job's message says all of this."""
    await jobs.until(lambda status: all(part in status.message for part in parts))
