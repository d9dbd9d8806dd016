"""Launchers that replace the code of their pod between two generations."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from ddp_protocol.code_archive import SENT, STORE, WORK, digest_of, stored_name, unpack
from ddp_protocol.code_packing import make, pack, reference_to
from ddp_trainer.launcher.code import PodCode

from tests.trainer.launcher.test_in_place import JOINED
from tests.trainer.support.pods import is_alive
from tests.trainer.support.worlds import WorldPod, world_job

USES = """
sys.path.insert(0, {work!r})
import value
line["value"] = value.VALUE
"""
"""A rank that imports a module of the code."""


def archive(value: int) -> tuple[str, bytes]:
    """Return ID and archive of code with this value; all have equally many bytes."""
    made = make({"value.py": (f"VALUE = {value}\n".encode(), False)})
    return f"{digest_of(made)}-{value:04}", pack(made)


def code_folder(tmp_path: Path) -> Path:
    """Return a pod's folder, as the init container leaves it."""
    folder = tmp_path / "code"
    folder.mkdir()
    code_id, packed = archive(1)
    unpack(packed, code_id, folder)
    return folder


def send(folder: Path, value: int) -> str:
    """Put an archive where clients put it; return its ID."""
    code_id, packed = archive(value)
    (folder / SENT / code_id).write_bytes(packed)
    return code_id


