"""Incidents that users of other operators have reported in public."""

from __future__ import annotations

import signal
from typing import Any, Final

from ddp_operator.api.constants import LABEL_INDEX

from tests.e2e.jobs import force_delete
from tests.e2e.kubectl import wait_for
from tests.incidents import faults
from tests.incidents.scene import Incident, Scene
from tests.incidents.verdict import Expected


def _spin(scene: Scene) -> None:
    scene.order("spin", 1)


def _lose_replacement(scene: Scene) -> None:
    """Lose the pod that takes a lost pod's place before it has trained a step."""
    lost = scene.pod(1)["metadata"]["name"]
    force_delete(scene.job, lost)

    def replacement() -> Any:
        names = [
            pod["metadata"]["name"]
            for pod in scene.pods()
            if pod["metadata"]["labels"][LABEL_INDEX] == "1"
            and "deletionTimestamp" not in pod["metadata"]
        ]
        return next((name for name in names if name != lost), None)

    name = wait_for(replacement, what="the replacement", describe=scene.job.status)
    force_delete(scene.job, name)


def _damage_checkpoint(scene: Scene) -> None:
    """Change a byte of the newest checkpoint, and lose all pods before there is a newer one."""
    scene.wait_for_steps(25)
    pods = [scene.pod(0), scene.pod(1)]
    faults.signal_rank(pods[0], signal.SIGSTOP)
    newest = max(path.parent for path in scene.checkpoints.glob("step-*/manifest.json"))
    state = max(newest.iterdir(), key=lambda path: path.stat().st_size)
    with state.open("r+b") as file:
        file.seek(state.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 0xFF]))
    force_delete(scene.job, *(pod["metadata"]["name"] for pod in pods))
    after = scene.pod(0)["metadata"]["name"]
    scene.wait_for_steps()
    first = next(step.step for step in scene.steps()[0] if step.pod == after)
    damaged = int(newest.name.split("-")[1])
    assert 1 < first <= damaged, f"resumed at step {first}; the checkpoint of {damaged} is damaged"


def _delete_claim(scene: Scene) -> None:
    """Delete the claim of the checkpoints and both pods, and restore the claim when it is gone."""
    claim, environment = scene.incident.name, scene.victim.environment
    names = [scene.pod(index)["metadata"]["name"] for index in (0, 1)]
    scene.kubectl.run("delete", "--wait=false", f"pvc/{claim}")
    scene.kubectl.run("delete", "--wait=false", "pods", *names)
    wait_for(
        lambda: claim not in [one["metadata"]["name"] for one in scene.kubectl.items("pvc")],
        what="the end of the claim",
        describe=scene.job.status,
    )
    wait_for(
        lambda: "persistentvolumeclaim" in scene.job.status().message,
        what="the missing claim in the status",
        describe=scene.job.status,
    )
    scene.kubectl.run("delete", f"pv/{scene.kubectl.namespace}-{claim}")
    environment.make_claim(scene.kubectl, claim)


PUBLIC: Final = (
    Incident(
        name="busy-hang",
        what="a hang with a busy processor",
        done="one rank's data loader computes forever",
        inject=_spin,
        spec={"progressDeadlineSeconds": 20},
        expected=Expected(class_="Application", words=r"NoProgress: .*rank 1", charged=1),
    ),
    Incident(
        name="lost-replacement",
        what="a replacement that is lost, too",
        done="a pod is removed, and the pod in its place before it trains",
        inject=_lose_replacement,
        torchrun=False,
        plain=False,
        expected=Expected(
            failures=range(1, 3),
            words="Deleted|Vanished",
            new_pods=range(2, 3),
            new_groups=range(1, 3),
        ),
    ),
    Incident(
        name="damaged-checkpoint",
        what="a damaged checkpoint",
        done="a byte of the newest checkpoint changes, then all pods are removed",
        inject=_damage_checkpoint,
        torchrun=False,
        plain=False,
        expected=Expected(
            failures=range(1, 3),
            words="Deleted|Vanished",
            new_pods=range(2, 3),
            new_groups=range(2),
        ),
    ),
    Incident(
        name="deleted-claim",
        what="a volume that is deleted while its pods end",
        done="the checkpoints' claim and all pods are deleted; the claim comes back later",
        inject=_delete_claim,
        torchrun=False,
        plain=False,
        expected=Expected(
            failures=range(1, 3),
            words="Deleted|Vanished",
            new_pods=range(2, 3),
            new_groups=range(2),
        ),
    ),
)
