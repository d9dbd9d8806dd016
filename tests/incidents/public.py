"""Incidents that users of other operators have reported in public."""

from __future__ import annotations

import signal
import struct
import zipfile
from pathlib import Path
from typing import Any, Final

from tests.e2e.jobs import force_delete
from tests.incidents import faults
from tests.incidents.scene import Incident, Scene, SpoiledError
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
            if pod["metadata"]["labels"][scene.index] == "1"
            and "deletionTimestamp" not in pod["metadata"]
        ]
        return next((name for name in names if name != lost), None)

    name = scene.wait(replacement, what="the replacement")
    force_delete(scene.job, name)


def _damage_checkpoint(scene: Scene) -> None:
    """Change a byte of the newest checkpoint, and lose all pods before there is a newer one."""
    scene.wait_for_steps(25)
    pods = [scene.pod(0), scene.pod(1)]
    faults.signal_rank(pods[0], signal.SIGSTOP)
    if scene.plain:
        damaged, state = 0, scene.checkpoints / "state.pt"
        place = _first_weight(state)
    else:
        newest = max(path.parent for path in scene.checkpoints.glob("step-*/manifest.json"))
        damaged = int(newest.name.split("-")[1])
        state = max(newest.iterdir(), key=lambda path: path.stat().st_size)
        place = state.stat().st_size // 2
    with state.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 0xFF]))
    force_delete(scene.job, *(pod["metadata"]["name"] for pod in pods))
    after = scene.pod(0)["metadata"]["name"]
    scene.wait_for_steps()
    first = next(step.step for step in scene.steps()[0] if step.pod == after)
    if not scene.plain:
        assert 1 < first <= damaged, f"resumed at {first}; the checkpoint of {damaged} is damaged"
    elif first > 1:  # it has one checkpoint alone
        raise SpoiledError("trains on with a damaged weight")


def _first_weight(file: Path) -> int:
    """Return the place of the first byte of the first tensor in a file of torch.save: a ZIP file
    without compression.
    """
    with zipfile.ZipFile(file) as archive, file.open("rb") as data:
        [entry] = [one for one in archive.infolist() if one.filename.endswith("/data/0")]
        data.seek(entry.header_offset)
        name, extra = struct.unpack("<26xHH", data.read(30))
    return int(entry.header_offset + 30 + name + extra)


def _delete_claim(scene: Scene) -> None:
    """Delete the claim of the checkpoints and both pods, and restore the claim when it is gone."""
    claim, environment = scene.incident.name, scene.victim.environment
    names = [scene.pod(index)["metadata"]["name"] for index in (0, 1)]
    scene.kubectl.run("delete", "--wait=false", f"pvc/{claim}")
    scene.kubectl.run("delete", "--wait=false", "pods", *names)
    scene.wait(
        lambda: claim not in [one["metadata"]["name"] for one in scene.kubectl.items("pvc")],
        what="the end of the claim",
    )
    scene.wait_until_claim_is_missed()
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
        plain=False,
        expected=Expected(
            failures=range(1, 3),
            words="Deleted|Vanished",
            new_pods=range(2, 3),
            new_groups=range(2),
        ),
    ),
)
