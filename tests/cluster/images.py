"""The project's two images, built without a daemon and without a registry.

buildah builds the same Dockerfiles that `docker build` takes; the base image comes from Debian's
own packages (debootstrap) and pip's wheels are fetched outside: the build needs no network. Every
step's result is kept under a hash of what went into it, so a second run costs seconds.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import kind, packages
from tests.cluster.cache import cache_dir, exclusive, say
from tests.cluster.errors import ClusterError, ClusterUnavailableError
from tests.cluster.provider import Cluster

REPOSITORY = Path(__file__).resolve().parents[2]

DEBIAN_SUITE = "bookworm"
# What Debian's suite brings; wheels are fetched for it, whatever Python runs this code.
PYTHON_VERSION = "3.11"
# python-is-python3: the Dockerfiles say `python`, as Docker's official image has it.
BASE_PACKAGES = ("ca-certificates", "python-is-python3", "python3-venv")


@dataclass(frozen=True)
class ImageSource:
    """One image of the project and the files that it is made from."""

    name: str
    dockerfile: Path
    requirements: Path
    sources: Path

    def files(self) -> list[Path]:
        """Return the files that decide the image's content, in a stable order."""
        tree = [
            path
            for path in self.sources.rglob("*")
            if path.is_file() and not _IGNORED.intersection(path.relative_to(self.sources).parts)
        ]
        tree = [path for path in tree if not path.parent.name.endswith(".egg-info")]
        return sorted({self.dockerfile, self.requirements, *tree})

    def full_name(self, tag: str = "dev") -> str:
        """Return the image's name as the container runtime knows it."""
        return f"docker.io/library/{self.name}:{tag}"


_IGNORED = frozenset({"__pycache__", "build", ".pytest_cache", ".mypy_cache", ".ruff_cache"})

OPERATOR = ImageSource(
    name="ddp-operator",
    dockerfile=REPOSITORY / "Dockerfile",
    requirements=REPOSITORY / "requirements/operator.txt",
    sources=REPOSITORY / "operator",
)
TRAINER = ImageSource(
    name="ddp-trainer",
    dockerfile=REPOSITORY / "trainer-image/Dockerfile",
    requirements=REPOSITORY / "requirements/trainer.txt",
    sources=REPOSITORY / "trainer-image",
)


@dataclass(frozen=True)
class BuiltImage:
    """A docker-archive with one image."""

    archive: Path
    # The name that pods use, tagged ``dev``.
    name: str
    # The same image's name in a cluster that holds exactly this content.
    content_name: str


