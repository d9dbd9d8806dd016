"""Write `kubectl ddp` as one file that needs only Python, and Krew's manifest of it.

The file has the locked libraries, copied from this environment: nothing is downloaded, and
`make venv` has checked their hashes. Some are compiled, so the file runs only on this platform and
with this version of Python.
"""

import gzip
import hashlib
import io
import json
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import Distribution, distribution
from pathlib import Path
from shutil import copyfile
from typing import Any, Final

import ddp_client
import ddp_operator
import ddp_protocol
import yaml
from ddp_operator import __version__

PLUGIN: Final = "kubectl-ddp"
KREW_MANIFEST: Final = "krew-ddp.yaml"
CACHE: Final = f"~/.cache/{PLUGIN}"
_ROOT: Final = Path(__file__).parents[2]
_PREAMBLE: Final = Path(__file__).with_name("plugin_preamble.py")
_LEFT_OUT: Final = re.compile(
    r"""__pycache__/
    | ^\.\./                                                   # scripts of the libraries
    | \.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json)$  # specific to this machine
    | ^kubernetes/aio/                                         # half of the size, and unused
    """,
    re.VERBOSE,
)
_OF_DISTRIBUTION: Final = re.compile(r"\.dist-info/")
_MADE_AT: Final = 946_684_800  # 2000-01-01
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class NotLockedError(Exception):
    """An installed library has another version than the locked one."""


def build(folder: Path) -> Path:
    """Write the file into `folder` and return its path.

    Raises:
        NotLockedError: a library has another version than the locked one, or is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / PLUGIN
    with tempfile.TemporaryDirectory() as scratch:
        site = Path(scratch)
        for name, version in locked():
            _copy(_installed(name, version), site)
        _copy(
            distribution("shiv"), site, only=_OF_DISTRIBUTION
        )  # its licence, because its code unpacks the others
        for own in (
            Path(str(each.__file__)).parent for each in (ddp_protocol, ddp_operator, ddp_client)
        ):
            for path in own.rglob("*"):
                inner = path.relative_to(own.parent)
                if path.is_file() and not _LEFT_OUT.search(inner.as_posix()):
                    _copy_file(path, site / inner)
        made_for = [*sys.version_info[:2], sys.platform, platform.machine()]
        (site / f"{PLUGIN}.json").write_text(json.dumps(made_for))
        command: list[str | Path] = [
            *(sys.executable, "-m", "shiv.cli", "--site-packages", site, "--reproducible"),
            *("--entry-point", "ddp_client.cli.__main__:main", "--output-file", target),
            *("--python", f"/usr/bin/env python{made_for[0]}.{made_for[1]}"),
            *("--preamble", _PREAMBLE, "--root", CACHE),
        ]
        subprocess.run(command, check=True, timeout=300)
    return target


def locked() -> list[tuple[str, str]]:
    """Return the client's libraries and their locked versions."""
    text = (_ROOT / "requirements/client.txt").read_text()
    return re.findall(r"(?m)^([\w.-]+)==(\S+)", text)


def _installed(name: str, version: str) -> Distribution:
    try:
        found = distribution(name)
    except ModuleNotFoundError:
        raise NotLockedError(f"{name} is not installed; run make venv") from None
    if found.version != version:
        raise NotLockedError(
            f"{name} {found.version} is installed, but {version} is locked; run make venv"
        )
    return found


def _copy(library: Distribution, site: Path, *, only: re.Pattern[str] = re.compile("")) -> None:
    for file in library.files or ():
        if only.search(file.as_posix()) and not _LEFT_OUT.search(file.as_posix()):
            _copy_file(Path(str(file.locate())), site / file)


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    copyfile(source, target)


def package(plugin: Path, *, downloads: str = "") -> list[Path]:
    """Write Krew's archive and manifest beside `plugin` and return their paths.

    The manifest names the archive below the URL `downloads`.
    """
    system, machine = sys.platform, platform.machine()
    machine = _MACHINES.get(machine, machine)
    archive = plugin.with_name(f"{PLUGIN}-{__version__}-{system}-{machine}.tar.gz")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, mode in ((plugin, 0o755), (_ROOT / "LICENSE", 0o644)):
            member, content = tarfile.TarInfo(path.name), path.read_bytes()
            member.size, member.mode, member.mtime = len(content), mode, _MADE_AT
            tar.addfile(member, io.BytesIO(content))
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=_MADE_AT))
    its_platform = {
        "selector": {"matchLabels": {"os": system, "arch": machine}},
        "uri": f"{downloads.rstrip('/')}/{archive.name}" if downloads else archive.name,
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "bin": PLUGIN,
    }
    krew = plugin.with_name(KREW_MANIFEST)
    krew.write_text(yaml.safe_dump(_krew_manifest(its_platform), sort_keys=False))
    return [archive, krew]


def _krew_manifest(its_platform: dict[str, Any]) -> dict[str, Any]:
    python = "{}.{}".format(*sys.version_info)
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "ddp"},
        "spec": {
            "version": f"v{__version__}",
            "shortDescription": "Run and watch PyTorch DistributedDataParallel jobs",
            "description": "Runs DDPJobs, shows their progress, explains failures and changes "
            "jobs. The cluster needs the DDPJob operator.\n",
            "caveats": f"Needs Python {python} as python{python} on PATH. It unpacks its libraries "
            f"to {CACHE}.\n",
            "platforms": [its_platform],
        },
    }
