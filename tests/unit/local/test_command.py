"""The command from its arguments to its exit code, with scripts that take no time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_client.documents import MAX_BYTES
from ddp_client.local.__main__ import main

Run = Callable[..., tuple[int, str]]


def job(script: str, **spec: Any) -> dict[str, Any]:
    """Return a job of two pods that run a shell script."""
    trainer = {"name": "trainer", "image": "any", "command": ["sh", "-c", script]}
    return {
        "apiVersion": "ddp-operator.io/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": "tiny"},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [trainer]}}, **spec},
    }


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a manifest; return exit code and output (the error output if it is refused)."""

    def run(*documents: Any, arguments: tuple[str, ...] = ()) -> tuple[int, str]:
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump_all(documents))
        code = main([str(file), "--workdir", str(tmp_path / "work"), *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_a_job_that_succeeds(run: Run, tmp_path: Path) -> None:
    script = 'echo "step $((NODE_RANK + 5))/9"; [ $WORLD_SIZE = 2 ]'
    code, output = run(job(script))
    assert code == 0
    assert "rank 0 | step 5/9" in output
    assert "rank 1 | step 6/9" in output
    assert "Succeeded: all 2 pods completed" in output
    assert "tiny: Succeeded after" in output
    assert (tmp_path / "work" / "logs" / "tiny-0-1.log").read_text() == "step 6/9\n"


def test_doubtful_command_gets_a_note(run: Run) -> None:
    manifest = job("exit 0")
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["args"] = ["--lr", "1"]
    code, output = run(manifest)
    assert code == 0
    assert "--lr 1: the shell's line does not use these words" in output


def test_job_of_another_controller_runs(run: Run) -> None:
    elsewhere = {"managedBy": "kueue.x-k8s.io/multikueue", "scheduling": {"queueName": "team"}}
    code, _ = run(job("exit 0", **elsewhere))
    assert code == 0


def test_failing_job_is_restarted_up_to_max_restarts(run: Run) -> None:
    code, output = run(job("exit 3", restart={"maxRestarts": 2, "backoff": {"initialSeconds": 0}}))
    assert code == 3
    assert "restart 2 of 2" in output
    assert "tiny: Failed after" in output
    assert "MaxRestartsExceeded: spec.restart.maxRestarts (2) is used up" in output


def test_a_wrong_configuration_is_not_restarted(run: Run) -> None:
    code, output = run(job("exit 64"))
    assert code == 3
    assert "ConfigurationError" in output
    assert "0 of 3 allowed" in output


def test_missing_module_fails_at_once_with_advice(run: Run) -> None:
    manifest = job("")
    (trainer,) = manifest["spec"]["template"]["spec"]["containers"]
    trainer["command"] = ["python", "-c", "import no_such_module"]
    code, output = run(manifest)
    assert code == 3
    assert "ConfigurationError" in output
    assert "install no_such_module for the Python that runs the job" in output
    assert "0 of 3 allowed" in output


HANGING = """
import http.server, os, sys
if os.environ["DDP_ATTEMPT"] == "1":
    sys.exit()
class Trainer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"step": 7}')
    def do_POST(self):
        assert self.headers["Authorization"].startswith("DDP-HMAC-SHA256 ")
        print("stacks of rank", os.environ["RANK"], flush=True)
        self.send_response(202)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("", int(os.environ["DDP_STATUS_PORT"])), Trainer).serve_forever()
"""


def test_hanging_script_shows_stacks_and_restarts(run: Run) -> None:
    manifest = job("", progressDeadlineSeconds=1)
    (trainer,) = manifest["spec"]["template"]["spec"]["containers"]
    trainer["command"] = ["python", "-c", HANGING]
    code, output = run(manifest, arguments=("--progress-poll-seconds", "0.2"))
    assert code == 0
    assert "NoProgress: stuck at step 7" in output
    assert "rank 0 | stacks of rank 0" in output
    assert "rank 1 | stacks of rank 1" in output
    assert "1 of 3 allowed" in output


def test_pod_that_can_never_start_ends_the_run(run: Run) -> None:
    manifest = job("exit 0")
    (trainer,) = manifest["spec"]["template"]["spec"]["containers"]
    trainer["env"] = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    code, output = run(manifest)
    assert code == 3
    assert "tiny: Did not start after" in output
    assert "env TOKEN uses valueFrom" in output


def test_rank_killed_at_a_time_restarts_the_gang(run: Run) -> None:
    script = "[ $DDP_ATTEMPT = 1 ] || exec sleep 1000"
    code, output = run(job(script), arguments=("--kill-rank", "1@0s"))
    assert code == 0
    assert "rank 1 (pod tiny-0-1) with SIGKILL, as --kill-rank 1@0s requests" in output
    why = "restart 1 of 3; no launcher answers"
    assert f"as attempt 1 ({why}): pod tiny-0-1 (node rank 1) was killed" in output
    assert "rank 1 (pod tiny-0-1), killed on purpose" in output
    assert "1 of 3 allowed" in output


def test_rank_killed_at_a_step_is_replaced(run: Run) -> None:
    # Rank 1 blocks until it is killed; its replacement finds the mark of the first one.
    script = """
    if [ $NODE_RANK = 1 ]; then
      if [ -e $MARKS/first ]; then touch $MARKS/second; exit 0; fi
      touch $MARKS/first; echo step 7/9; exec sleep 1000
    fi
    until [ -e $MARKS/second ]; do sleep 0.01; done
    """
    manifest = job(script, restart={"scope": "Pod"}, checkpoint={"persistentVolumeClaim": "claim"})
    (trainer,) = manifest["spec"]["template"]["spec"]["containers"]
    trainer["env"] = [{"name": "MARKS", "value": "$(DDP_CHECKPOINT_DIR)"}]
    code, output = run(manifest, arguments=("--kill-rank", "1@step7"))
    assert code == 0
    assert "replacing the pod of node rank 1" in output
    assert "killed on purpose" in output
    assert "about step 7" in output
    assert "1 of 3 allowed" in output


def test_kill_after_the_end_is_reported(run: Run) -> None:
    code, output = run(job("exit 0"), arguments=("--kill-rank", "1@3600s"))
    assert code == 0
    assert "--kill-rank 1@3600s: the run ended before that moment" in output


def test_config_map_in_the_same_file_is_mounted(run: Run) -> None:
    manifest = job("")
    pod_spec = manifest["spec"]["template"]["spec"]
    pod_spec["containers"][0] |= {
        "command": ["python", "/scripts/main.py"],
        "volumeMounts": [{"name": "scripts", "mountPath": "/scripts"}],
    }
    pod_spec["volumes"] = [{"name": "scripts", "configMap": {"name": "scripts"}}]
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "scripts"},
        "data": {"main.py": "import os\nprint('hello from', os.environ['RANK'])\n"},
    }
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "unused"}}
    code, output = run(config_map, manifest, claim)
    assert code == 0
    assert "rank 1 | hello from 1" in output
    assert "ignored here: PersistentVolumeClaim unused" in output


