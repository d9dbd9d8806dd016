"""What pods say to schedulers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from ddp_operator.ports import Manifest

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def marked(
    pod: Manifest, *, labels: Mapping[str, str] = _NONE, annotations: Mapping[str, str] = _NONE
) -> dict[str, Any]:
    """Return the pod with these labels and annotations, whatever its template says of them: a gang
    is one only if all its pods say the same.
    """
    metadata = dict(pod.get("metadata") or {})
    for field, marks in (("labels", labels), ("annotations", annotations)):
        if marks:
            metadata[field] = {**(metadata.get(field) or {}), **marks}
    return {**pod, "metadata": metadata}
