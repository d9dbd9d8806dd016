"""What pods say to schedulers."""

from collections.abc import Mapping
from typing import Any

from ddp_operator.ports import Manifest


def marked(
    pod: Manifest, *, labels: Mapping[str, str] | None = None, annotations: Mapping[str, str]
) -> dict[str, Any]:
    """Return the pod with these labels and annotations, whatever its template says of them: a gang
    is one only if all its pods say the same.
    """
    metadata = pod.get("metadata") or {}
    marks = {
        "labels": {**(metadata.get("labels") or {}), **(labels or {})},
        "annotations": {**(metadata.get("annotations") or {}), **annotations},
    }
    return {**pod, "metadata": {**metadata, **marks}}
