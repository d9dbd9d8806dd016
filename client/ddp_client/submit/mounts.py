"""Volumes of a pod, in the form `pvc/data:/data:ro`."""

from dataclasses import dataclass
from typing import Any, Final, Self

from ddp_operator.api.constants import GKE_GCSFUSE_DRIVER

from ddp_client.submit.validation import JobRequestError, absolute, object_name

FORMS: Final = (
    "pvc/NAME:/path, gs://BUCKET:/path, configmap/NAME:/path, secret/NAME:/path or "
    "/host/path:/path, each with :ro for read-only"
)


@dataclass(frozen=True)
class Mount:
    """A volume and its mount path."""

    source: dict[str, Any]
    """The source in the pod's volume."""
    path: str
    read_only: bool = False
    bucket: bool = False
    """It is a Cloud Storage bucket: the pod needs an annotation."""

    @property
    def place(self) -> str:
        """The volume in words, such as `claim data`."""
        if claim := self.source.get("persistentVolumeClaim"):
            return f"claim {claim['claimName']}"
        if name := ((self.source.get("csi") or {}).get("volumeAttributes") or {}).get("bucketName"):
            return f"bucket {name}"
        return f"volume ({', '.join(self.source)})"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one of `FORMS`.

        Raises:
            JobRequestError: it has another form.
        """
        place, read_only = text.removesuffix(":ro"), text.endswith(":ro")
        source, colon, path = place.rpartition(":")
        if not colon or not source:
            raise JobRequestError(f"mount {text[:120]!r}: use {FORMS}")
        path = absolute(path, "mount")
        if source.startswith("gs://"):
            bucket = object_name(source.removeprefix("gs://").rstrip("/"), "bucket")
            attributes = {"driver": GKE_GCSFUSE_DRIVER, "volumeAttributes": {"bucketName": bucket}}
            return cls({"csi": attributes}, path, read_only, bucket=True)
        if source.startswith("/"):
            return cls({"hostPath": {"path": absolute(source, "mount")}}, path, read_only)
        kind, _, name = source.partition("/")
        name = object_name(name, f"mount {text[:120]!r}:")
        if kind == "pvc":
            return cls({"persistentVolumeClaim": {"claimName": name}}, path, read_only)
        if kind == "configmap":
            return cls({"configMap": {"name": name}}, path, read_only=True)
        if kind == "secret":
            return cls({"secret": {"secretName": name}}, path, read_only=True)
        raise JobRequestError(f"mount {text[:120]!r}: use {FORMS}")
