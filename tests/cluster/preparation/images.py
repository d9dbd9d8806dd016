"""The project's two images, built without a daemon and without a registry.

buildah builds the same Dockerfiles that `docker build` takes; the base image comes from Debian's
own packages (debootstrap) and pip's wheels are fetched outside: the build needs no network. Every
step's result is kept under a hash of what went into it, so a second run costs seconds.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from inspect import getsource
from pathlib import Path

from tests.cluster import kind
from tests.cluster.cache import cache_dir, exclusive, say
from tests.cluster.errors import ClusterUnavailableError
from tests.cluster.machine import Machine
from tests.cluster.preparation import image_parts
from tests.cluster.provider import KUBECONFIG_VARIABLE, Cluster

REPOSITORY = Path(__file__).resolve().parents[3]

_BUILT_AT = "946684800"
"""2000-01-01, so that the same content has the same digest."""
_ARCHIVES_KEPT = 3
"""Of each image: other checkouts and branches have their own."""


@dataclass(frozen=True)
class ImageSource:
    """One image of the project and the files that it is made from."""

    name: str
    dockerfile: Path
    requirements: Path | None
    sources: Path
    """A folder."""
    others: tuple[Path, ...] = ()
    """Further folders."""

    def files(self) -> list[Path]:
        """Return the files that decide the image's content, in a stable order."""
        tree = [
            path
            for folder in (self.sources, *self.others)
            for path in folder.rglob("*")
            if path.is_file() and not _IGNORED.intersection(path.relative_to(folder).parts)
        ]
        tree = [path for path in tree if not path.parent.name.endswith(".egg-info")]
        named = {self.requirements} if self.requirements else set()
        return sorted({self.dockerfile, *named, *tree})

    def full_name(self, tag: str = "dev") -> str:
        """Return the image's name as the container runtime knows it."""
        return f"docker.io/library/{self.name}:{tag}"


TORCH = "cpu" if version("torch").endswith("+cpu") else "cuda"
"""The image has the build of torch that the tests' environment has."""

_IGNORED = frozenset({"__pycache__", "build", ".pytest_cache", ".mypy_cache", ".ruff_cache"})

OPERATOR = ImageSource(
    name="ddp-operator",
    dockerfile=REPOSITORY / "Dockerfile",
    requirements=REPOSITORY / "requirements/operator.txt",
    sources=REPOSITORY / "operator",
    others=(
        REPOSITORY / "protocol",
        REPOSITORY / "trainer-image/inject",
        REPOSITORY / "trainer-image/ddp_trainer",
    ),
)
TRAINER = ImageSource(
    name="ddp-trainer",
    dockerfile=REPOSITORY / "trainer-image/Dockerfile",
    requirements=REPOSITORY / f"requirements/trainer-{TORCH}.txt",
    sources=REPOSITORY / "trainer-image",
    others=(REPOSITORY / "protocol",),
)
PLAIN_PYTHON = ImageSource(
    name="plain-python",
    dockerfile=REPOSITORY / "tests/cluster/plain_python/Dockerfile",
    requirements=None,
    sources=REPOSITORY / "tests/cluster/plain_python",
)
"""Python, and nothing of this project."""

ALL = (OPERATOR, TRAINER, PLAIN_PYTHON)


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


def find(image: ImageSource) -> BuiltImage:
    """Return the image of exactly this checkout.

    Raises ClusterUnavailableError, with the remedy, when it was not built; nothing is built.
    """
    built = _named(image, with_docker=kind.usable())
    if not built.archive.exists():
        but = f", without {KUBECONFIG_VARIABLE}" if os.environ.get(KUBECONFIG_VARIABLE) else ""
        raise ClusterUnavailableError(
            f"no image {image.name} of these sources on this machine yet: "
            f"`make prepare` builds it{but}"
        )
    built.archive.touch()  # it is of use: others go first
    return built


def is_built(image: ImageSource) -> bool:
    """Tell whether the image of exactly this checkout exists."""
    return _named(image, with_docker=kind.usable()).archive.exists()


def build(image: ImageSource) -> BuiltImage:
    """Return the image as an archive, building it from its parts if it is not in the cache.

    Where Docker and kind serve the cluster, Docker builds the image with its usual base and index.
    Raises ClusterUnavailableError when this machine cannot build images, ClusterError when this
    one does not build.
    """
    with_docker = kind.usable()
    built = _named(image, with_docker=with_docker)
    with exclusive(built.archive.parent / "build.lock", waiting_for="another build of images"):
        if built.archive.exists():
            return built
        partial = built.archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        if with_docker:
            _build_with_docker(image, built.name, partial)
        else:
            _build_with_buildah(image, built.name, partial)
        partial.rename(built.archive)
        archives = built.archive.parent.glob(f"{image.name}-*.tar")
        newest_first = sorted(archives, key=lambda path: path.stat().st_mtime, reverse=True)
        for old in newest_first[_ARCHIVES_KEPT:]:
            old.unlink()
    return built


def _named(image: ImageSource, *, with_docker: bool) -> BuiltImage:
    base = "docker" if with_docker else image_parts.base_tag()
    build = _build_with_docker if with_docker else _build_with_buildah
    tag = content_hash(image.files(), base, getsource(build))
    archive = cache_dir("images") / f"{image.name}-{tag}.tar"
    return BuiltImage(archive, image.full_name(), image.full_name(tag))


def _build_with_docker(image: ImageSource, name: str, archive: Path) -> None:
    docker: tuple[str, ...] = ("docker", "build")
    if image is TRAINER:
        # Without a value, Docker takes an argument from the environment, if it is set there.
        docker += ("--build-arg", f"TORCH={TORCH}", "--build-arg", "PIP_EXTRA_INDEX_URL")
    output = ("docker", "save", "--output")
    image_parts.run(*docker, "--file", str(image.dockerfile), "--tag", name, str(REPOSITORY))
    image_parts.run(*output, str(archive), name)


def _build_with_buildah(image: ImageSource, name: str, archive: Path) -> None:
    image_parts.require()
    image_parts.make_base()
    arguments: tuple[str, ...] = ()
    if image.requirements:
        image_parts.fetch_wheels(image.requirements)
        arguments = (
            *("--build-arg", "PIP_NO_INDEX=1", "--build-arg", "PIP_FIND_LINKS=/wheels"),
            *("--volume", f"{image_parts.wheels(image.requirements)}:/wheels:ro"),
        )
    if image is TRAINER:
        arguments += ("--build-arg", f"TORCH={TORCH}")
    image_parts.buildah(
        *("build", "--isolation", "chroot", "--layers", "--pull-never", "--timestamp", _BUILT_AT),
        *("--from", image_parts.base_tag(), *arguments),
        *("--file", str(image.dockerfile), "--tag", name, str(REPOSITORY)),
    )
    image_parts.buildah("push", name, f"docker-archive:{archive}:{name}")


def load(image: BuiltImage, cluster: Cluster | Machine) -> None:
    """Make the image usable in a cluster or on a node, unless the very same is there already."""
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
