"""DDPJobs as a test sees them: what to apply, and what status, pods and logs then say."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ddp_operator.api.constants import API_VERSION, KIND, LABEL_JOB_NAME
from ddp_operator.api.status import DDPJobStatus

from tests.e2e.kubectl import DEADLINE_SECONDS, Kubectl, KubectlError, Manifest, wait_for
from tests.trainer.support import own_digits

TRAINER_IMAGE = "ddp-trainer:dev"
RESTRICTED_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
RESTRICTED_CONTAINER = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    # Further than the standard asks: the trainer image promises to work without.
    "readOnlyRootFilesystem": True,
}

SHORT_RUN = ("--epochs=4", "--checkpoint-every-steps=10", "--log-every-steps=10")
"""92 steps of the digits workload on two ranks."""
SLOW_STEPS = ("--step-delay-seconds=0.15",)
"""Makes a short run last long enough to disturb it: about 14 seconds."""
UNTIL_TOLD = "--workload-option=slow_until=/checkpoints/told"
"""Makes a run of `own_digits` last until `tell_to_end`: it is fast from then on."""


def digits_job(name: str, *arguments: str, image: str = TRAINER_IMAGE, **spec: Any) -> Manifest:
    """Two small pods that train the digits workload; `spec` adds to the job's fields."""
    container = {
        "name": "trainer",
        "image": image,
        "args": ["--workload=digits", *(arguments or SHORT_RUN)],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": RESTRICTED_CONTAINER,
    }
    template = {"spec": {"securityContext": RESTRICTED_POD, "containers": [container]}}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {"replicas": 2, "backend": "gloo", "template": template, **spec},
    }


def script_job(name: str, script: str, command: str, **spec: Any) -> Manifest:
    """Two small pods. Their shell writes a script to /tmp/script.py and then runs a command."""
    manifest = digits_job(name, **spec)
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    del container["args"]
    write = 'printf "%s" "$SCRIPT" > /tmp/script.py'
    container["command"] = ["sh", "-c", f"{write} && exec {command}"]
    container["env"] = [{"name": "SCRIPT", "value": script}]
    return manifest


def own_digits_job(name: str, workload: str, *arguments: str, **spec: Any) -> Manifest:
    """A digits job that trains one of the workloads of `own_digits`."""
    words = ("env", "PYTHONPATH=/tmp", "python", "-m", "ddp_trainer.launch", *arguments)
    command = shlex.join((*words, f"--workload=script:{workload}"))
    return script_job(name, Path(own_digits.__file__).read_text(), command, **spec)


def doubles_job(name: str, *arguments: str, **spec: Any) -> Manifest:
    """A digits job in double precision: how samples are shared changes a loss by a billionth."""
    return own_digits_job(name, "doubles", *arguments, **spec)


@dataclass(frozen=True)
class Job:
    """One DDPJob in the cluster."""

    kubectl: Kubectl
    name: str

    def status(self) -> DDPJobStatus:
        """Return its status."""
        return DDPJobStatus.model_validate(self.kubectl.get("ddpjob", self.name).get("status", {}))

    def wait_until(self, phase: str, *, deadline_seconds: float = DEADLINE_SECONDS) -> DDPJobStatus:
        """Wait for a phase; a job that ends in another one will never have it."""

        def look() -> DDPJobStatus | None:
            status = self.status()
            assert not status.finished or status.phase == phase, (
                f"{self.name} is {status.phase}: {status.message}"
            )
            return status if status.phase == phase else None

        return wait_for(
            look,
            what=f"{self.name} {phase}",
            deadline_seconds=deadline_seconds,
            describe=self.status,
        )

    def wait_until_launcher_answers(self, scope: str = "InPlace") -> None:
        """Wait until the operator knows what the launcher can restart: before, it restarts all
        pods for any loss.
        """
        wait_for(
            lambda: self.status().bookkeeping.launcher == scope,
            what=f"the launcher's answer that it can restart by {scope}",
            describe=self.status,
        )

    def pods(self) -> list[Any]:
        """Its pods, by name."""
        return self.kubectl.items("pods", "--selector", f"{LABEL_JOB_NAME}={self.name}")

    def ended_pods(self) -> dict[str, Any]:
        """Its pods, by their names, as soon as the phases of all of them say that they have ended.

        The job's own end may be known sooner: to the operator, exit codes of containers tell it,
        which a kubelet may report before the phase that follows from them.
        """

        def look() -> dict[str, Any] | None:
            pods = {pod["metadata"]["name"]: pod for pod in self.pods()}
            ended = all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in pods.values())
            return pods if ended else None

        def phases() -> dict[str, str]:
            return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in self.pods()}

        return wait_for(look, what=f"the end of all pods of {self.name}", describe=phases)

    def uids(self) -> dict[str, str]:
        """UIDs of its pods, by the pods' names."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods()}

    def log(self, pod: str) -> str:
        """A pod's log so far; empty while there is none.

        Raises:
            KubectlError: there is one, but it could not be read.
        """
        result = self.kubectl.attempt("logs", pod)
        none_yet = re.search(r"not found|is waiting to start|does not have a host", result.stderr)
        if result.returncode != 0 and not none_yet:
            raise KubectlError(f"kubectl logs {pod}: {result.stderr.strip()}")
        return result.stdout

    def log_with(self, pod: str, text: str) -> str:
        """A pod's log as soon as it holds a text: a container's end may be known before its last
        words are, and a node's agent may be too busy to answer.
        """

        def look() -> str | None:
            with suppress(KubectlError):
                log = self.log(pod)
                return log if text in log else None
            return None

        what = f"{text!r} in the log of {pod}"
        return wait_for(look, what=what, describe=lambda: self.log(pod))

    def events(self) -> list[Any]:
        """Events about the job itself, in the order of their times."""
        selector = f"involvedObject.kind={KIND},involvedObject.name={self.name}"
        return self.kubectl.items(
            "events", "--field-selector", selector, "--sort-by", ".lastTimestamp"
        )


def is_training(job: Job) -> bool:
    """Tell whether a job has saved a checkpoint in its first attempt, and so is training."""
    return "saved checkpoint" in job.log(f"{job.name}-0-0")


def tell_to_end(job: Job, pod: str) -> None:
    """Have a training with `UNTIL_TOLD` end soon."""
    job.kubectl.run("exec", pod, "--", "touch", "/checkpoints/told")


def resumed_step(log: str) -> int:
    """Return the step from which a rank 0 resumed; 0 if it started without a checkpoint."""
    steps = re.findall(
        r"(?:resuming from checkpoint \S+ \(step |continuing from memory at step )(\d+)", log
    )
    return int(steps[-1]) if steps else 0


def last_words(status: DDPJobStatus) -> dict[str, Any]:
    """Rank 0's termination message, as the message of a job that succeeded quotes it."""
    _, separator, words = status.message.partition("rank 0 says: ")
    assert separator, status.message
    found: dict[str, Any] = json.loads(words)
    return found


