"""Volumes as directories of this machine."""

from pathlib import Path
from typing import Any

import pytest
from ddp_client.local.machine.errors import ContainerConfigError
from ddp_client.local.machine.volumes import mounted_directories, translate

CONFIG_MAP = {"data": {"train.py": "print('hello')\n", "other.txt": "x"}}


def mounted(tmp_path: Path, volume: dict[str, Any] | None, **mount: str) -> dict[str, Path]:
    return mounted_directories(
        {"volumes": [{"name": "data", **volume}] if volume is not None else []},
        {"volumeMounts": [{"name": "data", "mountPath": "/data", **mount}]},
        persistent=tmp_path / "persistent",
        ephemeral=tmp_path / "ephemeral",
        config_maps={"scripts": CONFIG_MAP},
    )


@pytest.mark.parametrize(
    ("volume", "place"),
    [
        ({"persistentVolumeClaim": {"claimName": "claim"}}, "persistent/claim"),
        ({"csi": {"driver": "gcs", "volumeAttributes": {"bucketName": "b"}}}, "persistent/b"),
        ({"emptyDir": {}}, "ephemeral/data"),
        ({"emptyDir": None}, "ephemeral/data"),
    ],
)
def test_each_kind_has_its_place(tmp_path: Path, volume: dict[str, Any], place: str) -> None:
    assert mounted(tmp_path, volume) == {"/data": tmp_path / place}
    assert (tmp_path / place).is_dir()


def test_host_path_is_the_machines_own(tmp_path: Path) -> None:
    own = tmp_path / "own"
    assert mounted(tmp_path, {"hostPath": {"path": str(own)}}) == {"/data": own}
    assert own.is_dir()


def test_config_map_becomes_files(tmp_path: Path) -> None:
    (directory,) = mounted(tmp_path, {"configMap": {"name": "scripts"}}).values()
    assert (directory / "train.py").read_text() == "print('hello')\n"
    assert (directory / "other.txt").read_text() == "x"


def test_config_map_items_choose_and_rename(tmp_path: Path) -> None:
    items = [{"key": "train.py", "path": "sub/main.py"}]
    (directory,) = mounted(tmp_path, {"configMap": {"name": "scripts", "items": items}}).values()
    assert [p.relative_to(directory) for p in directory.rglob("*.*")] == [Path("sub/main.py")]


def test_sub_path_is_one_entry_of_the_volume(tmp_path: Path) -> None:
    volume = {"configMap": {"name": "scripts"}}
    (file,) = mounted(tmp_path, volume, subPath="train.py").values()
    assert file.read_text() == "print('hello')\n"


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"secret": {"secretName": "s"}}, "volume data: a local run has no secret"),
        ({"configMap": {"name": "elsewhere"}}, "put it into the same file"),
        ({"configMap": {"name": "scripts", "items": [{"key": "no", "path": "p"}]}}, "no key no"),
        (None, "no volume is named 'data'"),
    ],
)
def test_missing_source_is_refused(
    tmp_path: Path, volume: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(ContainerConfigError, match=message):
        mounted(tmp_path, volume)


def test_shared_memory_stays_the_machines_own(tmp_path: Path) -> None:
    assert mounted(tmp_path, {"emptyDir": {"medium": "Memory"}}, mountPath="/dev/shm") == {}


@pytest.mark.parametrize(
    ("text", "translated"),
    [
        ("/data", "/here"),
        ("/data/x", "/here/x"),
        ("/database", "/database"),
        ("/my/data", "/my/data"),
        ("--in=/data/x --out=/data/inner/y", "--in=/here/x --out=/inner/y"),
        ("python '/data/a b.py'", "python '/here/a b.py'"),
        ("/data:/data/inner", "/here:/inner"),
    ],
)
def test_paths_are_replaced_at_their_boundaries(text: str, translated: str) -> None:
    directories = {"/data": Path("/here"), "/data/inner": Path("/inner")}
    assert translate(text, directories) == translated
