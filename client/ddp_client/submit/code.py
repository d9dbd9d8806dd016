"""A folder of code that pods get as an archive, without building an image."""

import inspect
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any, Final

from ddp_operator.api.code import PARTS_VOLUME, Code
from ddp_operator.api.command import is_python
from ddp_operator.api.constants import ENV_CODE_DIR
from ddp_operator.api.values.text import clean
from ddp_operator.ports import Manifest
from ddp_protocol import code_archive, code_packing
from ddp_protocol.code_archive import (
    ID_FILE,
    MAX_BYTES,
    MAX_PACKED_BYTES,
    MAX_STORED_BYTES,
    MAX_STORED_PACKED_BYTES,
    PACKAGES,
    PART,
    PART_BYTES,
    ROOT,
    SITE,
    STORE,
    WORK,
    CodeError,
)

from ddp_client.submit.mounts import Mount
from ddp_client.submit.scripts import immutable_config_map
from ddp_client.submit.validation import JobRequestError, object_name

CONTAINER: Final = "ddp-code"
"""The init container that unpacks the code, and the volume with it."""
PARTS_PATH: Final = "/ddp-code-parts"
STORE_VOLUME: Final = "ddp-code-store"
"""Volume with archives that are too large for ConfigMaps, which the user named."""
STORE_PATH: Final = f"{ROOT}/{STORE}"
ENV_REQUIREMENTS: Final = "DDP_REQUIREMENTS"
"""Name and digest of the requirements file from which pods install packages."""
_UNPACK: Final = "unpack.py"
_OWN_REQUIREMENTS: Final = ".ddp-requirements.txt"
"""Name in the archive of a requirements file from outside the folder."""
_LARGEST: Final = 3
_MEGABYTE: Final = 1024 * 1024