def accuracy(status: DDPJobStatus) -> float:
    """The accuracy on the test set that a job's last message reports."""
    return float(last_words(status)["accuracy"])


class NothingTrainsError(Exception):
    """A pod has no training process that could be killed, not yet or not any more."""


def kill_rank(job: Job, pod: str) -> None:
    """`kill -9` of the training process in a pod; its launcher, process 1, lives on to tell.

    A launcher that may not restart the process ends with it, and the kernel then kills all other
    processes of the container: the command that killed the process may end with code 137.
    """
    script = """
import os, pathlib
for path in pathlib.Path("/proc").glob("[0-9]*/comm"):
    try:
        if path.read_bytes().startswith(b"ddp-rank-"):
            os.kill(int(path.parent.name), 9)
            print(path.parent.name)
            break
    except (FileNotFoundError, ProcessLookupError):
        pass
"""
    killed = job.kubectl.attempt("exec", pod, "--", "python", "-c", script)
    if killed.returncode not in (0, 137):
        raise KubectlError(f"{pod}: {killed}")
    if killed.returncode == 0 and not killed.stdout.strip():
        raise NothingTrainsError(f"no process trains in {pod}")


def force_delete(job: Job, *pods: str) -> None:
    """Take pods away at once, as when their node is gone."""
    # Kueue's finalizer may keep them for a while.
    job.kubectl.run("delete", "pod", "--force", "--grace-period=0", "--wait=false", *pods)


def dump(kubectl: Kubectl, namespaces: Sequence[str], operator_namespace: str) -> str:
    """Everything that a person would look at first."""
    operator = kubectl.within(operator_namespace)
    commands: list[tuple[str, ...]] = [
        ("--namespace", operator_namespace, "get", "pods", "--output", "wide"),
        ("--namespace", operator_namespace, "get", "events"),
    ]
    for pod in operator.items("pods"):
        commands += [
            ("--namespace", operator_namespace, "describe", "pod", pod["metadata"]["name"]),
            ("--namespace", operator_namespace, "logs", pod["metadata"]["name"]),
        ]
        if any(status["restartCount"] for status in pod["status"].get("containerStatuses", ())):
            commands += [
                ("--namespace", operator_namespace, "logs", "--previous", pod["metadata"]["name"])
            ]
    for namespace in namespaces:
        commands += [
            ("--namespace", namespace, "describe", "ddpjobs,pods"),
            ("--namespace", namespace, "get", "events"),
        ]
        with suppress(KubectlError, ValueError):
            commands += [
                ("--namespace", namespace, "logs", pod["metadata"]["name"], "--tail=60")
                for pod in kubectl.within(namespace).items("pods")
            ]
    parts = []
    for words in commands:
        result = kubectl.attempt(*words)
        parts.append(f"$ kubectl {' '.join(words)}\n{result.stdout}{result.stderr}")
    return "\n".join(parts)


def manifests_in(path: Path) -> list[Any]:
    """The objects of a manifest file."""
    return list(yaml.safe_load_all(path.read_text()))