_ON_A_FABRIC = {"type": "nvidia-b200", "count": 8, "network": "auto"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"apiVersion": "ddp-operator.io/v9"}, "set it to ddp-operator.io/v1alpha1"),
        ({"metadata": {}}, "metadata.name is missing"),
        ({"metadata": {"name": "Upper"}}, "metadata.name: at most 50 lower-case letters"),
        ({"kind": "PyTorchJob"}, "exactly one DDPJob, this file has 0"),
        ({"spec": {}}, "spec.template: field required"),
        ({"spec": ["no"]}, "spec must hold fields"),
        ({"spec": job("", replicas=0)["spec"]}, "spec.replicas: input should be greater"),
        ({"spec": job("", replica=2)["spec"]}, "spec.replica: unknown field"),
        ({"spec": job("", suspend=True)["spec"]}, "spec.suspend is true"),
        (
            {"spec": job("", accelerator=_ON_A_FABRIC)["spec"]},
            "spec.accelerator.network: this machine has no GKE network for GPUs; set it to none",
        ),
        (
            {"spec": job("", accelerator={"type": "nvidia-l4"})["spec"]},
            "the job requests 2 GPUs in all, this machine has none",
        ),
    ],
)
def test_bad_input_is_refused_with_the_remedy(
    run: Run, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, output = run(job("exit 0") | change)
    assert code == 2
    assert output.startswith("error: ")
    assert message in output


@pytest.mark.parametrize(
    ("replicas", "script", "is_noted"),
    [
        (1, 'test -d "$DDP_MEMORY_DIR" && test $DDP_MEMORY_BYTES = 16777216', False),
        (2, 'test -z "$DDP_MEMORY_DIR"', True),
    ],
)
def test_memory_checkpoints_need_a_single_pod(
    run: Run, replicas: int, script: str, is_noted: bool
) -> None:
    memory = {"sizeLimit": "16Mi", "copies": 0}
    code, output = run(job(script, replicas=replicas, memoryCheckpoint=memory, isolation="Job"))
    assert code == 0
    assert ("spec.memoryCheckpoint has no effect here" in output) is is_noted
    assert "spec.isolation has no effect here" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--progress-poll-seconds", "0"), "use a number of seconds, 0.1 to 3600"),
        (("--kill-rank", "1@5"), "'1@5' is not RANK@SECONDSs or RANK@stepSTEP"),
        (("--kill-rank", "@5s"), "is not RANK@SECONDSs"),
        (("--kill-rank", "2@5s"), "--kill-rank 2@5s: use a rank from 0 to 1"),
    ],
)
def test_invalid_option_is_refused(run: Run, arguments: tuple[str, ...], message: str) -> None:
    code, output = run(job("exit 0"), arguments=arguments)
    assert code == 2
    assert message in output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "is not YAML"),
        ("just words", "something other than Kubernetes objects"),
        (yaml.safe_dump_all([job(""), job("")]), "this file has 2 (tiny, tiny)"),
        ("a: [" + "1," * 400_000 + "]", "more than 100000 values"),
        ("a: " + "x" * MAX_BYTES, "more than 2097152 bytes; split it"),
        (None, "cannot read"),
    ],
)
def test_invalid_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    file = tmp_path / "job.yaml"
    if content is not None:
        file.write_text(content)
    assert main([str(file)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["a.yaml", "--nonsense"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "usage: python -m ddp_client.local" in capsys.readouterr().err


def test_default_container_of_kubectl_is_the_trainer(run: Run) -> None:
    document = job("exit 0", replicas=1)
    template = document["spec"]["template"]
    template["metadata"] = {"annotations": {"kubectl.kubernetes.io/default-container": "main"}}
    [main] = template["spec"]["containers"]
    logs = {"name": "logs", "image": "any", "command": ["sh", "-c", "exit 9"]}
    template["spec"]["containers"] = [logs, {**main, "name": "main"}]
    code, said = run(document)
    assert code == 0, said
    assert "other containers of the pod do not run here: logs" in said


@pytest.mark.parametrize(
    ("fields", "field", "remedy"),
    [
        ({"env": [{"name": "N", "value": 0}]}, "containers[0].env[0].value: 0", "use quotes"),
        ({"env": [{"name": "B", "value": True}]}, "env[0].value: true", "use quotes"),
        ({"args": ["--lr", 0.1]}, "containers[0].args[1]: 0.1", "use quotes"),
        ({"args": "--lr 1"}, "containers[0].args: is one text", "write a list"),
    ],
)
def test_manifest_that_a_cluster_refuses_is_refused(
    run: Run, fields: dict[str, Any], field: str, remedy: str
) -> None:
    document = job("exit 0", restart={"maxRestarts": 0})
    document["spec"]["template"]["spec"]["containers"][0] |= fields
    code, said = run(document)
    assert code == 2
    assert field in said
    assert remedy in said
