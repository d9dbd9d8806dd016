"""Tests of failure classes by exit code, reason and message, and of failure records."""

import json
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus, Failure
from ddp_operator.job.failure import records
from ddp_operator.job.failure.classes import is_hopeless, is_secondary, of_pod
from ddp_operator.job.pods.state import PodState
from hypothesis import given
from hypothesis import strategies as st

from tests.good_manifests import container, template
from tests.unit.job.builders import NOW, ended, fresh_job, pod

BAD_COMMAND = 'exec: "trian.py": executable file not found in $PATH: unknown'


def printed(output: str) -> str:
    """Return the launcher's report about a script that printed `output` and failed."""
    error = f"rank 0 ended with exit code 1\nTraceback (most recent call last):\n{output}"
    return json.dumps({"exitCode": 1, "rank": 0, "error": error, "printed": True})


ECC = "CUDA error: uncorrectable ECC error encountered"
DIFFERS = "rank 2 differs from the other ranks after step 40; "
FLIPPED = "last equal at step 30: flipped bits in memory"
BY_END: dict[str, dict[str, dict[str, Any]]] = {
    "Application": {
        "error": {"code": 1},
        "crash": {"code": 139},
        "lost its peer": {"code": 75},
        "some script's exit code 71": {"code": 71},
        "over its own memory limit": {"code": 137, "oom": True},
        "an own failure, under the launcher": {"code": 1, "message": printed("ValueError: no")},
        "pod's own deadline": {"code": 143, "reason": "DeadlineExceeded"},
    },
    "Infrastructure": {
        "no limit, and the node ran out": {"code": 137, "oom": True, "memory_limited": False},
        "broken GPU": {"code": 1, "message": ECC},
        "broken GPU, under the launcher": {"code": 1, "message": printed(ECC)},
        "flipped bits": {"code": 71, "message": DIFFERS + FLIPPED},
        "wrong gradients": {"code": 71, "message": f"{DIFFERS}gradients {FLIPPED}"},
        "runtime cannot start it": {
            "code": 128,
            "exit_reason": "StartError",
            "message": "nvidia-container-cli: timeout",
        },
    },
    "Configuration": {
        "wrong configuration": {"code": 64},
        "command does not exist": {
            "code": 128,
            "exit_reason": "StartError",
            "message": BAD_COMMAND,
        },
    },
    "Disruption": {
        "wrong configuration, but evicted": {"code": 64, "reason": "Evicted"},
        "evicted": {"code": 137, "reason": "Evicted"},
        "node rebooted": {"code": 137, "exit_reason": "ContainerStatusUnknown"},
        "preempted": {"code": 143, "disruption": "PreemptionByScheduler"},
    },
}
REFUSED = {
    "UnexpectedAdmissionError": "Infrastructure",
    "TopologyAffinityError": "Infrastructure",
    "InvalidNodeInfo": "Infrastructure",
    "OutOfnvidia.com/gpu": "Disruption",
    "NodeAffinity": "Disruption",
    "TaintToleration": "Disruption",
    "NodePorts": "Disruption",
}
"""Reasons of pods that a kubelet refused, and their classes."""


def end(
    *, exit_reason: str = "Error", oom: bool = False, code: int, message: str = "", **state: Any
) -> PodState:
    reason = "OOMKilled" if oom else exit_reason
    found = ended(fresh_job(), 0, code=code, reason=reason, message=message)
    return replace(found, **state)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        pytest.param(how, class_, id=name)
        for class_, cases in BY_END.items()
        for name, how in cases.items()
    ],
)
def test_class_of_a_pod_that_ended(how: dict[str, Any], expected: str) -> None:
    assert of_pod(end(**how)) == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        *(({"phase": "Failed", "reason": reason}, class_) for reason, class_ in REFUSED.items()),
        ({"deleting": True}, "Disruption"),
        ({"waiting": "ImagePullBackOff", "waiting_message": "x: not found"}, "Infrastructure"),
        ({"waiting": "ImagePullBackOff", "waiting_message": "x: 503"}, "Disruption"),
        ({"waiting": "CreateContainerConfigError"}, "Infrastructure"),
        (
            {
                "waiting": "CreateContainerConfigError",
                "waiting_message": "couldn't find key k in Secret default/s",
            },
            "Configuration",
        ),
        ({"waiting": "RunContainerError"}, "Infrastructure"),
    ],
    ids=str,
)
def test_class_of_a_pod_that_never_ran(state: dict[str, Any], expected: str) -> None:
    assert of_pod(pod(fresh_job(), 0, **state)) == expected


def test_only_unrepairable_configuration_is_hopeless() -> None:
    hopeless = [
        end(code=64),
        end(code=128, exit_reason="StartError", message=BAD_COMMAND),
        pod(fresh_job(), 0, waiting="InvalidImageName"),
    ]
    assert all(is_hopeless(one) for one in hopeless)
    assert not is_hopeless(pod(fresh_job(), 0, waiting="ImagePullBackOff"))
    assert not is_hopeless(end(code=1))