@dataclass(frozen=True)
class CodeFolder:
    """The files of a folder, and the packages that they need."""

    files: Mapping[str, tuple[bytes, bool]]
    """Content by name, and whether it is a program."""
    token: str
    """Makes the names of the ConfigMaps unique to one submission, see `Scripts.token`."""
    requirements: str = ""
    """Name of the requirements file among them; empty: no packages are installed."""
    is_workdir: bool = True
    """The command runs in the folder; False: it has only the requirements."""
    volume: Mount | None = None
    """Stores the archive if it is too large for ConfigMaps."""

    @cached_property
    def packed(self) -> bytes:
        """The compressed archive.

        Raises:
            JobRequestError: it is too large; the text names the largest folders.
        """
        packed = code_packing.pack(self.archive)
        most = MAX_STORED_PACKED_BYTES if self.volume else MAX_PACKED_BYTES
        if len(packed) > most:
            sizes = {name: len(content) for name, (content, _) in self.files.items()}
            raise too_large(len(packed), most, " compressed", sizes, has_volume=bool(self.volume))
        return packed

    @cached_property
    def archive(self) -> bytes:
        """The archive, whose digest is the same wherever it is compressed.

        Raises:
            JobRequestError: a name or a limit.
        """
        try:
            return code_packing.make(self.files, MAX_STORED_BYTES if self.volume else None)
        except CodeError as error:
            raise JobRequestError(f"workdir: {error}") from None

    @property
    def is_stored(self) -> bool:
        """The archive travels through the volume."""
        size = sum(len(content) for content, _ in self.files.values())
        return len(self.packed) > MAX_PACKED_BYTES or size > MAX_BYTES

    @cached_property
    def sent(self) -> bytes:
        """What pods get: the compressed archive, or a reference to it in the volume."""
        return code_packing.reference_to(self.archive) if self.is_stored else self.packed

    @cached_property
    def code(self) -> Code:
        """The name of the code."""
        parts = -(-len(self.sent) // PART_BYTES)
        return Code(f"{code_archive.digest_of(self.archive)}-{self.token}", parts)

    def requirement_of(self, name: str) -> str:
        """Return name and digest of a requirements file, as `ENV_REQUIREMENTS` has them."""
        content, _ = self.files.get(name, (b"", False))
        return f"{name}@{sha256(content).hexdigest()[:12]}"

    def with_requirements(self, name: str, content: bytes) -> "CodeFolder":
        """Return the folder with this requirements file; `name`: within the folder, or empty."""
        if name in self.files:
            return replace(self, requirements=name)
        files = {**self.files, _OWN_REQUIREMENTS: (content, False)}
        return replace(self, files=files, requirements=_OWN_REQUIREMENTS)

    def config_maps(self, job: str) -> list[Manifest]:
        """Return the immutable ConfigMaps with the parts of what is sent."""
        made: list[Manifest] = []
        sent = self.sent
        for number, name in enumerate(self.code.config_maps(job)):
            part = sent[number * PART_BYTES : (number + 1) * PART_BYTES]
            text = {}
            if number == 0:
                text = {_UNPACK: inspect.getsource(code_archive), ID_FILE: self.code.id}
            made.append(
                immutable_config_map(
                    name,
                    job=job,
                    text=text,
                    binary={f"{PART}{number}": b64encode(part).decode()},
                )
            )
        return made

    def add_to(self, pod: dict[str, Any], container: dict[str, Any], *, job: str) -> None:
        """Give a pod's trainer the code, and an init container that unpacks it.

        Of the trainer it has the image, the variables and the mounts, so that pip uses the same
        index and credentials.
        """
        python = (container.get("command") or ["python3"])[0]
        command = [python if is_python(python) else "python3", "-I", f"{PARTS_PATH}/{_UNPACK}"]
        mount = {"name": CONTAINER, "mountPath": ROOT}
        if self.requirements:
            command.append(self.requirements)
            _set_python_path(container)
            set_variable(container, ENV_REQUIREMENTS, self.requirement_of(self.requirements))
        container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
        volumes = [*(pod.get("volumes") or [])]
        if self.volume:
            # Kubelets of many releases never start a pod that names a claim in two volumes.
            same = (v["name"] for v in volumes if _source(v) == self.volume.source)
            if (name := next(same, STORE_VOLUME)) == STORE_VOLUME:
                volumes.append({"name": name, **self.volume.source})
            store = {"name": name, "mountPath": STORE_PATH, "readOnly": True}
            container["volumeMounts"].append(store)
        unpacks = {
            "name": CONTAINER,
            "image": container["image"],
            "command": command,
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        for field in ("env", "envFrom", "resources"):
            if value := container.get(field):
                unpacks[field] = value
        parts = {"name": PARTS_VOLUME, "mountPath": PARTS_PATH, "readOnly": True}
        unpacks["volumeMounts"] = [*container["volumeMounts"], parts]
        pod["initContainers"] = [unpacks]
        pod["volumes"] = [*volumes, {"name": CONTAINER, "emptyDir": {}}, self.code.volume(job)]
        if self.is_workdir:
            container["workingDir"] = f"{ROOT}/{WORK}"
            set_variable(container, ENV_CODE_DIR, ROOT)


def code_volume(text: str) -> Mount:
    """Read the volume for archives: `pvc/NAME` or `gs://BUCKET`.

    Raises:
        JobRequestError: it has another form.
    """
    if not text.startswith(("pvc/", "gs://")):
        raise JobRequestError(f"code-volume {text[:120]!r}: use pvc/NAME or gs://BUCKET")
    object_name(text.removeprefix("pvc/").removeprefix("gs://").rstrip("/"), "code-volume")
    return Mount.parse(f"{text}:{STORE_PATH}:ro")


def code_volume_of(job: Manifest) -> Mount | None:
    """Return the volume for archives that a job's pods mount; None: they have none."""
    pod = job["spec"]["template"]["spec"]
    unpacks = (one for one in pod.get("initContainers") or () if one["name"] == CONTAINER)
    mounts = (mount for one in unpacks for mount in one.get("volumeMounts") or ())
    names = {mount["name"] for mount in mounts if mount["mountPath"] == STORE_PATH}
    sources = (_source(volume) for volume in pod.get("volumes") or () if volume["name"] in names)
    return next((Mount(source, STORE_PATH, read_only=True) for source in sources), None)


def too_large(
    size: int, most: int, what: str, sizes: Mapping[str, int], *, has_volume: bool
) -> JobRequestError:
    """Return the error of a folder that is too large; `sizes`: bytes of its files by name."""
    parts: dict[str, int] = {}
    for name, bytes_ in sizes.items():
        first = clean(PurePosixPath(name).parts[0], 60)
        parts[first] = parts.get(first, 0) + bytes_
    largest = sorted(parts, key=lambda name: -parts[name])[:_LARGEST]
    named = ", ".join(f"{name} {_megabytes(parts[name])}" for name in largest)
    larger = "" if has_volume else "; with a volume for the code (code-volume), more can be sent"
    return JobRequestError(
        f"workdir: {_megabytes(size)}{what}, but at most {_megabytes(most)} can be sent "
        f"(largest: {named}); put data into a volume, and its name into .gitignore{larger}"
    )


def requirement_in(container: Mapping[str, Any]) -> str:
    """Return the requirement of a job's trainer; empty: its pods install nothing."""
    env = container.get("env") or ()
    return next((e.get("value") or "" for e in env if e.get("name") == ENV_REQUIREMENTS), "")


def pip_cache(mounts: Sequence[Mount]) -> str:
    """Return a folder in a volume that outlives the pods, for pip's cache; empty: there is none."""
    kept = (mount for mount in mounts if "persistentVolumeClaim" in mount.source)
    return next((f"{mount.path}/.cache/pip" for mount in kept if not mount.read_only), "")


def _source(volume: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in volume.items() if name != "name"}


def _set_python_path(container: dict[str, Any]) -> None:
    env = container.setdefault("env", [])
    own = next((entry["value"] for entry in env if entry["name"] == "PYTHONPATH"), "")
    env[:] = [entry for entry in env if entry["name"] != "PYTHONPATH"]
    modules = f"{ROOT}/{PACKAGES}/{SITE}"
    env.append({"name": "PYTHONPATH", "value": f"{modules}:{own}" if own else modules})


def set_variable(container: dict[str, Any], name: str, value: str) -> None:
    """Add a variable to a container's environment."""
    container["env"] = [*(container.get("env") or []), {"name": name, "value": value}]


def _megabytes(size: int) -> str:
    return f"{size / _MEGABYTE:.1f} MiB"
