"""Tests of hostile termination messages: they neither delay nor stop the operator."""

import time

import orjson
import pytest
from ddp_client.views.job.known_errors import known_error
from ddp_operator.job.failure import classes, records, symptoms
from ddp_operator.job.planning.plan import plan

from tests.unit.job.builders import ended, later, running_job

BYTES = 4096
"""The kubelet's limit of a termination message."""
LOOP_SECONDS = 0.05
"""The limit of the time that one message may take."""

REPEATED = {
    "transports": "gloo/transport/",
    "commands": 'exec: "',
    "executions": "exec ",
    "waits": "timed out after ",
    "errors of the network": "DistNetworkError: ",
    "errors of the driver": "Xid (",
    "errors of GPUs": "Xid (): 13 ",
    "root causes": "Root Cause (first observed failure):\n",
    "ranks": " rank : 1 x\n",
    "exceptions": "aError:\n",
    "exceptions of modules": "[rank1]: a.b.c.dError: x\n",
    "dots": "a.",
    "log lines": "[W0000 ",
    "tracebacks": "Traceback (most recent call last)",
    "brackets": '{"":',
    "nothing": "\0",
    "spaces": " ",
    "lines": "\n",
}


def prepared(*words: str) -> str:
    """Return the words repeated up to the size of a message."""
    share = BYTES // len(words)
    return "".join((word * share)[:share] for word in words)


@pytest.mark.parametrize("first", REPEATED)
def test_no_message_takes_long_to_classify(first: str) -> None:
    texts = [
        prepared(REPEATED[first], *([second] if second else []))
        for second in ("", *REPEATED.values())
    ]
    slowest = max(min(seconds_for(text) for _ in range(3)) for text in texts)
    assert slowest < LOOP_SECONDS


def seconds_for(message: str) -> float:
    """Return the CPU seconds that a pod's message takes."""
    job, _ = running_job()
    pod = ended(job, code=1, message=message)
    for function in (
        symptoms.is_of_another_rank,
        symptoms.is_of_node,
        symptoms.is_of_service,
        symptoms.is_of_command,
        symptoms.torchrun_rank,
        symptoms.headline,
    ):
        function.cache_clear()
    began = time.process_time()
    classes.is_secondary(pod)
    failure = records.of_pod(job, pod, later(60))
    classes.is_consequence(failure)
    records.describe(failure)
    known_error(failure.message, failure.reason)
    return time.process_time() - began


@pytest.mark.parametrize(
    "message",
    [
        '{"":' * 1000,
        '{"rank": 0, "error": "\\ud800 is half a letter"}',
        '{"rank": [], "error": {}}',
        '{"rank": 1e999, "error": NaN, "step": ' + "9" * 3000 + "}",
        "\0\x1b[2J\ufffd",
    ],
    ids=["deep", "half a letter", "other types", "large numbers", "no text"],
)
def test_no_message_stops_the_plan(message: str) -> None:
    job, pods = running_job()
    planned = plan(job, [ended(job, code=1, message=message), *pods[1:]], later(60))
    [failure] = planned.status.failures
    assert failure.exit_code == 1
    assert orjson.dumps(planned.status.model_dump(mode="json"))


def test_torchrun_report_is_found_among_repetitions() -> None:
    report = (
        "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n"
        "  exitcode  : 1 (pid: 21567)\n"
    )
    assert symptoms.torchrun_rank(" rank : 1 x\n" * 100 + report) == 1
    assert symptoms.is_of_node("Xid (0): 13 \n Xid (0): 79, GPU has")
    assert not symptoms.is_of_node("Xid (0): 13 \n Xid (0): 43,")
