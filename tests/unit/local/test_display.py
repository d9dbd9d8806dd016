"""The display and the summary claim nothing that was not seen."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ddp_client.local.run.display import PlainDisplay, SafeDisplay
from ddp_client.local.run.kills import KillRequest
from ddp_client.local.run.live import LiveDisplay
from ddp_client.local.run.manifest import job_file, read_job_file
from ddp_client.local.run.run_state import RunState
from ddp_client.local.run.summary import summarise
from ddp_operator.api.constants import KIND
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status.world import World
from ddp_operator.job.pods.state import ContainerExit, Identity, PodState
from ddp_operator.ports import Key
from rich.console import Console

EXAMPLES = Path(__file__).parents[3] / "manifests" / "examples"
COLUMNS = 80


@pytest.fixture
def run_state() -> RunState:
    file = read_job_file(EXAMPLES / "digits-gloo.yaml")
    return RunState(file.job)


def pod(index: int, *, message: str | None = None, ready: bool = True) -> PodState:
    identity = Identity(index=index, attempt=0)
    ended = message and ContainerExit(
        code=0, signal=0, reason="Completed", message=message, finished=None
    )
    return PodState(
        key=Key("default", identity.pod_name("digits-gloo")),
        owner_uid="uid",
        identity=identity,
        spec_hash="",
        phase="Succeeded" if message else "Running",
        ready=ready,
        exit=ended or None,
    )


def finished(job: DDPJob, type_: str) -> DDPJob:
    condition = {
        "type": type_,
        "status": "True",
        "reason": "Completed",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return DDPJob.parse(
        {
            "metadata": {
                "namespace": job.namespace,
                "name": job.name,
                "uid": "uid",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": job.spec.model_dump(mode="json", by_alias=True, exclude_none=True),
            "status": {"phase": type_, "reason": "Why", "conditions": [condition], "restarts": 1},
        }
    )


def summary_of(
    run_state: RunState, tmp_path: Path, *kills: KillRequest
) -> tuple[str, dict[str, str]]:
    (tmp_path / "volumes" / "claim").mkdir(parents=True)
    title, lines = summarise(run_state, kills=kills, workdir=tmp_path, file=Path("job.yaml"))
    return title, dict(lines)


@pytest.mark.parametrize(
    ("line", "step", "total"),
    [
        ("12:00:01 [rank 0] step 10/276 epoch 1 loss 2.1980 937 samples/s", 10, 276),
        ("epoch 3, step 7 / 9", 7, 9),
        ("Step: 12, loss 0.1", 12, None),
        ("step=3", 3, None),
    ],
)
def test_progress_is_read_from_log_lines(
    run_state: RunState, line: str, step: int, total: int | None
) -> None:
    run_state.logged(line)
    assert run_state.progress is not None
    assert (run_state.progress.step, run_state.progress.total_steps) == (step, total)


@pytest.mark.parametrize(
    "line",
    ["saved checkpoint /x/step-00000020 (step 20) in 0.01 s", "the group broke at step 100", "hi"],
)
def test_other_lines_are_ignored(run_state: RunState, line: str) -> None:
    run_state.logged(line)
    assert run_state.progress is None


def test_summary_of_a_success_has_the_report_of_rank_0(run_state: RunState, tmp_path: Path) -> None:
    kill = KillRequest.parse("1@step100")
    never = KillRequest.parse("0@9s")
    run_state.logged("step 100/276 epoch 5")
    run_state.lost(kill, pod(1))
    run_state.logged("[rank 0] resuming from checkpoint /x/step-80 (step 80)")
    run_state.pods_changed(
        [pod(0, message='{"step": 276, "totalSteps": 276, "accuracy": 0.98, "loss": 0.0227}')]
    )
    run_state.job_changed(finished(run_state.job, "Succeeded"))
    title, lines = summary_of(run_state, tmp_path, kill, never)
    assert title.startswith("digits-gloo: Succeeded after")
    assert lines["trained"] == "276 of 276 steps on 2 pods, 98.0% test accuracy, loss 0.0227"
    assert "rank 1 (pod digits-gloo-0-1), killed on purpose" in lines["lost"]
    assert "about step 100" in lines["lost"]
    assert "from the checkpoint of step 80" in lines["resumed"]
    assert "--kill-rank 0@9s" in lines["not killed"]
    assert lines["restarts"] == "1 of 3 allowed, 0 disruptions"
    assert lines["checkpoints"] == str(tmp_path / "volumes" / "claim")
    assert "why" not in lines


def test_pods_are_shown_by_rank(tmp_path: Path) -> None:
    elastic = RunState(read_job_file(EXAMPLES / "elastic-digits.yaml").job)
    elastic.pods_changed([pod(index) for index in range(3)])
    assert [elastic.speaker(each) for each in elastic.pods] == ["rank 0", "rank 1", "pod 2"]
    world = World(generation=2, members="1-2,0")
    status = elastic.job.status.model_copy(update={"world": world})
    elastic.job_changed(replace(elastic.job, status=status))
    assert [elastic.speaker(each) for each in elastic.pods] == ["rank 2", "rank 0", "rank 1"]
    assert elastic.newest_pod(0) == pod(1)
    elastic.pods_changed([pod(0, message='{"step": 1}'), pod(1, message='{"step": 8}'), pod(2)])
    assert summary_of(elastic, tmp_path)[1]["trained"] == "8 steps on 3 pods"


def test_rank_that_resumes_from_memory_reads_no_checkpoint(
    run_state: RunState, tmp_path: Path
) -> None:
    run_state.lost(KillRequest.parse("1@step100"), pod(1))
    run_state.logged(
        "[rank 1] continuing from memory at step 100: rank 0's state, 0.5 MB in 0.01 s"
    )
    run_state.job_changed(finished(run_state.job, "Succeeded"))
    _, lines = summary_of(run_state, tmp_path)
    assert lines["resumed"].startswith("at step 100 from another rank's memory")
    assert run_state.progress is None


def test_summary_leaves_out_what_is_unknown(run_state: RunState, tmp_path: Path) -> None:
    run_state.logged("resuming from checkpoint /x/step-80 (step 80)")  # before any loss
    run_state.lost(KillRequest.parse("1@1s"), pod(1))
    run_state.pods_changed([pod(0, message="Traceback, not JSON")])
    run_state.job_changed(finished(run_state.job, "Failed"))
    title, lines = summary_of(run_state, tmp_path)
    assert "Failed after" in title
    assert not {"trained", "resumed", "try next", "continue with"} & set(lines)
    assert lines["why"].startswith("Why")


def test_summary_tells_of_steps_that_were_trained_again(
    run_state: RunState, tmp_path: Path
) -> None:
    run_state.logged("step 120/276")
    run_state.lost(KillRequest.parse("1@step100"), pod(1))
    run_state.logged("step 1/276")
    run_state.job_changed(finished(run_state.job, "Succeeded"))
    _, lines = summary_of(run_state, tmp_path)
    assert lines["resumed"].startswith("at step 1 again: no line tells of a checkpoint, 0.")


def test_summary_of_a_script_that_logs_no_steps(run_state: RunState, tmp_path: Path) -> None:
    run_state.lost(KillRequest.parse("1@5s"), pod(1))
    run_state.logged("epoch 0")
    run_state.job_changed(finished(run_state.job, "Succeeded"))
    _, lines = summary_of(run_state, tmp_path)
    assert lines["resumed"].endswith("the script may have trained all steps again")


def test_display_that_fails_is_asked_once(run_state: RunState) -> None:
    class Broken(PlainDisplay):
        calls = 0

        def note(self, text: str) -> None:
            self.calls += 1
            raise BrokenPipeError(text)

    broken, failures = Broken(run_state), []
    display = SafeDisplay(broken)
    display.on_failure = lambda: failures.append(1)
    display.note("a")
    display.note("b")
    display.event("Restarting", "why", warning=True)
    assert (broken.calls, failures) == (1, [1])
    assert isinstance(display.error, BrokenPipeError)


def test_stopped_run_shows_how_to_continue(run_state: RunState, tmp_path: Path) -> None:
    title, lines = summary_of(run_state, tmp_path)
    assert "Stopped after" in title
    assert lines["continue with"].endswith(f"local job.yaml --workdir {tmp_path}")


def test_plain_lines_name_rank_and_change(
    run_state: RunState, capsys: pytest.CaptureFixture[str]
) -> None:
    display = PlainDisplay(run_state)
    display.log(pod(1), "hello")
    display.event("Restarting", "why", warning=True)
    display.refresh()
    display.refresh()
    lines = [line.split("s ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "rank 1 | hello",
        "! Restarting: why",
        "= Pending: ready -, attempt 0, restarts 0",
    ]


def test_the_live_view_fits_an_ordinary_terminal(run_state: RunState) -> None:
    output = io.StringIO()
    console = Console(file=output, width=COLUMNS, force_terminal=True, color_system=None)
    run_state.logged("step 138/276 epoch 6 loss 0.1 " + "and more " * 20)
    run_state.pods_changed([pod(0), pod(1, ready=False)])
    display = LiveDisplay(run_state, console)
    with display:
        assert "digits-gloo · Pending" in output.getvalue(), (
            "it is there before anything is printed"
        )
        display.log(pod(0), "word " * 40)
        display.event("Restarting", "sentence " * 20, warning=True)
    lines = re.split(r"[\r\n]+|\x1b\[[0-9;?]*[A-Za-z]", output.getvalue())
    assert max(len(line) for line in lines) == COLUMNS
    shown = "\n".join(lines)
    assert "digits-gloo · Pending" in shown
    assert "step 138/276" in shown
    assert "digits-gloo-0-1" in shown
    assert any(line.startswith("rank 0 │ word") and line.endswith("…") for line in lines)


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_a_valid_job(example: Path) -> None:
    documents = [*yaml.safe_load_all(example.read_text())]
    others = [one for one in documents if one["kind"] != KIND]
    # A claim is a folder here, a class chooses among GKE's machines, and queues and servers are not
    # started here. Nothing else may be lost.
    of_queues = {"ResourceFlavor", "ClusterQueue", "LocalQueue"}
    of_torchft = {"Deployment", "Job", "Service", "NetworkPolicy"}
    for job in (one for one in documents if one["kind"] == KIND):
        ignored = job_file([job, *others], where=example.name).ignored
        kinds = {one.split()[0] for one in ignored}
        assert kinds <= {"PersistentVolumeClaim", "ComputeClass", *of_queues, *of_torchft}
