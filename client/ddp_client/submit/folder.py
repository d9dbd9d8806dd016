"""The code that `run` sends: files of a folder, chosen by git's rules, and a requirements file."""

import os
import secrets
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from ddp_operator.api.values.text import clean, counted
from ddp_protocol.code_archive import MAX_BYTES, MAX_STORED_BYTES

from ddp_client.submit.code import CodeFolder, too_large
from ddp_client.submit.mounts import Mount
from ddp_client.submit.scripts import MAX_BYTES as MAX_CONFIG_MAP_BYTES
from ddp_client.submit.validation import JobRequestError

_NEVER: Final = ("__pycache__/", ".venv/", ".ipynb_checkpoints/")
"""Not sent even if no .gitignore names them; files of the git repository always are."""
_SECONDS: Final = 60.0
_NAMED: Final = 3


def read_code(
    workdir: str | Path | None,
    requirements: str | Path | None,
    volume: Mount | None = None,
) -> tuple[CodeFolder | None, str]:
    """Return the code in a folder and a requirements file, None without either; and what is left
    out, as a sentence, empty if nothing is.

    `volume`: stores the code if it is too large for ConfigMaps.

    Raises:
        JobRequestError: a file cannot be read, or they are too large.
    """
    if volume and not workdir:
        raise JobRequestError("code-volume: only a folder can be stored there; add workdir")
    if not (workdir or requirements):
        return None, ""
    most = MAX_STORED_BYTES if volume else MAX_BYTES
    files, left_out = read_folder(workdir, most) if workdir else ({}, "")
    token = secrets.token_hex(2)
    code = CodeFolder(files, token, is_workdir=bool(workdir), volume=volume)
    if not requirements:
        return code, left_out
    path, folder = Path(requirements).resolve(), Path(workdir or "/").resolve()
    inside = path.is_relative_to(folder) and workdir
    name = path.relative_to(folder).as_posix() if inside else ""
    try:
        content = read_start(requirements)
    except OSError as error:
        raise JobRequestError(f"pip: cannot read {requirements}: {error.strerror}") from None
    if len(content) > MAX_CONFIG_MAP_BYTES:  # the rest is not read, and must not be lost silently
        raise JobRequestError(
            f"pip: the file has more than {MAX_CONFIG_MAP_BYTES} bytes; make it smaller"
        )
    return code.with_requirements(name, content), left_out


def read_start(path: str | Path) -> bytes:
    """Return the content of a file, or more bytes than can be sent."""
    with Path(path).open("rb") as file:
        return file.read(MAX_CONFIG_MAP_BYTES + 1)


def read_folder(
    path: str | Path, max_bytes: int | None = None
) -> tuple[dict[str, tuple[bytes, bool]], str]:
    """Return content by name of the folder's files that git does not ignore, and whether each is
    a program; and what is left out, as a sentence, empty if nothing is.

    Links to files of the folder become files. Other links, and repositories within it, are left
    out. `max_bytes`: of all files together; default: as much as ConfigMaps may carry.

    Raises:
        JobRequestError: a file cannot be read, or they are too large.
    """
    folder = Path(path)
    names, left_out = _files(folder)
    sizes = {name: (folder / name).stat().st_size for name in names}
    most = max_bytes or MAX_BYTES
    if (size := sum(sizes.values())) > most:
        raise too_large(size, most, "", sizes, has_volume=most > MAX_BYTES)
    files: dict[str, tuple[bytes, bool]] = {}
    for name in names:
        try:
            files[name] = ((folder / name).read_bytes(), os.access(folder / name, os.X_OK))
        except OSError as error:
            raise JobRequestError(
                f"workdir: cannot read {clean(name, 120)}: {error.strerror}"
            ) from None
    if not files:
        raise JobRequestError(f"workdir {path}: git's rules leave no file to send")
    return files, _named(left_out)


def _files(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the files to send, and of what is left out."""
    names: list[str] = []
    left_out: list[str] = []
    inside = folder.resolve()
    for name in _names(folder):
        file = folder / name
        if file.is_file() and file.resolve().is_relative_to(inside):
            names.append(name)
        elif os.path.lexists(file):  # git still knows a deleted file
            left_out.append(name)
    return names, left_out


def _named(names: list[str]) -> str:
    if not names:
        return ""
    more = ", …" if len(names) > _NAMED else ""
    shown = ", ".join(clean(name, 80) for name in names[:_NAMED])
    what = counted(len(names), "link or repository", "links or repositories")
    return f"{what} left out: {shown}{more}"


def _names(folder: Path) -> list[str]:
    """Return the names of a folder's files that git's rules do not ignore, sorted."""
    with tempfile.TemporaryDirectory(prefix="ddp-git-") as empty:
        where: list[str] = []
        if _git(folder, "rev-parse", "--is-inside-work-tree") is None:
            # The rules of .gitignore files hold without a repository, too.
            if _git(folder, "init", "--quiet", empty) is None:
                raise JobRequestError("workdir: git cannot make a folder for temporary files")
            where = [f"--git-dir={empty}/.git", "--work-tree=."]
        excluded = [f"--exclude={pattern}" for pattern in _NEVER]
        listed = _git(
            folder, *where, "ls-files", "-z", "-co", "--exclude-standard", *excluded, "--", "."
        )
    if listed is None:
        raise JobRequestError(f"workdir {folder}: git cannot list its files")
    return sorted({name for name in os.fsdecode(listed).split("\0") if name})


def _git(folder: Path, *words: str) -> bytes | None:
    """Run git in a folder; return what it printed, None if it failed.

    Raises:
        JobRequestError: git is missing or does not end.
    """
    try:
        ran = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        raise JobRequestError("workdir: git's rules decide what is sent; install git") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobRequestError(f"workdir: git failed: {error}") from None
    return ran.stdout if ran.returncode == 0 else None
