"""The slow preparations as steps in order. Finished steps are left out, others are announced."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path

from tests.cluster import kind
from tests.cluster.cache import say
from tests.cluster.errors import ClusterUnavailableError
from tests.cluster.preparation import (
    binaries,
    go_modules,
    image_parts,
    images,
    kubernetes,
    kueue,
    packages,
    prometheus,
)
from tests.cluster.preparation.busybox import busybox_archive, has_busybox
from tests.cluster.preparation.go_modules import GoPrograms
from tests.cluster.preparation.progress import in_words, remaining_seconds, shown
from tests.cluster.provider import KUBECONFIG_VARIABLE


class Stage(Enum):
    """The purpose of a step. The stages follow each other."""

    API_SERVER = "API server"
    NODE = "node"
    IMAGES = "images"
    KUEUE = "Kueue"
    """Beside the stages that follow and the first tests: those with pods leave cores idle, and only
    the last lane needs Kueue."""
    MONITORING = "Prometheus"
    BROWSER = "Chromium"


CLUSTER = (Stage.API_SERVER, Stage.NODE, Stage.IMAGES)
"""The stages of a cluster."""


def _nowhere() -> float:
    return 0.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """A slow preparation with a result that stays on this machine."""

    name: str
    stage: Stage
    usual_seconds: float
    """From nothing, on two cores."""
    is_done: Callable[[], bool]
    run: Callable[[], object]
    """Raises ClusterUnavailableError where this machine cannot have it, ClusterError where it ought
    to."""
    share: Callable[[], float] = _nowhere
    """How much of it is done, from 0 to 1, if that is known."""
    found: str = ""
    """A better name for a step that was already done."""
    is_optional: bool = False
    """Whether only a line is printed if this machine cannot run it. The tests that need it then
    skip, and fail in continuous integration."""


def steps(stages: Sequence[Stage] = tuple(Stage)) -> list[Step]:
    """Return the steps of some stages for this machine's kind of cluster, in order."""
    return [step for step in _all_steps() if step.stage in stages]


def _all_steps() -> list[Step]:
    if os.environ.get(KUBECONFIG_VARIABLE):
        return []  # another's cluster, into which nothing of ours can be loaded
    if kind.usable():
        return [_image(source) for source in images.ALL]
    return [
        _packages("Debian packages", Stage.API_SERVER, packages.CONTROL_PLANE),
        *(() if os.environ.get("KUBE_BIN_DIR") else _kubernetes()),
        _packages("Debian packages of the node", Stage.NODE, packages.NODE),
        Step(
            name="sandbox image",
            stage=Stage.NODE,
            usual_seconds=2,
            is_done=has_busybox,
            run=busybox_archive,
        ),
        _packages("Debian packages that build images", Stage.IMAGES, packages.IMAGES),
        Step(
            name=f"base image of Debian {image_parts.DEBIAN_SUITE}",
            stage=Stage.IMAGES,
            usual_seconds=60,
            is_done=image_parts.has_base,
            run=image_parts.make_base,
        ),
        *(_wheels(s.name, s.requirements) for s in images.ALL if s.requirements),
        *(_image(source) for source in images.ALL),
        Step(
            name=Stage.MONITORING.value,
            stage=Stage.MONITORING,
            usual_seconds=10,
            is_done=prometheus.is_there,
            run=prometheus.fetch,
            is_optional=True,
        ),
        _packages("Chromium", Stage.BROWSER, packages.BROWSER, is_optional=True),
        *(() if kueue.given() else [_kueue()]),
    ]


def say_what_is_there(wanted: Sequence[Step]) -> None:
    """Tell a person what is left to do by what is not named."""
    if there := [step.found or step.name for step in wanted if step.is_done()]:
        say(f"there already: {'; '.join(there)}")


def prepare(
    wanted: Sequence[Step], *, reached: Callable[[Stage], object] = lambda _: None
) -> float:
    """Do all steps that are not done; return how many seconds that took.

    `reached`: called with each stage when all its steps are done; with Kueue from another thread.

    Raises ClusterUnavailableError if this machine cannot run a cluster, ClusterError if something
    failed that should work.
    """
    began = time.monotonic()
    ordered = [step for stage in Stage for step in wanted if step.stage is stage]
    pending = [step for step in ordered if not step.is_done()]
    with ThreadPoolExecutor(max_workers=1) as beside:
        for stage in Stage:
            if stage is Stage.KUEUE:
                kueue = beside.submit(_prepare_stage, stage, pending, reached)
            else:
                _prepare_stage(stage, pending, reached)
        kueue.result()
    return time.monotonic() - began