def tell_last(pod: WorldPod, generation: int, node_rank: int | None, code_id: str) -> None:
    """Send an assignment that ends the pod, perhaps before it answers."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        pod.tell(generation, node_rank, code=code_id)


@pytest.mark.parametrize(
    ("flags", "joined"),
    [(("--no-preload",), ""), ((), ""), (("--no-preload",), JOINED)],
    ids=["command", "fork", "joined"],
)
def test_ranks_restart_with_code_that_was_sent(
    flags: Sequence[str], joined: str, tmp_path: Path
) -> None:
    folder = code_folder(tmp_path)
    prelude = joined + USES.format(work=str(folder / WORK))
    with world_job(tmp_path, prelude=prelude, flags=flags) as job:
        pod = job.start(0, variables={"DDP_CODE_DIR": str(folder)})
        before = pod.wait_for(1)
        (folder / WORK / "loss.csv").write_text("1")
        second = send(folder, 2)
        assert pod.tell(2, 0, code=second, start=False) == (200, 2)
        pod.wait_for_log("generation 2: waiting for the other pods")
        assert not is_alive(before["pid"])
        assert "VALUE = 1" in (folder / WORK / "value.py").read_text(), "it may not start yet"
        assert pod.tell(2, 0, code=second) == (200, 2)
        assert (before["value"], pod.wait_for(2)["value"]) == (1, 2)
        assert pod.tell(3, 0, code=second, graceSeconds=0) == (200, 3)
        if not joined:  # a joined rank continues in another group with the same code
            assert pod.wait_for(3)["value"] == 2
        fourth = send(folder, 4)
        assert pod.tell(4, 0, code=fourth) == (200, 4)
        assert pod.wait_for(4)["value"] == 4
        assert (folder / WORK / "loss.csv").exists()
        pod.wait_for_log(f"the pod has new code: {fourth}")
        assert pod.log.count("the pod has new code:") == 2


def test_status_and_last_words_name_the_code_of_the_ranks(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    reports = """
if os.environ["RANK"] == "0":
    new = pathlib.Path(os.environ["DDP_STATUS_FILE"] + ".new")
    new.write_text(json.dumps({"step": 100 // value.VALUE, "code": "of the script"}))
    new.rename(os.environ["DDP_STATUS_FILE"])
"""
    with world_job(tmp_path, prelude=USES.format(work=str(folder / WORK)) + reports) as job:
        pod = job.start(0, variables={"DDP_CODE_DIR": str(folder)})
        pod.wait_for(1)
        first, second = archive(1)[0], send(folder, 20)
        assert pod.request("GET", "/status") == (200, {"step": 100, "code": first})
        assert pod.tell(2, 0, code=second, start=False) == (200, 2)
        pod.wait_for_log("generation 2: waiting for the other pods")
        assert pod.request("GET", "/status") == (200, {"step": 100, "code": first})
        assert pod.tell(2, 0, code=second) == (200, 2)
        pod.wait_for(2)
        assert pod.request("GET", "/status") == (200, {"step": 5, "code": second})
        job.finish()
        assert pod.wait() == 0
        assert pod.message == {"step": 5, "code": second, "exitCode": 0, "rank": 0}


def test_reference_to_code_in_the_volume_is_followed(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    pod = PodCode.from_env({"DDP_CODE_DIR": str(folder)})
    assert pod is not None
    made = make({"value.py": (b"VALUE = 2\n", False)})
    code_id = f"{digest_of(made)}-0002"
    (folder / SENT / code_id).write_bytes(reference_to(made))
    with pytest.raises(OSError, match="the volume of --code-volume has no file"):
        pod.use(code_id)
    stored = folder / STORE / stored_name(sha256(made).hexdigest())
    stored.parent.mkdir(parents=True)
    stored.write_bytes(pack(made))
    pod.use(code_id)
    assert (pod.id, (folder / WORK / "value.py").read_text()) == (code_id, "VALUE = 2\n")


def test_code_that_was_not_sent_ends_the_pod(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    with world_job(tmp_path) as job:
        pod = job.start(0, variables={"DDP_CODE_DIR": str(folder)})
        pod.wait_for(1)
        code_id, _ = archive(2)
        tell_last(pod, 2, 0, code_id)
        assert pod.wait() == 1
        assert f"code {code_id} was not sent to this pod" in pod.message["error"]
        assert [line["generation"] for line in pod.began()] == [1]


def test_waiting_spare_replaces_its_code_before_it_takes_over(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    with world_job(tmp_path) as job:
        pod = job.start(None, variables={"DDP_CODE_DIR": str(folder)})
        pod.wait_for_log("waiting for an assignment")
        code_id = send(folder, 2)
        assert pod.tell(2, None, code=code_id) == (200, 2)
        pod.wait_for_log(f"the pod has new code: {code_id}")
        lost, _ = archive(3)
        tell_last(pod, 3, None, lost)
        assert pod.wait() == 1, "a spare that fails costs the group nothing"
        assert f"code {lost} was not sent to this pod" in pod.message["error"]
        assert pod.began() == []


def test_damaged_code_ends_the_pod(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    with world_job(tmp_path) as job:
        pod = job.start(0, variables={"DDP_CODE_DIR": str(folder)})
        pod.wait_for(1)
        code_id = send(folder, 2)
        (folder / SENT / code_id).write_bytes(b"cut off")
        tell_last(pod, 2, 0, code_id)
        assert pod.wait() == 1
        assert "it is damaged" in pod.message["error"]


def test_code_that_does_not_fit_a_folder_does_not_fail_the_job(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    with world_job(tmp_path) as job:
        pod = job.start(0, variables={"DDP_CODE_DIR": str(folder)})
        pod.wait_for(1)
        (folder / WORK / "logs").write_text("a file of the training")
        made = make({"logs/a/__init__.py": (b"", False)})
        code_id = f"{digest_of(made)}-0002"
        (folder / SENT / code_id).write_bytes(pack(made))
        tell_last(pod, 2, 0, code_id)
        assert pod.wait() == 1, "a new pod has a new folder"
        assert f"code {code_id} cannot be unpacked" in pod.message["error"]


def test_pod_without_code_ignores_it(tmp_path: Path) -> None:
    with world_job(tmp_path) as job:
        pod = job.start(0)
        pod.wait_for(1)
        assert pod.tell(2, 0, code="aaaaaaaaaaaa-0001") == (200, 2)
        pod.wait_for(2)
