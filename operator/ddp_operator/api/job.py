"""A DDPJob as the operator sees it, parsed from what the API server stores."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, Self

import orjson
from pydantic import ValidationError

from ddp_operator.api.constants import (
    ANNOTATION_CODE,
    ANNOTATION_RESTART_REQUESTED,
    GPU_RESOURCE,
    PREBUILT_WORKLOAD,
    TRAINER_CONTAINER,
)
from ddp_operator.api.rules import gpu_limit, violations, wants_host_network
from ddp_operator.api.spec import POD_FIELDS, DDPJobSpec
from ddp_operator.api.spec.base import in_words
from ddp_operator.api.spec.overrides import applied
from ddp_operator.api.spec.template import PodTemplate
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.api.values.bounded import MAX_WORD
from ddp_operator.api.values.limits import (
    BYTES_PER_VALUE,
    MAX_MESSAGE,
    MAX_PACKED_BYTES,
    MAX_PARSED_BYTES,
    MAX_SPEC_BYTES,
    MAX_SPEC_VALUES,
    has_too_many_values,
    linear,
    most_values,
)
from ddp_operator.ports import Key, Manifest

_UNPACKED: Final = 8
"""Large specs that stay parsed for the next decision: 3 MB each at most."""
_POD_GROUP: Final = linear(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
"""Names of Workloads with a pod group: the pods have a label with this value."""

_ROOTS = {
    DDPJobSpec.__name__: "spec",
    PodTemplate.__name__: "spec.template",
    DDPJobStatus.__name__: "status",
}


class InvalidJobError(ValueError):
    """A stored job that the operator cannot act on. The text names each field and what is wrong."""

    def __init__(self, text: str) -> None:
        super().__init__(text[:MAX_MESSAGE])


class NewerJobError(InvalidJobError):
    """A stored job with fields or values that this release does not know.

    The API server keeps only fields that its CRD knows, so the CRD of a newer release is installed.
    The server then gives each new field's default to all jobs, also to those that run.
    """


_NEWER = frozenset({"extra_forbidden", "literal_error"})
"""pydantic's error types for unknown fields and unknown words."""


@dataclass(frozen=True, slots=True)
class DDPJob:
    """One job: identity, spec and status."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    created: datetime
    deleting: bool
    restart_requested: str
    """Value of the annotation of that name; empty if there is none."""
    spec: DDPJobSpec
    status: DDPJobStatus
    spec_hash: str
    """Digest of everything that shapes the pods. Pods with another digest belong to an older
    spec."""
    code_requested: str = ""
    """Value of the annotation `code`; empty if there is none."""
    prebuilt_workload: str = ""
    """Kueue's Workload that MultiKueue has copied to this cluster for the job; empty if none."""
    spec_as_stored: bytes = field(default=b"", compare=False, repr=False)
    """Digest of the whole spec as the API server stores it."""
    packed_spec: bytes = field(default=b"", compare=False, repr=False)
    """The spec as compressed JSON, if it is large; otherwise empty."""

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return Key(self.namespace, self.name)

    @classmethod
    def parse(cls, manifest: Manifest, known: Self | None = None) -> Self:
        """Read a stored job. Reuse the spec of `known`, maybe an outline, if it is the same.

        Raises:
            InvalidJobError: the spec or status is invalid, or breaks a rule. The text says where
            and how.
            NewerJobError: the only problems are unknown names.
        """
        metadata = manifest["metadata"]
        written = _written(manifest.get("spec"))
        spec_as_stored = sha256(written).digest()
        wanted = (metadata["name"], spec_as_stored)  # rules also depend on the name
        same = known if known and (known.name, known.spec_as_stored) == wanted else None
        packed = same.packed_spec if same else _packed(written, manifest.get("spec"))
        try:
            # Parsed again, because orjson's objects share their keys with everything else that it
            # has read.
            spec = same.spec if same else _read_spec(orjson.loads(written) or {})
            status = DDPJobStatus.model_validate(manifest.get("status") or {})
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
            types = {item["type"] for item in problems}
            is_newer = error.title == DDPJobSpec.__name__ and types <= _NEWER
            kind = NewerJobError if is_newer else InvalidJobError
            raise kind(in_words(_ROOTS[error.title], problems, manifest)) from None
        if same is None and (broken := violations(metadata["name"], spec)):
            raise InvalidJobError("; ".join(broken))
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            resource_version=metadata.get("resourceVersion", ""),
            created=datetime.fromisoformat(metadata["creationTimestamp"]),
            deleting="deletionTimestamp" in metadata,
            restart_requested=_annotation(metadata, ANNOTATION_RESTART_REQUESTED),
            code_requested=_annotation(metadata, ANNOTATION_CODE),
            spec=spec,
            status=status,
            spec_hash=same.spec_hash if same else _spec_hash(spec),
            prebuilt_workload="" if spec.managed_elsewhere else _prebuilt_workload(metadata),
            spec_as_stored=spec_as_stored,
            packed_spec=packed,
        )

    def continued(self, manifest: Manifest) -> Self:
        """Return the stored job with this job's spec, because the stored spec is invalid.

        Only `suspend` is taken from the stored spec: it is valid by itself, and releases the pods.

        Raises:
            InvalidJobError: the stored status is invalid, too.
        """
        spec = self.whole.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        stored = manifest.get("spec")
        suspend = stored.get("suspend", False) if isinstance(stored, Mapping) else None
        if isinstance(suspend, bool):
            spec["suspend"] = suspend
        return self.parse({**manifest, "spec": spec}, self)

    @property
    def outline(self) -> Self:
        """The job as scans of all jobs need it. Of a large spec, the templates have only
        accelerators and hostNetwork, and restart rules are left out.
        """
        return replace(self, spec=_outline(self.spec)) if self.packed_spec else self

    @property
    def whole(self) -> Self:
        """The job of an outline, as decisions need it."""
        return replace(self, spec=_unpacked(self.packed_spec)) if self.packed_spec else self


