"""The process of a container on this machine, and reasons why it cannot run."""

from pathlib import Path
from typing import Any

import pytest
from ddp_client.local.machine.container import (
    PodContext,
    container_process,
    expand,
    image_name,
    status_port_like,
)
from ddp_client.local.machine.errors import ContainerConfigError

AROUND = PodContext(
    environment={"PATH": "/usr/bin", "HOME": "/home/me", "RANK": "7", "PET_NNODES": "9"},
    python="/venv/bin/python3.11",
    master_address="127.0.0.9",
    launcher_python="/ours/bin/python3",
    master_port=12345,
    status_port=12346,
    leader_port=12347,
    termination_log=Path("/work/pods/job-0-0/termination-log"),
    gpus=(),
    cores=8,
    directories={"/checkpoints": Path("/work/volumes/claim")},
)


def container(**fields: Any) -> dict[str, Any]:
    return {"name": "trainer", "image": "ddp-trainer:dev", **fields}


def env(**variables: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in variables.items()]


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(A)", "x1y1"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("$", "$"),
    ],
)
def test_references_expand_as_in_kubernetes(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1"}) == expanded


def test_without_a_command_the_bundled_trainer_runs() -> None:
    process = container_process(container(args=["--epochs=1"]), AROUND)
    assert process.command == ("/ours/bin/python3", "-m", "ddp_trainer.launch", "--epochs=1")


def test_injected_launcher_is_replaced_by_the_local_one() -> None:
    fields = container(command=["python3", "/ddp-launcher", "--", "sh", "-c"], args=["true"])
    process = container_process(fields, AROUND)
    launcher = ("/ours/bin/python3", "-m", "ddp_trainer.launch")
    assert process.command == (*launcher, "--", "sh", "-c", "true")


@pytest.mark.parametrize(
    ("rank", "port", "like"),
    [("0", "29501", 12346), ("0", "29499", 12344), ("0", "28737", None), ("1", "29501", 12346)],
)
def test_status_port_keeps_its_distance_to_the_master_port(
    rank: str, port: str, like: int | None
) -> None:
    variables = env(MASTER_PORT="29500", DDP_STATUS_PORT=port, NODE_RANK=rank)
    assert status_port_like(container(env=variables), 12345) == like


def test_image_built_from_the_trainers_may_have_any_name() -> None:
    fields = container(image="acme/llm:3", args=["--", "python", "train.py"])
    launcher = ("/ours/bin/python3", "-m", "ddp_trainer.launch")
    assert container_process(fields, AROUND).command == (*launcher, "--", "python", "train.py")


def test_without_a_command_another_image_is_refused() -> None:
    with pytest.raises(ContainerConfigError, match=r"image acme/llm:3 .* add .*command"):
        container_process(container(image="acme/llm:3"), AROUND)


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("ddp-trainer", "ddp-trainer"),
        ("ddp-trainer:dev", "ddp-trainer"),
        ("localhost:5000/a/ddp-trainer", "ddp-trainer"),
        ("host/ddp-trainer:1@sha256:abc", "ddp-trainer"),
        ("host/ddp-trainer-fork:1", "ddp-trainer-fork"),
    ],
)
def test_image_name_is_without_registry_and_tag(image: str, name: str) -> None:
    assert image_name(image) == name


def test_python_becomes_the_interpreter_with_the_trainer() -> None:
    process = container_process(container(command=["python", "-c", "pass"]), AROUND)
    assert process.command == ("/venv/bin/python3.11", "-c", "pass")
    assert process.environment["PATH"] == "/venv/bin:/usr/bin"


def test_references_use_the_local_rendezvous() -> None:
    process = container_process(
        container(
            command=["torchrun"],
            args=["--rdzv-endpoint=$(MASTER_ADDR):$(MASTER_PORT)", "$(WHERE)"],
            env=env(MASTER_ADDR="job-0-0.job", MASTER_PORT="29500", WHERE="tcp://$(MASTER_ADDR)"),
        ),
        AROUND,
    )
    assert process.command == ("torchrun", "--rdzv-endpoint=127.0.0.9:12345", "tcp://127.0.0.9")
    assert process.environment["MASTER_ADDR"] == "127.0.0.9"
    assert process.environment["DDP_LEADER_PORT"] == "12347"


def test_paths_in_volumes_are_translated() -> None:
    process = container_process(
        container(
            command=["sh", "-c", "ls /checkpoints/a; ls /checkpoints-old"],
            args=["--dir=/checkpoints"],
            env=env(DDP_CHECKPOINT_DIR="/checkpoints"),
            workingDir="/checkpoints/a",
        ),
        AROUND,
    )
    assert process.command[2] == "ls /work/volumes/claim/a; ls /checkpoints-old"
    assert process.command[3] == "--dir=/work/volumes/claim"
    assert process.environment["DDP_CHECKPOINT_DIR"] == "/work/volumes/claim"
    assert process.working_directory == Path("/work/volumes/claim/a")


def test_rank_variables_of_the_caller_are_removed() -> None:
    environment = container_process(container(), AROUND).environment
    assert "RANK" not in environment
    assert "PET_NNODES" not in environment
    assert environment["HOME"] == "/home/me"


@pytest.mark.parametrize(("world_size", "threads"), [("1", "8"), ("3", "2"), ("16", "1")])
def test_ranks_share_the_cores(world_size: str, threads: str) -> None:
    process = container_process(container(env=env(WORLD_SIZE=world_size)), AROUND)
    assert process.environment["OMP_NUM_THREADS"] == threads


def test_a_users_own_thread_count_wins() -> None:
    process = container_process(container(env=env(OMP_NUM_THREADS="5")), AROUND)
    assert process.environment["OMP_NUM_THREADS"] == "5"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            "env TOKEN uses valueFrom",
        ),
        ({"envFrom": [{"configMapRef": {"name": "c"}}]}, "envFrom needs a cluster"),
    ],
)
def test_sources_in_a_cluster_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ContainerConfigError, match=message):
        container_process(container(**fields), AROUND)
