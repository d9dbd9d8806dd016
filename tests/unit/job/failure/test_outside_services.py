"""Tests of programs that end because a server or storage outside of the job failed."""

import json
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.job.failure import symptoms
from ddp_operator.job.failure.classes import of_pod
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.planning.plan import plan
from ddp_protocol.world import PodFailure

from tests.unit.job.builders import ended, fresh_job, later, listening, running_job, stored
from tests.unit.job.failure.test_budget import fails, running_again, start

BUCKET = "503 GET https://storage.googleapis.com/storage/v1/b/data/o/x?alt=json"
GCS = f"google.api_core.exceptions.ServiceUnavailable: {BUCKET}: We encountered an internal error."
FUSE = "OSError: [Errno 5] Input/output error: '/gcs/train/shard-00017.tar'"
DNS = "socket.gaierror: [Errno -3] Temporary failure in name resolution"
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 5, in <module>
    batch = next(loader)
{error}
"""
OUTSIDE = {
    "gcs": GCS,
    "gcs, retried": f"google.api_core.exceptions.RetryError: Timeout of 120.0s exceeded: {BUCKET}",
    "gcs, with a page": f"{GCS}\n<html>\n<p>try again in 30 seconds\n</html>",
    "s3": "botocore.exceptions.ClientError: An error occurred (InternalError) when calling the "
    "GetObject operation (reached max retries: 4): We encountered an internal error.",
    "fuse": FUSE,
    "fuse, without path": "OSError: [Errno 5] Input/output error",
    "dns": DNS,
    "dns, of a host": "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='x.com', "
    "port=443): Max retries exceeded with url: / (Caused by NameResolutionError('Failed to resolve "
    "'x.com' ([Errno -3] Temporary failure in name resolution)'))",
    "in a worker": f"{GCS.partition(':')[0]}: Caught ServiceUnavailable in DataLoader worker "
    f"process 0.\nOriginal {TRACEBACK.format(error=GCS)}",
}
INSIDE = {
    "another failure": f"retrying after {GCS}\n" + TRACEBACK.format(error="ValueError: bad batch"),
    "another failure, handled in between": TRACEBACK.format(error=FUSE)
    + "trying again\n"
    + TRACEBACK.format(error="KeyError: 'image'"),
    "no exception": f"retrying after {GCS}\nretrying after {GCS}\nno data, so nothing to do",
    "refused": "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://x.com",
    "missing": "google.api_core.exceptions.NotFound: 404 GET https://storage.googleapis.com/b/x",
    "unknown host": "socket.gaierror: [Errno -2] Name or service not known",
    "full disk": "OSError: [Errno 28] No space left on device",
}


def printed(output: str, rank: int = 1) -> str:
    """Return the launcher's report about a script that printed this and failed."""
    error = f"rank {rank} ended with exit code 1\n{output}"
    return json.dumps({"exitCode": 1, "rank": rank, "error": error, "printed": True})


@pytest.mark.parametrize("how", [str, printed])
@pytest.mark.parametrize(
    ("output", "expected"),
    [
        *(pytest.param(text, "Infrastructure", id=name) for name, text in OUTSIDE.items()),
        *(pytest.param(text, "Application", id=name) for name, text in INSIDE.items()),
    ],
)
def test_class_of_a_program_that_ended(output: str, expected: str, how: Any) -> None:
    text = output if "Traceback" in output else "epoch 1\n" + TRACEBACK.format(error=output)
    assert of_pod(ended(fresh_job(), 0, code=1, message=how(text))) == expected


@pytest.mark.parametrize(
    "how",
    [{"code": 137}, {"code": 139}, {"code": 137, "reason": "OOMKilled"}],
    ids=["killed", "crashed", "out-of-memory"],
)
def test_killed_program_did_not_end_because_of_the_server(how: dict[str, Any]) -> None:
    pod = replace(ended(fresh_job(), 0, message=GCS, **how), memory_limited=True)
    assert of_pod(pod) == "Application"


def test_rank_0_that_cannot_be_resolved_is_no_outside_service() -> None:
    text = (
        "[W1121 socket.cpp:767] [c10d] The IPv6 network addresses of (digits-0-0.digits, 29500) "
        "cannot be retrieved (gai error: -3 - Temporary failure in name resolution).\n"
        "[rank1]: torch.distributed.DistNetworkError: The client socket has timed out after 600s "
        "while trying to connect to (digits-0-0.digits, 29500).\n"
    )
    assert not symptoms.is_of_service(text)


@pytest.mark.parametrize("text", [GCS, FUSE, DNS])
def test_first_restarts_are_free_and_no_node_is_blamed(text: str) -> None:
    job = start(maxRestarts=2, backoff={"initialSeconds": 5, "maxSeconds": 300})
    pauses = []
    for charged in (False, False, False, True, True):
        planned = fails(job, message=TRACEBACK.format(error=text))
        assert (planned.status.phase, planned.status.reason) == ("Restarting", "ServiceFailed")
        failure = planned.status.failures[-1]
        assert (failure.class_, failure.charged) == ("Infrastructure", charged)
        due = planned.status.next_start_time
        pauses.append((due - later(60)).total_seconds() if due else 0)
        job = running_again(job, planned)
    assert pauses == [0, 10, 20, 20, 40]
    assert (job.status.bookkeeping.nodes, job.status.excluded_nodes) == ((), ())
    ended_job = fails(job, message=text).status
    assert (ended_job.phase, ended_job.reason) == ("Failed", "MaxRestartsExceeded")


def test_pod_stays_after_the_first_failure_in_place() -> None:
    job, pods = running_job(replicas=3, restart={"scope": "InPlace"})
    pods = [replace(listening(each), node="node-a") for each in pods]
    listens = LauncherStates(scope="InPlace")
    job = stored(job, plan(job, pods, later(20), launchers=listens))
    for generation, replaced in ((0, {}), (1, {"1": 1})):
        at = 60 + 60 * generation
        failure = PodFailure(
            pod=pods[1].key.name,
            generation=generation,
            exit_code=1,
            message=printed(TRACEBACK.format(error=FUSE)),
            time=later(at).isoformat(),
        )
        planned = plan(job, pods, later(at + 1), launchers=replace(listens, failures=(failure,)))
        assert planned.status.failures[-1].action == "RestartInPlace"
        assert planned.status.bookkeeping.replacements == replaced
        job = stored(job, planned)
        knowing = replace(listens, told={each.key.name: (1, True) for each in pods})
        job = stored(job, plan(job, pods, later(at + 20), launchers=knowing))
