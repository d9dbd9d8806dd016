"""The archive in which a folder of code travels to pods, and how a pod unpacks it.

    python3 -I FOLDER/unpack.py [REQUIREMENTS]    unpacks the archive in FOLDER, installs packages

A pod of any image runs this file in an init container, so it uses only the standard library and
runs on Python 3.8. The launcher uses it to replace the code of a running pod.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

ROOT = "/ddp-code"
"""The folder of a pod with all of this."""
WORK = "work"
"""Below it: the code, where the command runs."""
SENT = "sent"
"""Archives that clients sent to the running pod, named by the ID of their code. The launcher makes
this folder, so that it exists only where a launcher can replace code."""
STORE = "store"
"""Below it: the volume with archives that are too large for ConfigMaps, if the user named one."""
STORE_FOLDER = "ddp-code"
"""The folder of the archives in that volume."""
REFERENCE = b"stored sha256:"
"""Travels with the SHA-256 of an archive in the volume, instead of the archive."""
PACKAGES = "packages"
"""A virtual environment with the packages that were installed for the job."""
SITE = "site"
"""In it: the folder of modules, for PYTHONPATH."""
ID_FILE = "id"
"""Names the code: of this pod, and beside the parts of the archive."""
PART = "part-"
"""The parts of the archive are `part-0`, `part-1` and so on."""
_NAMES = "files"
"""The names of the code's files, which the next code replaces."""

TIMEOUT_VARIABLE = "DDP_PIP_TIMEOUT_SECONDS"
"""The user's longest time for pip."""
_TIMEOUT_SECONDS = 900
MAX_TIMEOUT_SECONDS = 86400

MAX_FILES = 10_000
MAX_BYTES = 64 * 1024 * 1024
"""Most bytes of all files together."""
MAX_PARTS = 8
PART_BYTES = 1000 * 1024
"""Bytes of a part: with a name and this file, it fits in a ConfigMap, which holds 1 MiB."""
MAX_PACKED_BYTES = MAX_PARTS * PART_BYTES
MAX_STORED_BYTES = 512 * 1024 * 1024
"""Most bytes of all files together in an archive that is stored in a volume."""
MAX_STORED_PACKED_BYTES = 256 * 1024 * 1024
_ENTRY_BYTES = 8192
"""Larger than the headers of a file in an archive."""
_CONFIGURATION = 64
"""The exit code that tells the operator that a restart cannot help."""
_NETWORK = ("connection broken", "ReadTimeoutError", "ConnectTimeoutError", "NewConnectionError")
"""Words of pip about a network or an index that does not answer, which may pass."""
GZIP = 31
"""zlib's number for the gzip format."""


class CodeError(Exception):
    """An archive that cannot be used; the message names the file or the limit."""


def digest_of(archive: bytes) -> str:
    """Return the digest that begins the ID of code: it is the same wherever it was compressed."""
    return hashlib.sha256(archive).hexdigest()[:12]


def stored_name(digest: str) -> str:
    """Return the file in the volume, of the archive with this SHA-256."""
    return f"{STORE_FOLDER}/{digest}.tar.gz"


def unpack(packed: bytes, code_id: str, root: Path) -> None:
    """Replace the code below `root` by that of an archive, or of the stored one that `packed`
    refers to.

    Files that are not code stay, such as a training's own. Compiled modules are deleted: Python
    compares only their size and second with the source.

    Raises:
        CodeError: the archive is not that of `code_id`, or breaks a limit.
        OSError: a file cannot be written.
    """
    archive, most = _archive(packed, code_id, root)
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as entries:
            files = _checked_files(entries, most)
            _write(root / ID_FILE, "")  # a half-written one has no ID
            _forget_code(root)
            for file in files:
                reader = entries.extractfile(file)
                assert reader is not None, "only of regular files"
                path = root / WORK / file.name
                if _leads_out(root / WORK, file.name):
                    raise CodeError(f"code {code_id}: {file.name[:120]!r} is behind a link")
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.is_symlink():
                    path.unlink()  # writing to it would change another file
                path.write_bytes(reader.read())
                path.chmod(0o755 if file.mode & 0o100 else 0o644)
    except tarfile.TarError as error:
        raise CodeError(f"code {code_id}: it is damaged: {error}") from None
    _write(root / _NAMES, "\0".join(file.name for file in files))
    _write(root / ID_FILE, code_id)


def _forget_code(root: Path) -> None:
    """Delete the files of the present code."""
    work, names = root / WORK, root / _NAMES
    work.mkdir(exist_ok=True)
    before = names.read_text("utf-8", "surrogateescape") if names.exists() else ""
    for name in filter(None, before.split("\0")):
        if (work / name).is_file() and not _leads_out(work, name):
            (work / name).unlink()
    for compiled in list(work.rglob("__pycache__")):
        shutil.rmtree(compiled, ignore_errors=True)


def _leads_out(work: Path, name: str) -> bool:
    """Return whether a link that the training made leads from a file's folder to another place."""
    folders = list((work / name).parents)[: len(PurePosixPath(name).parts)]
    return any(folder.is_symlink() for folder in folders)


def current(root: Path) -> str:
    """Return the ID of the code in a pod; empty if there is none."""
    try:
        return (root / ID_FILE).read_text("utf-8")
    except OSError:
        return ""


