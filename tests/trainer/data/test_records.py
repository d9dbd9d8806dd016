"""A folder of many small files is packed into one, from which every rank reads the same."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import lmdb
import pytest
from ddp_trainer import workloads
from ddp_trainer.data.staging import Stage
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.workloads.records import Records, pack

from tests.trainer.support.pods import job

WORKLOAD = '''
"""Tells apart two kinds of files by their bytes; a record that is not the file's fails the run."""

from pathlib import Path

import torch
from ddp_trainer.workloads.base import MapSamples, Workload
from ddp_trainer.workloads.records import Records, pack
from torch import nn

stage = pack


def load(*, data: Path) -> Workload:
    samples = MapSamples(Records(data), collate=tensors)
    return Workload(
        train=samples,
        test=samples,
        model=lambda: nn.Linear(4, 2),
        loss=nn.functional.cross_entropy,
        score=lambda outputs, targets: (outputs.argmax(1) == targets).float(),
    )


def tensors(records):
    for path, content in records:
        assert content == path[:1].encode() * 4, (path, content)
    inputs = torch.tensor([list(content) for _, content in records]).float() / 256
    return inputs, torch.tensor([path.startswith("b/") for path, _ in records]).long()
'''


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def read(path: Path) -> list[tuple[str, bytes]]:
    records = Records(path)
    return [records[index] for index in range(len(records))]


def test_a_packed_folder_is_the_folder_to_the_byte_and_in_order(tmp_path: Path) -> None:
    dice = random.Random(1)
    files = {f"{n % 7}/{n % 3}/{n}.bin": dice.randbytes(n % 50) for n in range(2000)}
    files |= {
        "a.b": b"before what the folder a holds, as bytes are",
        "a/b": b"after it",
        "ä ö": b"\0\xff",
        "large": dice.randbytes(12 << 20),  # more than LMDB takes by default
    }
    files |= {"empty": b"", "Upper": b"1", ".hidden": b"2", os.fsdecode(b"\xff"): b"3"}
    write(tmp_path / "data", files)
    pack(tmp_path / "data", tmp_path / "packed")
    assert read(tmp_path / "packed") == sorted(files.items(), key=lambda one: os.fsencode(one[0]))
    assert sorted(os.listdir(tmp_path)) == ["data", "packed"], "one file, and no locks beside it"


def test_what_is_packed_already_is_copied(tmp_path: Path) -> None:
    write(tmp_path / "data", {"a": b"1"})
    pack(tmp_path / "data", tmp_path / "packed")
    pack(tmp_path / "packed", tmp_path / "copy")
    assert read(tmp_path / "copy") == [("a", b"1")]


def test_links_to_files_are_followed_and_others_are_not(tmp_path: Path) -> None:
    write(tmp_path, {"elsewhere": b"1", "data/folder/a": b"2"})
    (tmp_path / "data/link").symlink_to(tmp_path / "elsewhere")
    pack(tmp_path / "data", tmp_path / "packed")
    assert read(tmp_path / "packed") == [("folder/a", b"2"), ("link", b"1")]

    circle = tmp_path / "data/folder/circle"
    circle.symlink_to(tmp_path / "data")
    with pytest.raises(ConfigurationError, match=r"folder/circle cannot be packed.*remove it"):
        pack(tmp_path / "data", tmp_path / "circle")
    circle.unlink()
    os.mkfifo(circle)
    with pytest.raises(ConfigurationError, match=r"folder/circle cannot be packed.*remove it"):
        pack(tmp_path / "data", tmp_path / "pipe")


def test_what_cannot_be_packed_is_explained(tmp_path: Path) -> None:
    (tmp_path / "empty" / "folder").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"--data .*/empty has no files.*mount"):
        pack(tmp_path / "empty", tmp_path / "packed")
    write(tmp_path / "deep", {"/".join(["folder" * 20] * 5): b"1"})
    with pytest.raises(ConfigurationError, match=r"folder cannot be packed.* 511 bytes"):
        pack(tmp_path / "deep", tmp_path / "packed")


def pack_on_a_full_disk(source: Path, target: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    pack(source, target)


def test_a_full_disk_is_an_error_of_the_disk(tmp_path: Path) -> None:
    write(tmp_path / "data", {"a": bytes(3 << 20)})
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as child,
        pytest.raises(OSError, match=r"/packed could not be written, is the disk full"),
    ):
        child.submit(pack_on_a_full_disk, tmp_path / "data", tmp_path / "packed").result()


def test_what_is_not_packed_is_explained(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not packed\n" * 1000)
    with (
        lmdb.open(str(tmp_path / "other"), subdir=False, lock=False) as other,
        other.begin(write=True) as transaction,
    ):
        transaction.put(b"a", b"1")
    for path in (tmp_path, tmp_path / "text", tmp_path / "other", tmp_path / "nowhere"):
        with pytest.raises(ConfigurationError, match=rf"--data {path} is not .*--stage copy"):
            Records(path)
    assert not (tmp_path / "nowhere").exists()


def test_without_lmdb_it_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "records_without_lmdb.py").write_text(WORKLOAD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "lmdb", None)
    monkeypatch.delitem(sys.modules, "ddp_trainer.workloads.records")
    with pytest.raises(ConfigurationError, match=r"install ddp-trainer\[lmdb\]"):
        workloads.builder("records_without_lmdb:load")


def test_a_process_opens_what_it_inherits_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB forbids the use of what was opened before a fork."""
    write(tmp_path / "data", {"a": b"1", "b": b"2"})
    pack(tmp_path / "data", tmp_path / "packed")
    opened = tmp_path / "opened"
    opener = lmdb.open

    def noting(*args: object, **kwargs: object) -> lmdb.Environment:
        with opened.open("a") as log:
            log.write(f"{os.getpid()}\n")
        return opener(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(lmdb, "open", noting)
    records, others = Records(tmp_path / "packed"), Records(tmp_path / "packed")
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as child:
        assert child.submit(records.__getitem__, 1).result() == ("b", b"2")
        child_pid = child.submit(os.getpid).result()
    assert (records[0], others[1]) == (("a", b"1"), ("b", b"2"))
    assert pickle.loads(pickle.dumps(records))[-1] == ("b", b"2")
    assert opened.read_text().split() == [str(os.getpid()), str(child_pid)]


def pack_and_note(source: Path, target: Path) -> None:
    with source.with_name("packed-by").open("a") as log:
        log.write(f"{os.getpid()}\n")
    pack(source, target)


def bring_and_read(folder: Path) -> list[tuple[str, bytes]]:
    stage = Stage(folder / "node", local_rank=0, timeout_seconds=120)
    return read(stage.bring(folder / "data", build=pack_and_note))


def test_one_process_of_a_node_packs_for_all(tmp_path: Path) -> None:
    files = {f"{n:03}": bytes([n]) for n in range(200)}
    write(tmp_path / "data", files)
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as processes:
        read = list(processes.map(bring_and_read, [tmp_path] * 4))
    assert read == [list(files.items())] * 4
    assert len((tmp_path / "packed-by").read_text().split()) == 1


def test_ranks_train_on_packed_files(tmp_path: Path) -> None:
    write(tmp_path / "data", {f"{kind}/{n}": kind.encode() * 4 for kind in "ab" for n in range(32)})
    (tmp_path / "packed_kinds.py").write_text(WORKLOAD)
    search = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with job(
        tmp_path / "job", nodes=1, local_world_size=2, extra_environment={"PYTHONPATH": search}
    ) as one:
        pod = one.start(
            0,
            *("--workload=packed_kinds:load", "--epochs=2", "--batch-size=8"),
            *("--stage=copy", f"--data={tmp_path / 'data'}", f"--stage-dir={tmp_path / 'node'}"),
        )
        assert pod.wait() == 0, pod.log
        assert pod.log.count("staged ") == 1, pod.log
        assert pod.message["step"] == 2 * 64 // (2 * 8)
    [packed] = tmp_path.glob("node/data-*.complete")
    assert len(Records(packed.with_suffix(""))) == 64
