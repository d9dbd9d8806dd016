"""Kubernetes' own programs, at a version of one's choice, built from its Go modules.

``modules/kubernetes`` pins the usual version. KUBE_VERSION names another one. Its module files are
written into the cache: Kubernetes' module asks for its staging modules (``k8s.io/api`` and some
thirty more) at v0.0.0, and only a main module may say which versions these are.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.cache import cache_dir
from tests.cluster.errors import ClusterError
from tests.cluster.preparation.go_modules import (
    MODULES,
    GoPrograms,
    content_key,
    go_output,
    required_version,
)

VERSION_VARIABLE = "KUBE_VERSION"
OTHER_RELEASES = ("1.35.8", "1.37.2")
"""Releases of GKE's channels, besides the pinned one, with which `make nightly` takes turns."""
_PINNED = MODULES / "kubernetes"
_TOOLS = """\
//go:build tools

package tools

import (
{imports}
)
"""


def version() -> str:
    """Return the version of Kubernetes that the tests run on, such as ``1.36.3``.

    Raises ClusterError when KUBE_VERSION names none.
    """
    given = os.environ.get(VERSION_VARIABLE, "").removeprefix("v")
    if given and not re.fullmatch(r"1\.\d+\.\d+", given):
        raise ClusterError(f"{VERSION_VARIABLE}={given} is no release: write one such as 1.37.2")
    return given or pinned_version()


def pinned_version() -> str:
    """Return the version that ``modules/kubernetes`` pins."""
    return required_version(_PINNED, "k8s.io/kubernetes")


def programs_folder() -> Path:
    """Return the folder in the cache for the programs of this version; it may not exist yet."""
    name = f"v{version()}"
    if module() == _PINNED:  # the files of other versions are written before the build
        name += f"-{content_key(_PINNED)}"
    return cache_dir("kubernetes") / name


def module() -> Path:
    """Return the module folder of this version; `write_module` writes it where it is not pinned."""
    if version() == pinned_version():
        return _PINNED
    return cache_dir("modules") / f"kubernetes-v{version()}"


def has_module() -> bool:
    """Tell whether the module folder is there; an interrupted `write_module` leaves none."""
    return module().exists()


def write_module(programs: Sequence[str]) -> None:
    """Write the module folder of a version that is not pinned.

    Raises ClusterUnavailableError when the module proxy does not serve that version.
    """
    partial = module().with_name(f"{module().name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    (partial / "go.mod").write_text("module ddp-operator.io/test-cluster/kubernetes\n")
    name = f"k8s.io/kubernetes@v{version()}"
    go_output("mod", "download", name, cwd=partial)  # with -json, it writes errors elsewhere
    source = go_output("mod", "download", "-json", name, cwd=partial)
    [theirs] = re.findall(r'"GoMod": "(.+)"', source)
    (partial / "go.mod").write_text(go_mod(Path(theirs).read_text(), version()))
    imports = "\n".join(f'\t_ "{package}"' for package in packages(programs))
    (partial / "tools.go").write_text(_TOOLS.format(imports=imports))
    go_output("mod", "tidy", cwd=partial)
    shutil.rmtree(module(), ignore_errors=True)
    partial.rename(module())


def go_mod(theirs: str, version: str) -> str:
    """Return our ``go.mod`` for a version of Kubernetes, from the one of its own module."""
    language = re.findall(r"(?m)^(?:go|godebug) .+$", theirs)
    staging = re.findall(r"(?m)(k8s\.io/\S+) => \./staging/", theirs)
    replaced = "\n".join(f"\t{name} => {name} v0.{version.partition('.')[2]}" for name in staging)
    return "\n\n".join(
        (
            "module ddp-operator.io/test-cluster/kubernetes",
            *language,
            f"require k8s.io/kubernetes v{version}",
            f"replace (\n{replaced}\n)\n",
        )
    )


def packages(programs: Sequence[str]) -> list[str]:
    """Return the import paths of Kubernetes' programs."""
    return [f"k8s.io/kubernetes/cmd/{program}" for program in programs]


def build_of(programs: Sequence[str]) -> GoPrograms:
    """Return the build of some programs, which tell their version as a release's do."""
    major, minor, _ = version().split(".")
    stamp = {"gitVersion": f"v{version()}", "gitMajor": major, "gitMinor": minor}
    stamps = [f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamp.items()]
    stamps.append("-X k8s.io/component-base/version.gitTreeState=clean")
    return GoPrograms(
        module=module(),
        packages=packages(programs),
        into=programs_folder(),
        ldflags=" ".join(stamps),
    )