def _archive(packed: bytes, code_id: str, root: Path) -> tuple[bytes, int]:
    """Return the archive of this code, decompressed, and the most bytes that its files may have."""
    match = re.fullmatch(REFERENCE + rb"([0-9a-f]{64})", packed)
    if match is None:
        return _decompressed(packed, code_id, MAX_PACKED_BYTES, MAX_BYTES), MAX_BYTES
    digest = match[1].decode()
    path = root / STORE / stored_name(digest)
    try:
        with path.open("rb") as file:
            stored = file.read(MAX_STORED_PACKED_BYTES + 1)
    except FileNotFoundError:
        raise CodeError(
            f"code {code_id}: the volume of --code-volume has no file {stored_name(digest)}; "
            "send the folder again"
        ) from None
    archive = _decompressed(stored, code_id, MAX_STORED_PACKED_BYTES, MAX_STORED_BYTES)
    # Others may write to the volume, and the digest in the ID is short.
    if hashlib.sha256(archive).hexdigest() != digest:
        raise CodeError(f"code {code_id}: {stored_name(digest)} is another archive")
    return archive, MAX_STORED_BYTES


def _decompressed(packed: bytes, code_id: str, max_packed: int, max_bytes: int) -> bytes:
    if len(packed) > max_packed:
        raise CodeError(f"code {code_id}: more than {max_packed} bytes")
    unpacker = zlib.decompressobj(GZIP)
    try:
        archive = unpacker.decompress(packed, max_bytes + MAX_FILES * _ENTRY_BYTES)
    except zlib.error as error:
        raise CodeError(f"code {code_id}: it is damaged: {error}") from None
    if not unpacker.eof or digest_of(archive) != code_id.partition("-")[0]:
        raise CodeError(f"code {code_id}: it is cut off, or another archive")
    return archive


def _checked_files(entries: tarfile.TarFile, max_bytes: int) -> Sequence[tarfile.TarInfo]:
    """Return the files of an archive, which has nothing else and no name that leads out of it."""
    files: list[tarfile.TarInfo] = []
    size = 0
    for entry in entries:
        checked_name(entry.name)
        if not entry.isreg():
            raise CodeError(f"{entry.name[:120]!r}: it is not a file")
        files.append(entry)
        size += entry.size
        if size > max_bytes or len(files) > MAX_FILES:
            raise CodeError(f"more than {MAX_FILES} files or {max_bytes} bytes")
    return files


def checked_name(name: str) -> str:
    """Return a name that stays within its folder."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise CodeError(f"{name[:120]!r}: the name leads out of the folder")
    return name


def _write(path: Path, text: str) -> None:
    """Replace a small file at once."""
    new = path.with_name(path.name + ".new")
    new.write_text(text, "utf-8", "surrogateescape")
    os.replace(new, path)


def install(requirements: str, root: Path, timeout_seconds: int) -> int:
    """Install the packages of a requirements file for the job; return an exit code.

    A failure is reported as permanent, unless pip could not reach the index or took too long.
    """
    python = _environment(root)
    command = [python, "-m", "pip", "install", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--no-warn-script-location", "-r", requirements]
    with subprocess.Popen(
        command,
        cwd=str(root / WORK),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as pip:
        assert pip.stdout is not None
        expired = threading.Event()
        timer = threading.Timer(timeout_seconds, _end, [pip, expired])
        timer.daemon = True
        timer.start()
        error, passes = "", False
        for line in pip.stdout:
            text = line.decode("utf-8", "replace").rstrip()
            print(text, flush=True)
            passes = passes or any(word in text for word in _NETWORK)
            error = text if "error" in text.lower() or not error else error
        timer.cancel()
    if pip.returncode == 0:
        return 0
    why = "the index did not answer" if passes else "correct it, or install them in the image"
    is_late = expired.is_set() and pip.returncode < 0
    if is_late:
        error = f"not finished after {timeout_seconds} s"
        why = f"allow more with --env {TIMEOUT_VARIABLE}=…, or install them in the image"
    print(f"pip install -r {requirements} failed: {error[:300]} ({why})", flush=True)
    return 1 if passes or is_late else _CONFIGURATION


def _end(pip: subprocess.Popen[bytes], expired: threading.Event) -> None:
    """Kill pip, and compilers that it started."""
    expired.set()
    with suppress(ProcessLookupError):
        os.killpg(pip.pid, signal.SIGKILL)


def _timeout(text: str) -> int:
    """Read the variable's seconds; empty is the default."""
    if text and not (text.isdecimal() and 0 < int(text) <= MAX_TIMEOUT_SECONDS):
        raise CodeError(
            f"{TIMEOUT_VARIABLE}={text[:40]}: use whole seconds, at most {MAX_TIMEOUT_SECONDS}"
        )
    return int(text or _TIMEOUT_SECONDS)


def _environment(root: Path) -> str:
    """Make a virtual environment over the packages of the image; return its Python.

    So pip uses what the image has, whether that is itself a virtual environment or not, and
    installs the rest in the volume.
    """
    folder = root / PACKAGES
    command = [sys.executable, "-m", "venv", "--without-pip", "--clear", str(folder)]
    subprocess.run(command, check=True)
    [site] = folder.glob("lib/python*/site-packages")
    of_image = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "image.pth").write_text("\n".join(of_image) + "\n", "utf-8")
    (folder / SITE).symlink_to(site.relative_to(folder))
    return str(folder / "bin" / "python")


def main(arguments: Sequence[str], parts: Path, root: Path = Path(ROOT)) -> int:
    """Unpack the archive in a folder of parts, and install packages; return an exit code."""
    try:
        paths = [parts / f"{PART}{number}" for number in range(MAX_PARTS)]
        packed = b"".join(path.read_bytes() for path in paths if path.exists())
        code_id = (parts / ID_FILE).read_text("utf-8")
        timeout_seconds = _timeout(os.environ.get(TIMEOUT_VARIABLE, ""))
        unpack(packed, code_id, root)
    except CodeError as error:
        print(error, flush=True)
        return _CONFIGURATION
    print(f"code {code_id} is in {root / WORK}", flush=True)
    return install(arguments[0], root, timeout_seconds) if arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).parent))
