"""From a failed rank of eight pods to eight new processes that have torch: in place against anew.

Two jobs on a real node, with the operator, run the same script, which cannot form its group again;
they differ in `restart.scope`. Times are those that the ranks write down: when the one fails, and
when the last of the new processes has imported torch and runs the script.
"""

from __future__ import annotations

import subprocess
import time
from functools import partial
from pathlib import Path

from tests.bench.benchmark import BenchmarkError, Outcome, Settings, spread
from tests.bench.server.control_plane import say
from tests.cluster import ClusterError
from tests.e2e import environment as environments
from tests.e2e.environment import Environment
from tests.e2e.jobs import Job, script_job
from tests.e2e.kubectl import Kubectl, Manifest, wait_for

PODS = 8
SCOPES = ("InPlace", "Gang")
_FAILING_RANK = 3
_SCRIPT = f"""
import os, time, torch
rank, folder = os.environ["RANK"], "/checkpoints"
def tell(what):
    with open(f"{{folder}}/told", "a") as file:
        file.write(f"{{what}} {{rank}} {{time.time()}}\\n")
begun = time.time()
tell("begun")
while True:
    time.sleep(0.005)
    fail = f"{{folder}}/fail"
    asked = os.path.getmtime(fail) if os.path.exists(fail) else 0
    if rank == "{_FAILING_RANK}" and asked > begun:
        tell("failed")
        os._exit(3)
"""


def measure(settings: Settings) -> Outcome:
    """Fail a rank of either job, in turns."""
    try:
        with environments.node_with_images() as node:
            environment = Environment(Kubectl(node.kubeconfig))
            with environment.installed():
                return _report(settings, _restarts(settings, environment), environment)
    except (AssertionError, ClusterError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(str(error)) from error


def _restarts(settings: Settings, environment: Environment) -> dict[str, list[float]]:
    """By scope: seconds of each restart."""
    kubectl = environment.new_namespace()
    found: dict[str, list[float]] = {scope: [] for scope in SCOPES}
    try:
        folders = {}
        for scope in SCOPES:
            claim = environment.make_claim(kubectl, scope.lower())
            folders[scope] = environment.volume_path(kubectl, claim)
            kubectl.apply(_manifest(scope, claim))
        for scope in SCOPES:
            _wait_for_ranks(folders[scope], since=0.0)
            if scope == "InPlace":
                job = Job(kubectl, scope.lower())
                wait_for(partial(_listens, job), what="its first answer", describe=job.status)
        for number in range(settings.repeat):
            for scope in SCOPES:
                say(f"{scope}: {number + 1} of {settings.repeat}")
                found[scope].append(_restart(folders[scope]))
        pods = Job(kubectl, "inplace").uids()
        if any("-r" in name or not name.startswith("inplace-0-") for name in pods):
            raise BenchmarkError(f"pods were replaced in place of processes: {sorted(pods)}")
    finally:
        environment.delete_namespace(kubectl)
    return found


def _listens(job: Job) -> bool | None:
    return True if job.status().bookkeeping.launcher else None


def _manifest(scope: str, claim: str) -> Manifest:
    job = script_job(
        scope.lower(),
        _SCRIPT,
        "python -m ddp_trainer.launch -- python /tmp/script.py",
        replicas=PODS,
        checkpoint={"persistentVolumeClaim": claim},
        restart={"scope": scope, "maxRestarts": 100, "backoff": {"initialSeconds": 0}},
    )
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["env"].append({"name": "OMP_NUM_THREADS", "value": "1"})
    return job


def _restart(folder: Path) -> float:
    """Seconds from the failure of one rank to the last of all new ones."""
    began = time.time()
    (folder / "fail").touch()

    def failure() -> float | None:
        return _told(folder, "failed", since=began).get(_FAILING_RANK)

    failed = wait_for(failure, what="the failure", describe=failure)
    return _wait_for_ranks(folder, since=failed) - failed


def _wait_for_ranks(folder: Path, *, since: float) -> float:
    """When the last rank began that did so after some time."""

    def begun() -> dict[int, float] | None:
        found = _told(folder, "begun", since=since)
        return found if len(found) == PODS else None

    return max(wait_for(begun, what=f"{PODS} ranks", describe=begun).values())


def _told(folder: Path, what: str, *, since: float) -> dict[int, float]:
    """By rank: when it said so last."""
    path = folder / "told"
    lines = path.read_text().splitlines() if path.exists() else []
    entries = [line.split() for line in lines]
    return {
        int(rank): float(at)
        for kind, rank, at in (entry for entry in entries if len(entry) == 3)
        if kind == what and float(at) > since
    }


def _report(settings: Settings, found: dict[str, list[float]], environment: Environment) -> Outcome:
    major, minor = environment.kubectl.server_version()
    lines = [
        f"Kubernetes   {major}.{minor}, one bare node; operator and trainer from their images",
        f"job          {PODS} pods of one rank, a script that imports torch",
        f"repetitions  {settings.repeat}, in turns; shown: median (min-max)",
        "",
        f"{'restart.scope':18}{'s to the last new process':>28}",
        *(f"{scope:18}{spread(seconds, 2):>28}" for scope, seconds in found.items()),
    ]
    return Outcome("\n".join(lines), {**found})
