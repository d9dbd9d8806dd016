"""Resources that pods request and nodes offer, as the scheduler counts them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from ddp_operator.ports import Manifest

GPU: Final = "nvidia.com/gpu"

Resources = Counter[str]
"""Amounts by name, in thousandths: of cores, bytes, devices."""

_SUFFIXES: Final = {"m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def amount(quantity: str | int) -> int:
    """Return a quantity in thousandths."""
    text = str(quantity)
    suffix = next((one for one in _SUFFIXES if text.endswith(one)), "")
    return round(1000 * float(text.removesuffix(suffix)) * _SUFFIXES.get(suffix, 1))


def requested(pod: Manifest) -> Resources:
    """Return what a pod requests of its node: its containers together with its side cars, or more
    if an init container requests more.
    """
    spec = pod["spec"]
    side_cars, most = Resources(), Resources()
    for container in spec.get("initContainers") or ():
        own = _of_container(container)
        if container.get("restartPolicy") == "Always":
            side_cars += own
        else:
            most |= own + side_cars
    together = side_cars + _sum(map(_of_container, spec["containers"]))
    return (most | together) + Resources(pods=1000)


def offered(node: Manifest) -> Resources:
    """Return what a node has for pods."""
    return _read(node["status"]["allocatable"])


def _of_container(container: Manifest) -> Resources:
    resources = container.get("resources") or {}
    # The API server takes limits for requests that are not set.
    return _read({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _read(quantities: Mapping[str, str | int]) -> Resources:
    return Resources({name: amount(quantity) for name, quantity in quantities.items()})


def _sum(parts: Iterable[Resources]) -> Resources:
    total = Resources()
    for part in parts:
        total += part
    return total
