"""Paths on a pod's own disk, where checkpoints are lost with the pod."""

import tracemalloc
from typing import Any

import pytest
from ddp_operator.api.local_paths import dies_with_pods, local_paths, lost_paths, named_paths
from ddp_operator.api.spec.checkpoint import MemoryCheckpoint
from ddp_operator.job.pods.environment import environment
from ddp_operator.job.pods.state import Identity

from tests.good_manifests import container, template
from tests.unit.cpu_budget import loops
from tests.unit.job.builders import fresh_job

OWN: dict[str, Any] = {"name": "own", "emptyDir": {}}
SHARED: dict[str, Any] = {"name": "own", "persistentVolumeClaim": {"claimName": "nfs"}}


def spec(volume: dict[str, Any] | None, path: str, *argv: str, **fields: Any) -> Any:
    mounts = [{"name": "own", "mountPath": path}] if volume else []
    one = container(command=list(argv), volumeMounts=mounts, **fields)
    made = template(one)
    made["spec"]["volumes"] = [volume] if volume else []
    return fresh_job(replicas=2, template=made).spec


@pytest.mark.parametrize(
    ("volume", "path", "dies"),
    [
        (None, "", True),
        (OWN, "/elsewhere", True),
        (OWN, "/checkpoints", True),
        ({"name": "own", "ephemeral": {"volumeClaimTemplate": {}}}, "/checkpoints", True),
        (SHARED, "/checkpoints", False),
        (SHARED, "/", False),
        (SHARED, "/check", True),
        ({"name": "own", "hostPath": {"path": "/mnt"}}, "/checkpoints/", False),
    ],
)
def test_checkpoints_outside_of_a_shared_volume_die_with_their_pods(
    volume: dict[str, Any] | None, path: str, *, dies: bool
) -> None:
    assert dies_with_pods(spec(volume, path)) is dies


@pytest.mark.parametrize("where", [{"persistentVolumeClaim": "c"}, {"gcsBucket": "abc"}])
def test_checkpoint_volume_outlives_pods(where: dict[str, str]) -> None:
    job = fresh_job(replicas=2, checkpoint=where)
    assert not dies_with_pods(job.spec)
    assert "DDP_LOCAL_PATHS" not in environment(job, Identity(0, 0), token="")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["python", "train.py"], []),
        (["python", "train.py", "$(DDP_CHECKPOINT_DIR)/snapshot.pt"], ["/checkpoints"]),
        (["sh", "-c", "exec python t.py $DDP_CHECKPOINT_DIR"], ["/checkpoints"]),
        (["python", "train.py", "/own/snapshot.pt"], ["/own/snapshot.pt"]),
        (["python", "train.py", "--save-dir", "/own/out"], ["/own/out"]),
        (["python", "train.py", "--save-dir=/own/out"], ["/own/out"]),
        (["python", "/own/train.py", "--cache", "/own/cache"], []),
        (["python", "train.py", "--save-dir", "/elsewhere/out"], []),
    ],
)
def test_output_paths_in_a_command(argv: list[str], named: list[str]) -> None:
    parsed = spec(OWN, "/own", *argv)
    assert list(named_paths(parsed)) == named
    assert set(local_paths(parsed)) == {"/checkpoints", *named}


def test_output_paths_in_the_environment() -> None:
    env = [{"name": "SNAPSHOT", "value": "/own/s"}, {"name": "HF_HOME", "value": "/own/hub"}]
    parsed = spec(OWN, "/own", "python", "train.py", env=[*env, {"name": "N", "valueFrom": {}}])
    assert list(named_paths(parsed)) == ["/own/s"]


@pytest.mark.parametrize(
    ("folder", "lost"),
    [
        ("/own/ckpt", ["/own/best.pt"]),
        ("/own/ckpt/", ["/own/best.pt"]),
        ("/own", []),
        ("/own/ck", ["/own/ckpt/run", "/own/best.pt"]),
    ],
)
def test_paths_that_memory_keeps_are_not_lost(folder: str, lost: list[str]) -> None:
    argv = ["python", "t.py", "--save-dir", "/own/ckpt/run", "--save", "/own/best.pt"]
    env = [{"name": "DDP_CHECKPOINTS_IN_MEMORY", "value": folder}]
    parsed = spec(OWN, "/own", *argv, env=env)
    named = set(named_paths(parsed))
    assert set(lost_paths(parsed)) == named, "without memoryCheckpoint, nothing keeps them"
    assert folder.rstrip("/") in local_paths(parsed), "the launcher keeps nothing else"
    memory = MemoryCheckpoint.model_validate({"sizeLimit": "1Gi"})
    kept = parsed.model_copy(update={"memory_checkpoint": memory})
    assert set(lost_paths(kept)) - {folder} == set(lost)


def test_job_of_one_pod_has_no_local_paths() -> None:
    assert "DDP_LOCAL_PATHS" not in environment(fresh_job(replicas=1), Identity(0, 0), token="")


def saving(value: str, *mounts: str) -> Any:
    """Return a spec with a variable for saving, and with these mounts of a volume of each pod."""
    env = [{"name": "save", "value": value}]
    where = [{"name": "own", "mountPath": path} for path in mounts or ("/own",)]
    made = template(container(env=env, volumeMounts=where))
    made["spec"]["volumes"] = [OWN]
    return fresh_job(replicas=2, template=made).spec


@pytest.mark.parametrize("piece", ["/@", "/a", "/a ", "/a@/", "/", "/a/../", "/own/"])
def test_paths_are_found_in_linear_time_in_long_text(piece: str) -> None:
    long = saving(piece * (120_000 // len(piece)), *("/x" * i for i in range(1, 300)))
    assert loops(lambda: local_paths(long)) < 1
    assert loops(lambda: named_paths(long)) < 1


def test_path_of_thousands_of_parts_takes_little_memory() -> None:
    deep = saving("/a" * 15_000)
    tracemalloc.start()
    local_paths(deep)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    ("path", "is_found"),
    [
        ("/own/" + "a" * 4091, True),
        ("/own/" + "a" * 4092, False),  # longer than any program can open
        ("/own/./a//b", True),
        ("/own/../a", False),
        ("/owner/a", False),
    ],
)
def test_only_paths_that_can_exist_in_a_mount_are_local(path: str, *, is_found: bool) -> None:
    assert list(named_paths(saving(path))) == ([path] if is_found else [])


def test_text_beyond_8_kib_is_not_searched_for_paths() -> None:
    assert list(named_paths(saving(" " * 8_000 + "/own/a"))) == ["/own/a"]
    assert not named_paths(saving(" " * 8_192 + "/own/a"))