def content_hash(paths: Iterable[Path], *extra: str) -> str:
    """Return a short hash of files (their names, modes and bytes) and of further words."""
    digest = hashlib.sha256("\0".join(extra).encode())
    for path in paths:
        content = path.read_bytes()
        mode = path.stat().st_mode & 0o111
        digest.update(f"\0{path.relative_to(REPOSITORY)}\0{mode}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def build(image: ImageSource) -> BuiltImage:
    """Return the image as an archive, building what is not in the cache.

    Where Docker and kind serve the cluster, Docker builds the image with its usual base and index.
    Raises ClusterUnavailableError when this machine cannot build images.
    """
    with_docker = kind.usable()
    tag = content_hash(image.files(), "docker" if with_docker else _base_tag())
    folder = cache_dir("images")
    archive = folder / f"{image.name}-{tag}.tar"
    built = BuiltImage(archive, image.full_name(), image.full_name(tag))
    with exclusive(folder / "build.lock", waiting_for="another build of images"):
        if archive.exists():
            return built
        started = time.monotonic()
        say(f"building image {image.name}")
        for pattern in ("base-*", "wheels-*"):  # left by a build that was killed
            for abandoned in cache_dir().glob(pattern):
                shutil.rmtree(abandoned)
        partial = archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        if with_docker:
            _build_with_docker(image, built.name, partial)
        else:
            _build_with_buildah(image, built.name, partial)
        # Keeps only the newest archive: older code can be built again from its own checkout.
        for old in folder.glob(f"{image.name}-*.tar"):
            old.unlink()
        partial.rename(archive)
        say(f"built {image.name} in {time.monotonic() - started:.0f} s: {archive}")
    return built


def _build_with_docker(image: ImageSource, name: str, archive: Path) -> None:
    _run("docker", "build", "--file", str(image.dockerfile), "--tag", name, str(REPOSITORY))
    _run("docker", "save", "--output", str(archive), name)


def _build_with_buildah(image: ImageSource, name: str, archive: Path) -> None:
    if os.geteuid() != 0:
        raise ClusterUnavailableError("building images needs root (or Docker and kind)")
    packages.require(packages.IMAGES)
    base = _base_tag()
    _ensure_base(base)
    wheels = _wheels(image)
    _buildah(
        *("build", "--isolation", "chroot", "--layers", "--pull-never"),
        *("--file", str(image.dockerfile), "--tag", name),
        *("--build-arg", f"BASE_IMAGE={base}"),
        *("--build-arg", "PIP_NO_INDEX=1", "--build-arg", "PIP_FIND_LINKS=/wheels"),
        *("--volume", f"{wheels}:/wheels:ro"),
        str(REPOSITORY),
    )
    _buildah("push", name, f"docker-archive:{archive}:{name}")


def load(image: BuiltImage, cluster: Cluster) -> None:
    """Make the image usable in the cluster, unless the very same is there already."""
    if image.content_name in cluster.images():
        # An older one may have been given the common name since.
        cluster.tag_image(image.content_name, as_name=image.name)
        return
    say(f"loading {image.name} into the cluster")
    cluster.load_image(image.archive)
    cluster.tag_image(image.name, as_name=image.content_name)
    repository = image.name.rpartition(":")[0]
    for name in cluster.images() - {image.name, image.content_name}:
        if name.startswith(f"{repository}:"):
            cluster.remove_image(name)


def _base_tag() -> str:
    recipe = hashlib.sha256(" ".join((DEBIAN_SUITE, *BASE_PACKAGES)).encode())
    return f"localhost/ddp-base:{recipe.hexdigest()[:12]}"


def _ensure_base(tag: str) -> None:
    if _buildah("inspect", "--type", "image", tag, check=False).returncode == 0:
        return
    say(f"making a base image from Debian {DEBIAN_SUITE} (once, about a minute)")
    with tempfile.TemporaryDirectory(prefix="base-", dir=cache_dir()) as scratch:
        root = Path(scratch, "root")
        _run(
            *("unshare", "--mount", "nice", "debootstrap", "--variant=minbase"),
            *(f"--include={','.join(BASE_PACKAGES)}", DEBIAN_SUITE, str(root)),
        )
        for pattern in ("var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*"):
            for path in root.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for folder in ("usr/share/doc", "usr/share/man", "usr/share/locale"):
            shutil.rmtree(root / folder, ignore_errors=True)
        (Path(scratch) / "Dockerfile").write_text('FROM scratch\nCOPY root /\nCMD ["bash"]\n')
        _buildah("build", "--isolation", "chroot", "--tag", tag, scratch)


def _wheels(image: ImageSource) -> Path:
    """Fetch the wheels of the image's locked requirements, and what builds its own package."""
    key = content_hash([image.requirements], PYTHON_VERSION)
    folder = cache_dir("wheels") / f"{image.name}-{key}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(prefix="wheels-", dir=cache_dir()) as scratch:
            _run(
                *(sys.executable, "-m", "pip", "download", "--quiet", "--dest", scratch),
                *("--only-binary=:all:", f"--python-version={PYTHON_VERSION}"),
                *("--requirement", str(image.requirements), "setuptools", "wheel"),
            )
            for old in folder.parent.glob(f"{image.name}-*"):
                shutil.rmtree(old)
            # Layers of former requirements are large, and nothing else removes them.
            _buildah("rmi", "--prune", "--force", check=False)
            Path(scratch).chmod(0o755)
            shutil.move(scratch, folder)
            Path(scratch).mkdir()
    return folder


def _buildah(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run buildah on a store of its own, in a mount namespace from which nothing can leak."""
    store = cache_dir("buildah")
    options = ("--root", str(store / "storage"), "--runroot", str(store / "run"))
    return _run("unshare", "--mount", "nice", "buildah", *options, *words, check=check)


def _run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and result.returncode:
        tail = "\n".join((result.stdout + result.stderr).strip().splitlines()[-15:])
        raise ClusterError(f"{' '.join(words[:8])} … failed:\n{tail}")
    return result
