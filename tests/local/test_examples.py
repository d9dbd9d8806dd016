"""The examples on this machine: real training and real failures."""

import asyncio
import re
import signal
from pathlib import Path

import pytest
import yaml
from ddp_client import report
from ddp_client.local.run.record import FILE_NAME
from ddp_client.report.files import read_run
from ddp_trainer import workloads

from tests.local.command import kill_rank, processes_of, running
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
GPT = EXAMPLES / "gpt-gloo.yaml"


async def test_digits_finishes_after_a_lost_rank(tmp_path: Path) -> None:
    async with running(
        EXAMPLES / "digits-gloo.yaml", tmp_path, "--kill-rank", "1@step60"
    ) as command:
        code = await command.wait()
    assert code == 0, command.output
    assert "rank 1 (pod digits-gloo-0-1) with SIGKILL" in command.output
    resumed = re.search(r"resumed +at step (\d+) from another rank's memory", command.output)
    assert resumed, command.output
    assert int(resumed[1]) >= 59, "at most the current step is taken again"
    assert "resuming from checkpoint" not in command.output
    trained = re.search(r"trained +276 of 276 steps on 2 pods, ([\d.]+)% test", command.output)
    assert trained, command.output
    assert float(trained[1]) >= 97.0
    assert "1 of 3 allowed" in command.output
    assert processes_of(tmp_path) == []

    made = report.build(read_run(tmp_path))
    assert (made.phase, made.step, made.gaps) == ("Succeeded", 276, ())
    assert [pod.name for pod in made.pods] == [
        *("digits-gloo-0-0", "digits-gloo-0-1", "digits-gloo-0-1-r1"),
    ]
    [recovery] = made.recoveries
    assert (recovery.rank, recovery.pod) == (1, "digits-gloo-0-1")
    assert all(part is not None for part in recovery.parts), recovery.parts
    assert len(made.points) == 28
    assert made.saves is not None
    assert {save.step for save in made.saves.rows} >= {20, 260, 276}
    assert sum(rank.times for rank in made.ranks) == 28
    assert "DDP_TOKEN" not in (tmp_path / FILE_NAME).read_text()


@pytest.mark.nightly
async def test_elastic_job_grows_and_shrinks_with_the_same_steps(tmp_path: Path) -> None:
    file = EXAMPLES / "elastic-digits.yaml"
    async with running(file, tmp_path, "--kill-rank", "1@step120") as command:
        await command.read_until("training continues with 3 pods: 1 more joined")
        assert await command.wait() == 0, command.output
    assert "training continues with 2 of 3 pods, without node rank 1" in command.output
    resumed = re.findall(r"group of 2 ranks .*\n.* continuing from memory at step", command.output)
    assert resumed, command.output
    assert "resuming from checkpoint" not in command.output
    trained = re.search(r"trained +240 of 240 steps on [23] pods, ([\d.]+)%", command.output)
    assert trained, command.output
    assert float(trained[1]) >= 97.0


async def test_stopped_run_continues_where_it_was(tmp_path: Path) -> None:
    async with running(EXAMPLES / "digits-gloo.yaml", tmp_path) as command:
        await command.read_until("step 30/276")
        command.process.send_signal(signal.SIGINT)
        assert await command.wait() == 130, command.output
    stopped = re.search(r"told to stop at step (\d+) of 276", command.output)
    assert stopped, command.output
    assert "digits-gloo: Stopped after" in command.output
    assert processes_of(tmp_path) == []

    async with running(EXAMPLES / "digits-gloo.yaml", tmp_path) as command:
        await command.read_until(f"(step {stopped[1]})\n")
        assert "resuming from checkpoint" in command.output
        assert len(processes_of(tmp_path)) > 2, "the check for processes must be able to find some"
        # No process may outlive the command, even if it was killed.
        command.process.kill()
        assert await command.wait() == -signal.SIGKILL
        await eventually(
            lambda: not processes_of(tmp_path), describe=lambda: processes_of(tmp_path)
        )


@pytest.mark.nightly
async def test_two_jobs_of_any_script_run_at_once(tmp_path: Path) -> None:
    async with (
        running(EXAMPLES / "any-script.yaml", tmp_path / "a") as first,
        running(EXAMPLES / "any-script.yaml", tmp_path / "b") as second,
    ):
        codes = await asyncio.gather(first.wait(), second.wait())
    for code, command in zip(codes, (first, second), strict=True):
        assert code == 0, command.output
        assert "rank 0 | step 100/100" in command.output


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "step_40"), [("huggingface", "'epoch': '2.5'"), ("lightning", "'step': 40")]
)
async def test_framework_resumes_from_memory_after_a_killed_rank(
    name: str, step_40: str, tmp_path: Path
) -> None:
    """In one pod of two ranks: here, several pods keep no snapshots."""
    job, script = yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text())
    one_pod = {"replicas": 1, "nprocPerNode": 2}
    job["spec"] |= {**one_pod, "memoryCheckpoint": {"sizeLimit": "64Mi", "copies": 0}}
    [container] = job["spec"]["template"]["spec"]["containers"]
    container["env"].append({"name": "STEPS", "value": "200"})  # the last one counts
    file, workdir = tmp_path / f"{name}.yaml", tmp_path / "run"
    file.write_text(yaml.safe_dump_all([job, script]))
    async with running(file, workdir) as command:
        await command.read_until(step_40)
        kill_rank(workdir, 1)
        assert await command.wait() == 0, command.output
    resumed = re.search(r"RestoredFromMemory: the ranks resume at step (\d+)", command.output)
    assert resumed, command.output
    assert int(resumed[1]) in range(5, 200, 5), "a step that was saved"
    assert re.search(r"trained +200 of 200 steps on 1 pods, loss", command.output), command.output
    assert "1 of 3 allowed" in command.output


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "steps"), [("huggingface", 300), ("lightning", 600)])
async def test_framework_trains_in_two_pods(name: str, steps: int, tmp_path: Path) -> None:
    async with running(EXAMPLES / f"{name}.yaml", tmp_path) as command:
        await command.read_until("rank 0 | {")  # the first numbers
        assert await command.wait() == 0, command.output
    trained = rf"trained +{steps} of {steps} steps on 2 pods, loss"
    assert re.search(trained, command.output), command.output


@pytest.mark.nightly
async def test_gpt_learns_to_guess_the_next_byte(tmp_path: Path) -> None:
    async with running(GPT, tmp_path) as command:
        assert await command.wait() == 0, command.output
    trained = re.search(r"trained +132 of 132 steps on 2 pods, ([\d.]+)% test", command.output)
    assert trained, command.output
    (arguments,) = re.findall(r"--workload-option=(text_bytes)=(\d+)", GPT.read_text())
    test = workloads.load("gpt", dict([arguments])).test
    _, targets = test.batch(range(len(test)))
    most_frequent = 100 * int(targets.flatten().bincount().max()) / targets.numel()
    assert float(trained[1]) > most_frequent + 3.0