def _prepare_stage(
    stage: Stage, pending: Sequence[Step], reached: Callable[[Stage], object]
) -> None:
    for number, step in enumerate(pending):
        if step.stage is stage:
            after = [later for later in pending[number + 1 :] if later.stage is not Stage.KUEUE]
            _do(step, f"preparing {number + 1}/{len(pending)}", after=after)
    reached(stage)


def _do(step: Step, label: str, *, after: Sequence[Step]) -> None:
    then = sum(later.usual_seconds for later in after)

    def line(elapsed: float) -> str:
        left = remaining_seconds(elapsed, step.usual_seconds, share=step.share())
        still = "longer than usual" if left is None else f"about {in_words(left)} more"
        rest = f", {in_words((left or 0) + then)} with all that follows" if after else ""
        return f"{label}: {step.name}, {in_words(elapsed)} ({still}{rest})"

    began = time.monotonic()
    try:
        if step.stage is Stage.KUEUE:  # the line that changes is that of the steps beside it
            say(f"{label}: {step.name}, beside the next steps")
            step.run()
        else:
            with shown(line):
                step.run()
    except ClusterUnavailableError as reason:
        if not step.is_optional:
            raise
        say(f"{label}: NO {step.name.upper()} ON THIS MACHINE: {reason}")
        return
    say(f"{label}: {step.name}, done in {in_words(time.monotonic() - began)}")


def _packages(
    name: str, stage: Stage, programs: Mapping[str, str], *, is_optional: bool = False
) -> Step:
    return Step(
        name=name,
        stage=stage,
        usual_seconds=30,
        is_done=lambda: not packages.missing(programs),
        run=partial(packages.install, programs),
        found=f"{name} ({', '.join(sorted(set(programs.values())))})",
        is_optional=is_optional,
    )


def _kubernetes() -> list[Step]:
    version = kubernetes.version()
    # In two parts: tests that need the API server alone start when the first is built.
    first = kubernetes.build_of((*binaries.API_SERVER, "kubectl"))
    second = kubernetes.build_of(("kubelet",))

    def is_built() -> bool:
        return first.is_done() and second.is_done()

    return [
        Step(
            name="Go",
            stage=Stage.API_SERVER,
            usual_seconds=30,
            is_done=lambda: go_modules.has_go() or is_built(),
            run=go_modules.fetch_go,
        ),
        Step(
            name=f"module files of Kubernetes {version}",
            stage=Stage.API_SERVER,
            usual_seconds=30,
            is_done=lambda: kubernetes.has_module() or is_built(),
            run=partial(kubernetes.write_module, binaries.ALL),
        ),
        go_programs(first, f"Kubernetes {version}", Stage.API_SERVER, 400),
        go_programs(second, f"Kubernetes {version}", Stage.NODE, 60),
    ]


def go_programs(build: GoPrograms, of: str, stage: Stage, usual_seconds: float) -> Step:
    """Return the step that builds some programs from Go modules."""
    return Step(
        name=f"building {', '.join(build.names)} of {of}",
        stage=stage,
        usual_seconds=usual_seconds,
        is_done=build.is_done,
        run=build.build,
        share=build.share,
    )


def _kueue() -> Step:
    build = kueue.build()

    def run() -> None:
        go_modules.fetch_go()  # which it is there for already where Kubernetes was built
        build.build()

    return replace(
        go_programs(build, f"Kueue {kueue.version()}", Stage.KUEUE, 300), run=run, is_optional=True
    )


def _wheels(name: str, requirements: Path) -> Step:
    return Step(
        name=f"wheels of {name}",
        stage=Stage.IMAGES,
        usual_seconds=20,
        is_done=lambda: image_parts.wheels(requirements).exists(),
        run=partial(image_parts.fetch_wheels, requirements),
    )


def _image(source: images.ImageSource) -> Step:
    return Step(
        name=f"image {source.name}",
        stage=Stage.IMAGES,
        usual_seconds=50,
        is_done=lambda: images.is_built(source),
        run=partial(images.build, source),
    )
