"""Labels and annotations for schedulers."""

from collections.abc import Mapping
from typing import Any

from ddp_operator.ports import Manifest


def marked(pod: Manifest, **marks: Mapping[str, str]) -> dict[str, Any]:
    """Return the pod with marks that override its template's: all pods of a gang have the same."""
    metadata = dict(pod.get("metadata") or {})
    for field, own in marks.items():
        metadata[field] = {**(metadata.get(field) or {}), **own}
    return {**pod, "metadata": metadata}