@pytest.mark.parametrize(
    ("how", "secondary"),
    [
        ({"code": 75}, True),
        ({"code": 143}, True),
        ({"code": 143, "reason": "DeadlineExceeded"}, False),
        ({"code": 1, "message": "RuntimeError: Connection closed by peer"}, True),
        ({"code": 1, "message": "ValueError: no"}, False),
        ({"code": 137, "oom": True, "message": "Connection closed by peer"}, False),
        # The message is about an earlier group, which has formed again since.
        ({"code": 137, "message": "the group broke (Connection reset by peer)"}, False),
        ({"code": 1, "message": "CUDA error: uncorrectable ECC error\nncclRemoteError"}, False),
        # The launcher has classified the error: its exit code decides.
        ({"code": 1, "message": '{"error": "Connection closed by peer"}'}, False),
        # The output of a script counts as without the launcher.
        ({"code": 1, "message": printed("RuntimeError: Connection closed by peer")}, True),
        ({"code": 1, "message": printed("ValueError: no")}, False),
        ({"code": 1, "message": '{"step": 1}\nRuntimeError: Connection closed by peer'}, True),
        ({"code": 1, "message": printed("a line\nCUDA error: uncorrectable ECC error")}, False),
        ({"code": 137, "message": printed("RuntimeError: Connection closed by peer")}, False),
    ],
)
def test_secondary_failures(how: dict[str, Any], *, secondary: bool) -> None:
    assert is_secondary(end(**how)) is secondary


def record_of(job: DDPJob, index: int = 0, **how: Any) -> Failure:
    return records.of_pod(job, ended(job, index, **how), NOW)


class TestRecord:
    def test_launcher_report_gives_rank_and_error(self) -> None:
        job = fresh_job(nprocPerNode=4)
        report = json.dumps({"step": 7, "rank": 6, "exitCode": 3, "error": "ValueError: no"})
        record = record_of(job, 1, code=3, message=report)
        assert (record.index, record.rank, record.message) == (1, 6, "ValueError: no")
        assert "(node rank 1, rank 6) exited with code 3" in records.describe(record)
        of_another_pod = record_of(job, 1, code=3, message='{"rank": 0}')
        assert of_another_pod.rank is None

    def test_output_of_a_script_under_the_launcher_is_its_message(self) -> None:
        error = 'ValueError: --lr "-3" is no learning rate'
        record = record_of(fresh_job(), code=1, message=printed(error))
        assert record.message.endswith(f"\n{error}")
        assert records.describe(record).endswith(f": {error}")

    @pytest.mark.parametrize("message", ["{", '{"rank": "one"}', "{}", '{"error": 3}'])
    def test_invalid_report_is_kept_as_the_message(self, message: str) -> None:
        record = record_of(fresh_job(), 1, code=3, message=message)
        assert (record.rank, record.message) == (1, message)

    def test_end_of_a_long_log_is_kept(self) -> None:
        record = record_of(fresh_job(), 1, code=1, message="x\n" * 2000 + "ValueError: no")
        assert record.message.endswith("ValueError: no")
        assert records.describe(record).endswith("on node node-a: ValueError: no")

    def test_injected_launcher_without_python_is_explained(self) -> None:
        trainer = template(container(command=["./train"]))
        job, plain = fresh_job(launcher="inject", template=trainer), fresh_job(template=trainer)
        error = 'exec: "python3": executable file not found in $PATH: unknown'
        not_started: dict[str, Any] = {"code": 128, "reason": "StartError", "message": error}
        record = record_of(job, **not_started)
        assert record.class_ == "Configuration"
        text = records.describe(record)
        assert (
            "spec.launcher: inject needs Python 3.11 or newer in the image; take an image" in text
        )
        assert text.endswith(error)
        assert record_of(plain, **not_started).message == error
        assert record_of(job, code=1, message=error).message == error, "the script has started"

    def test_record_of_a_pod_that_cannot_start(self) -> None:
        stuck = pod(fresh_job(), 0, waiting="ImagePullBackOff", waiting_message="no such image")
        record = records.of_pod(fresh_job(), stuck, NOW)
        assert (record.reason, record.message) == ("ImagePullBackOff", "no such image")
        text = records.describe(record)
        assert text == "pod digits-0-0 (node rank 0) cannot start: ImagePullBackOff: no such image"


@given(
    charged=st.lists(st.booleans(), min_size=1, max_size=40),
    attempts=st.lists(st.integers(0, 2), min_size=40, max_size=40).map(sorted),
)
def test_records_keep_the_latest_ten_and_the_first_charged_one(
    charged: list[bool], attempts: list[int]
) -> None:
    status, recorded = DDPJobStatus(), []
    for at, (counts, attempt) in enumerate(zip(charged, attempts, strict=False)):
        status = status.model_copy(update={"attempt": attempt})
        failed = ended(fresh_job(), 0, code=1, at=at, attempt=attempt)
        record = records.of_pod(fresh_job(), failed, NOW).model_copy(update={"charged": counts})
        recorded.append(record)
        status = records.remember(status, record)
    kept = list(status.failures)
    assert len(kept) == min(len(recorded), records.MAX_FAILURES)
    assert kept == sorted(kept, key=lambda failure: failure.time)
    assert kept[-1] == recorded[-1]
    began = [f for f in recorded if f.charged and f.attempt == status.attempt]
    assert not began or began[0] in kept
    rest = [failure for failure in kept if failure not in began[:1]]
    others = [failure for failure in recorded if failure not in began[:1]]
    assert rest == others[len(others) - len(rest) :]