def _packed(written: bytes, spec: Any) -> bytes:
    """Return a spec for the memory: compressed if it is large, otherwise empty.

    Raises:
        InvalidJobError: it has too many values, or is too large even then.
    """
    values = most_values(written)
    if values > MAX_SPEC_VALUES and has_too_many_values(spec):
        raise InvalidJobError(
            f"spec: more than {MAX_SPEC_VALUES} objects, lists and other values; "
            "move long lists into a ConfigMap or the image"
        )
    if len(written) + BYTES_PER_VALUE * values <= MAX_PARSED_BYTES:
        return b""
    packed = zlib.compress(written)
    if len(packed) > MAX_PACKED_BYTES:
        raise InvalidJobError(
            f"spec: {len(packed)} bytes when compressed, more than {MAX_PACKED_BYTES}; "
            "move long texts into a ConfigMap or the image"
        )
    return packed


@lru_cache(maxsize=_UNPACKED)
def _unpacked(packed: bytes) -> DDPJobSpec:
    return DDPJobSpec.model_validate(orjson.loads(zlib.decompress(packed)))


def _outline(spec: DDPJobSpec) -> DDPJobSpec:
    overrides = [
        one.model_copy(update={"template": _template(applied(spec, one)), "accelerator": None})
        for one in spec.overrides or ()
    ]
    short = {
        "template": _template(spec),
        "accelerator": None,
        "overrides": overrides or None,
        "restart": spec.restart.model_copy(update={"rules": []}),
    }
    return spec.model_copy(update=short)


def _template(spec: DDPJobSpec) -> Manifest:
    """Return a template with only the trainer's accelerators and hostNetwork."""
    limits = {GPU_RESOURCE: gpu_limit(spec)}
    return {
        "spec": {
            "containers": [{"name": TRAINER_CONTAINER, "resources": {"limits": limits}}],
            "hostNetwork": wants_host_network(spec),
        }
    }


def _read_spec(stored: Manifest) -> DDPJobSpec:
    spec = DDPJobSpec.model_validate(stored)
    PodTemplate.model_validate(spec.template)
    _check_overrides(spec)
    return spec


def _check_overrides(spec: DDPJobSpec) -> None:
    """Check that each override results in a valid pod template."""
    for number, override in enumerate(spec.overrides or ()):
        template = applied(spec, override).template
        try:
            PodTemplate.model_validate(template)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
            words = in_words("spec.template", problems, {"spec": {"template": template}})
            raise InvalidJobError(
                f"spec.overrides[{number}].template: results in an invalid pod template: {words}"
            ) from None


def _annotation(metadata: Manifest, name: str) -> str:
    """Return as much of an annotation as the status keeps."""
    value: str = (metadata.get("annotations") or {}).get(name, "")
    return value[:MAX_WORD]


def _prebuilt_workload(metadata: Manifest) -> str:
    """Return the Workload that Kueue reads from a job's annotation, or otherwise from its label. An
    annotation may hold any text; what cannot name a pod group is ignored.
    """
    for kind in ("annotations", "labels"):
        name: str = (metadata.get(kind) or {}).get(PREBUILT_WORKLOAD, "")
        if _POD_GROUP.fullmatch(name):
            return name
    return ""


def _written(spec: Any) -> bytes:
    """Return a spec as JSON.

    Raises:
        InvalidJobError: it is too large, or not JSON.
    """
    try:
        written = orjson.dumps(spec)
    except TypeError as error:  # nested a few hundred levels deep, as no pod template is
        raise InvalidJobError(f"spec: cannot be written as JSON: {error}") from None
    if len(written) > MAX_SPEC_BYTES:
        raise InvalidJobError(
            f"spec: {len(written)} bytes as JSON, more than {MAX_SPEC_BYTES}; "
            "move long texts into a ConfigMap or the image"
        )
    return written


def _spec_hash(spec: DDPJobSpec) -> str:
    """Digest the fields that shape pods. Fields at their defaults are left out, so that a release
    that adds a field restarts no job.
    """
    fields = set(POD_FIELDS) - {"template"}
    if spec.elastic:  # pods are the same in a group of any size
        fields.remove("replicas")
    shape = spec.model_dump(mode="json", include=fields, exclude_defaults=True)
    shape["template"] = spec.template
    if spec.elastic:
        shape["batch"] = spec.elastic.batch
    return sha256(orjson.dumps(shape, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
