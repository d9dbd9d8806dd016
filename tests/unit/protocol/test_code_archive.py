import ast
import io
import subprocess
import sys
import tarfile
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
from ddp_protocol import code_archive
from ddp_protocol.code_archive import (
    ID_FILE,
    PACKAGES,
    SITE,
    STORE,
    WORK,
    CodeError,
    current,
    digest_of,
    main,
    stored_name,
    unpack,
)
from ddp_protocol.code_packing import make, pack, reference_to

from tests.waiting import eventually

FILES = {"train.py": (b"print(1)\n", False), "bin/run": (b"#!/bin/sh\n", True)}


def name_of(archive: bytes) -> str:
    return f"{digest_of(archive)}-a1b2"


def tar(*entries: tarfile.TarInfo) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for entry in entries:
            archive.addfile(entry, io.BytesIO(b"x" * entry.size))
    return made.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, size: int = 1) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, "/etc/passwd"
    made.size = size if kind == tarfile.REGTYPE else 0
    return made


def test_equal_files_make_an_equal_archive() -> None:
    other_order = dict(reversed(FILES.items()))
    assert make(FILES) == make(other_order)
    assert make(FILES) != make({**FILES, "train.py": (b"print(2)\n", False)})
    assert make(FILES) != make({**FILES, "train.py": (b"print(1)\n", True)})


def test_unpacked_files_have_their_content_and_mode(tmp_path: Path) -> None:
    archive = make(FILES)
    unpack(pack(archive), name_of(archive), tmp_path)
    work = tmp_path / WORK
    assert (work / "train.py").read_text() == "print(1)\n"
    assert [bool((work / name).stat().st_mode & 0o100) for name in FILES] == [False, True]
    assert current(tmp_path) == name_of(archive)


