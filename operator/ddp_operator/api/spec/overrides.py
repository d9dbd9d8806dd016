"""Applies `spec.overrides`: the spec of a single pod, and the kinds of pods of a job.

Everything that depends on one pod (its template, accelerator, processes) asks this module. A job of
equal pods is the simplest case.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from ddp_operator.api.spec import DDPJobSpec, Override
from ddp_operator.api.spec.accelerator import Accelerator
from ddp_operator.api.values.merge_patch import patched


def ranges(override: Override) -> Iterator[range]:
    """Return the pods of an override, one range for each entry."""
    for text in override.indexes:
        first, _, last = text.partition("-")
        yield range(int(first), int(last or first) + 1)


def spec_of(spec: DDPJobSpec, index: int) -> DDPJobSpec:
    """Return the spec that applies to one pod."""
    for override in spec.overrides or ():
        if any(index in pods for pods in ranges(override)):
            return applied(spec, override)
    return spec


def applied(spec: DDPJobSpec, override: Override) -> DDPJobSpec:
    """Return the spec that applies to the pods of an override, itself without overrides."""
    changes: dict[str, Any] = {"overrides": None}
    if override.nproc_per_node is not None:
        changes["nproc_per_node"] = override.nproc_per_node
    if override.accelerator is not None:
        changes["accelerator"] = override.accelerator
    if override.template is not None:
        changes["template"] = patched(spec.template, override.template)
    return spec.model_copy(update=changes)


def kinds(spec: DDPJobSpec) -> Sequence[tuple[DDPJobSpec, Sequence[range]]]:
    """Return each kind of pod with the indexes of its pods. The kind without overrides comes last.

    Kinds without pods are left out, so the kind without overrides may be missing.
    """
    if not spec.overrides:
        return [(spec, (range(spec.replicas),))]
    found = [(applied(spec, one), tuple(ranges(one))) for one in spec.overrides]
    plain = tuple(_rest(spec))
    return [*found, (spec, plain)] if plain else found


def accelerators(spec: DDPJobSpec) -> Sequence[Accelerator]:
    """Return the accelerators of all kinds of pods."""
    return [kind.accelerator for kind, _ in kinds(spec) if kind.accelerator]


def unknown(spec: DDPJobSpec) -> str:
    """Return the first index or range that names no pod, or an empty text."""
    for override in spec.overrides or ():
        for text, pods in zip(override.indexes, ranges(override), strict=True):
            if not (pods and pods.stop <= spec.replicas):
                return text
    return ""


def twice(spec: DDPJobSpec) -> str:
    """Return an index that is named twice, or an empty text."""
    named = [pods for override in spec.overrides or () for pods in ranges(override) if pods]
    begins = (pods.start for pods in named)  # overlapping ranges overlap where one of them begins
    return next((str(i) for i in begins if sum(i in pods for pods in named) > 1), "")


def _rest(spec: DDPJobSpec) -> Iterator[range]:
    taken = (pods for override in spec.overrides or () for pods in ranges(override))
    end = 0
    for pods in sorted(taken, key=lambda pods: pods.start):
        if end < pods.start:
            yield range(end, pods.start)
        end = max(end, pods.stop)
    if end < spec.replicas:
        yield range(end, spec.replicas)
