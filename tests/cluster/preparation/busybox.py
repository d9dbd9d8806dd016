"""A one-megabyte image with a shell: the pods' sandbox, and something to run in tests.

Made from Debian's static busybox without installing it: that package would replace others.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tests.cluster.cache import cache_dir, exclusive
from tests.cluster.errors import ClusterUnavailableError
from tests.cluster.node_config import SANDBOX_IMAGE
from tests.cluster.preparation import packages


def busybox_archive() -> Path:
    """Return a docker-archive of the image, made at the first call.

    Raises ClusterUnavailableError when Debian's package cannot be had.
    """
    archive = _archive()
    with exclusive(archive.with_suffix(".lock"), waiting_for="the busybox image"):
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
                partial = Path(scratch, "image.tar")
                _write_image(_busybox(Path(scratch)), partial)
                partial.rename(archive)
    return archive


def has_busybox() -> bool:
    """Tell whether the image exists."""
    return _archive().exists()


def _archive() -> Path:
    code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    return cache_dir("images") / f"busybox-{code}.tar"


def _busybox(scratch: Path) -> Path:
    files = packages.unpacked("busybox-static", into=scratch)
    for place in ("bin/busybox", "usr/bin/busybox"):
        if (found := files / place).exists():
            return found
    raise ClusterUnavailableError("no busybox in Debian's package busybox-static")


def _write_image(busybox: Path, archive: Path) -> None:
    applets = subprocess.run(
        [busybox, "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in ("bin", "etc", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            layer.addfile(entry)
        _add(layer, "bin/busybox", busybox.read_bytes(), mode=0o755)
        _add(layer, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n")
        for applet in applets:
            if applet != "busybox":
                entry = tarfile.TarInfo(f"bin/{applet}")
                entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
                layer.addfile(entry)
    content = buffer.getvalue()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    config = {
        "architecture": machine,
        "os": "linux",
        "config": {"Cmd": ["/bin/sleep", "infinity"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [SANDBOX_IMAGE], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as image:
        _add(image, "layer.tar", content)
        _add(image, "config.json", json.dumps(config).encode())
        _add(image, "manifest.json", json.dumps(manifest).encode())
    os.chmod(archive, 0o644)


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