def test_newer_code_replaces_the_older_and_keeps_other_files(tmp_path: Path) -> None:
    older, newer = make(FILES), make({"train.py": (b"print(2)\n", False)})
    unpack(pack(older), name_of(older), tmp_path)
    work = tmp_path / WORK
    (work / "loss.csv").write_text("1")
    (work / "bin" / "__pycache__").mkdir()
    unpack(pack(newer), name_of(newer), tmp_path)
    kept = sorted(path.name for path in work.rglob("*") if path.is_file())
    assert kept == ["loss.csv", "train.py"]
    assert (work / "train.py").read_text() == "print(2)\n"
    assert not list(work.rglob("__pycache__"))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (entry("/etc/x"), "leads out"),
        (entry("a/../../x"), "leads out"),
        (entry("x", tarfile.SYMTYPE), "not a file"),
        (entry("x", tarfile.LNKTYPE), "not a file"),
        (entry("x", tarfile.FIFOTYPE), "not a file"),
        (entry("x", tarfile.DIRTYPE), "not a file"),
    ],
)
def test_archive_with_anything_but_inner_files_is_refused(
    bad: tarfile.TarInfo, why: str, tmp_path: Path
) -> None:
    archive = tar(entry("good.py"), bad)
    with pytest.raises(CodeError, match=why):
        unpack(pack(archive), name_of(archive), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_code_changes_no_file_behind_a_link(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    old = make({"data/a.txt": (b"old", False), "train.py": (b"old", False)})
    unpack(pack(old), name_of(old), root)
    (root / WORK / "data").rename(data)
    (root / WORK / "data").symlink_to(data)
    (root / WORK / "new.py").symlink_to(data / "a.txt")
    new = make({"new.py": (b"new", False)})
    unpack(pack(new), name_of(new), root)
    assert (root / WORK / "new.py").read_text() == "new"
    assert not (root / WORK / "train.py").exists()
    with pytest.raises(CodeError, match=r"'data/a\.txt' is behind a link"):
        unpack(pack(old), name_of(old), root)
    assert (data / "a.txt").read_text() == "old"
    assert current(root) == "", "half of the code is in the folder"


def test_damaged_and_other_archives_are_refused(tmp_path: Path) -> None:
    archive = make(FILES)
    other = make({"train.py": (b"", False)})
    for packed in (pack(archive)[:-9], b"no archive", pack(other)):
        with pytest.raises(CodeError):
            unpack(packed, name_of(archive), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_archive_that_unpacks_to_more_than_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make({"zeros": (bytes(100_000), False)})
    monkeypatch.setattr(code_archive, "MAX_BYTES", 50_000)
    monkeypatch.setattr(code_archive, "MAX_FILES", 1)
    with pytest.raises(CodeError, match="cut off"):
        unpack(pack(archive), name_of(archive), tmp_path)
    with pytest.raises(CodeError, match="at most 50000"):
        make({"zeros": (bytes(100_000), False)})
    with pytest.raises(CodeError, match="2 files"):
        make(FILES)
    monkeypatch.setattr(code_archive, "MAX_PACKED_BYTES", 10)
    with pytest.raises(CodeError, match="more than 10 bytes"):
        unpack(pack(archive), name_of(archive), tmp_path)


def store(root: Path, archive: bytes, content: bytes | None = None) -> Path:
    """Put an archive where a pod finds the volume, or other content in its place."""
    path = root / STORE / stored_name(sha256(archive).hexdigest())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(archive) if content is None else content)
    return path


def test_stored_archive_is_unpacked_by_its_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_archive, "MAX_BYTES", 10)
    monkeypatch.setattr(code_archive, "MAX_PACKED_BYTES", 10)
    archive = make(FILES, 1000)
    path = store(tmp_path, archive)
    unpack(reference_to(archive), name_of(archive), tmp_path)
    assert (tmp_path / WORK / "train.py").read_text() == "print(1)\n"
    assert path.exists(), "other pods need it"
    newer = make({"train.py": (b"print(2)\n", False)}, 1000)
    store(tmp_path, newer)
    unpack(reference_to(newer), name_of(newer), tmp_path)
    assert (tmp_path / WORK / "train.py").read_text() == "print(2)\n"


def test_stored_archive_that_is_missing_or_not_the_named_one_is_refused(tmp_path: Path) -> None:
    archive, other = make(FILES), make({"train.py": (b"", False)})
    reference, name = reference_to(archive), name_of(archive)
    with pytest.raises(CodeError, match="the volume of --code-volume has no file ddp-code/"):
        unpack(reference, name, tmp_path)
    for content in (pack(other), pack(archive)[:-9], b"", b"no archive"):
        store(tmp_path, archive, content)
        with pytest.raises(CodeError):
            unpack(reference, name, tmp_path)
    # The ID has the first 12 digits alone; the reference has all.
    same_id = f"{reference[:-1].decode()}{'1' if reference.endswith(b'0') else '0'}".encode()
    store(tmp_path, archive).rename(tmp_path / STORE / stored_name(same_id[-64:].decode()))
    with pytest.raises(CodeError, match="is another archive"):
        unpack(same_id, name, tmp_path)
    outside = reference[:-64] + b"../" * 20 + b"etc0"
    with pytest.raises(CodeError, match="it is damaged"):
        unpack(outside, name, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [STORE]


def test_stored_archive_keeps_its_own_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make({"zeros": (bytes(200_000), False)})
    store(tmp_path, archive)
    monkeypatch.setattr(code_archive, "MAX_STORED_BYTES", 50_000)
    monkeypatch.setattr(code_archive, "MAX_FILES", 1)
    with pytest.raises(CodeError, match="cut off"):
        unpack(reference_to(archive), name_of(archive), tmp_path)
    monkeypatch.setattr(code_archive, "MAX_STORED_PACKED_BYTES", 10)
    with pytest.raises(CodeError, match="more than 10 bytes"):
        unpack(reference_to(archive), name_of(archive), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [STORE]


def parts(folder: Path, archive: bytes) -> Path:
    folder.mkdir()
    packed = pack(archive)
    (folder / "part-0").write_bytes(packed[:20])
    (folder / "part-1").write_bytes(packed[20:])
    (folder / ID_FILE).write_text(name_of(archive))
    return folder


def test_program_joins_the_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = make(FILES)
    root = tmp_path / "root"
    root.mkdir()
    assert main([], parts(tmp_path / "parts", archive), root) == 0
    assert (root / WORK / "train.py").exists()
    assert f"code {name_of(archive)} is in" in capsys.readouterr().out


def test_program_reports_a_damaged_archive_as_permanent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = parts(tmp_path / "parts", make(FILES))
    (folder / "part-1").write_bytes(b"\xff" * 200)
    assert main([], folder, tmp_path) == 64
    assert "damaged" in capsys.readouterr().out


PIP = """
import os, sys
print("sees", sys.argv[1:], os.getcwd(), sys.prefix)
print({said!r})
sys.exit({code})
"""


def replace_pip(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "modules" / "pip"
    module.mkdir(parents=True)
    (module / "__init__.py").touch()
    (module / "__main__.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(module.parent))


@pytest.mark.parametrize(
    ("said", "code", "ended"),
    [
        ("Successfully installed x", 0, 0),
        ("ERROR: No matching distribution found for nosuch", 1, 64),
        ("WARNING: Retrying after connection broken by 'NewConnectionError'", 1, 1),
    ],
)
def test_failed_installation_ends_the_job_unless_the_index_is_away(
    said: str,
    code: int,
    ended: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replace_pip(PIP.format(said=said, code=code), tmp_path, monkeypatch)
    root = tmp_path / "root"
    root.mkdir()
    archive = make({"requirements.txt": (b"x\n", False)})
    assert main(["requirements.txt"], parts(tmp_path / "parts", archive), root) == ended
    printed = capsys.readouterr().out
    assert f"'-r', 'requirements.txt'] {root / WORK} {root / PACKAGES}" in printed
    assert ("pip install -r requirements.txt failed" in printed) == bool(code)
    assert said in printed.splitlines()[-1] or not code


COMPILES = """
import pathlib, subprocess, sys
compiler = subprocess.Popen(["sleep", "3600"])
pathlib.Path({file!r}).write_text(str(compiler.pid))
print("building", flush=True)
compiler.wait()
"""


async def test_installation_that_takes_too_long_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = tmp_path / "compiler"
    replace_pip(COMPILES.format(file=str(started)), tmp_path, monkeypatch)
    monkeypatch.setattr(code_archive, "_timeout", lambda _: 2)
    root = tmp_path / "root"
    root.mkdir()
    archive = make({"requirements.txt": (b"x\n", False)})
    folder = parts(tmp_path / "parts", archive)
    assert main(["requirements.txt"], folder, root) == 1, "the next time it may be faster"
    *_, first, last = capsys.readouterr().out.splitlines()
    assert first == "building"
    assert last == (
        "pip install -r requirements.txt failed: not finished after 2 s "
        "(allow more with --env DDP_PIP_TIMEOUT_SECONDS=…, or install them in the image)"
    )
    status = Path("/proc", started.read_text(), "stat")
    # A killed process ends once it runs again.
    await eventually(lambda: not status.exists() or status.read_text().split()[2] == "Z")


@pytest.mark.parametrize("text", ["0", "1h", "-1", "86401"])
def test_time_for_pip_is_whole_seconds(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DDP_PIP_TIMEOUT_SECONDS", text)
    assert main(["requirements.txt"], parts(tmp_path / "parts", make(FILES)), tmp_path) == 64
    assert f"DDP_PIP_TIMEOUT_SECONDS={text}: use whole seconds" in capsys.readouterr().out


def wheel(folder: Path) -> str:
    """Make a package that needs one that is here; return its file's name."""
    name, info = "travelled-1-py3-none-any.whl", "travelled-1.dist-info"
    with zipfile.ZipFile(folder / name, "w") as made:
        made.writestr("travelled.py", "PLACE = __file__\n")
        about = "Metadata-Version: 2.1\nName: travelled\nVersion: 1\nRequires-Dist: pytest\n"
        made.writestr(f"{info}/METADATA", about)
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        made.writestr(f"{info}/RECORD", "")
    return name


def test_packages_are_installed_beside_those_of_the_image(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    name = wheel(tmp_path)
    text = f"{tmp_path / name}\n".encode()
    archive = make({"requirements.txt": (text, False)})
    assert main(["requirements.txt"], parts(tmp_path / "parts", archive), root) == 0
    modules = root / PACKAGES / SITE
    assert not (modules / "pytest").exists(), "the image's is used"
    show = "import travelled, pytest; print(travelled.PLACE)"
    path = {"PYTHONPATH": str(modules)}
    ran = subprocess.run(
        [sys.executable, "-c", show], env=path, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == str(modules / "travelled.py")


def test_program_runs_alone(tmp_path: Path) -> None:
    """As in a pod's image, which has none of our packages."""
    folder = parts(tmp_path / "parts", b"")
    (folder / "unpack.py").write_text(Path(code_archive.__file__).read_text())
    command = [sys.executable, "-I", str(folder / "unpack.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (64, "")


def test_program_is_python_of_old_images() -> None:
    source = Path(code_archive.__file__).read_text()
    ast.parse(source, feature_version=(3, 8))
