"""A person's own files, brought into pods by a ConfigMap instead of an image."""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from ddp_operator.api.constants import LABEL_JOB_NAME
from ddp_operator.ports import Manifest
from ddp_operator.submit.words import JobRequestError

PATH: Final = "/ddp-scripts"
"""Where pods see them."""
VOLUME: Final = "ddp-scripts"
MAX_BYTES: Final = 1024 * 1024
"""Of a ConfigMap's values (k8s.io/api, MaxSecretSize, which holds for both)."""
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")


@dataclass(frozen=True)
class Scripts:
    """Files by the paths under which a command line names them on this machine."""

    files: Mapping[str, bytes]
    token: str = ""
    """Makes the ConfigMap's name that of one submission: one that goes with a job of before, which
    is being deleted, must not be met again."""

    def __post_init__(self) -> None:
        """Check what a ConfigMap can hold.

        Raises:
            JobRequestError: it cannot hold these.
        """
        seen: dict[str, str] = {}
        for path in self.files:
            key = _key(path)
            if not _KEY.fullmatch(key) or key in (".", ".."):
                raise JobRequestError(
                    f"script {path[:120]!r}: its name may have letters, digits, - _ ."
                )
            if key in seen:
                raise JobRequestError(
                    f"scripts {seen[key]} and {path}: pods see both as {PATH}/{key}"
                )
            seen[key] = path
        if self.size > MAX_BYTES:
            raise JobRequestError(
                f"scripts: {self.size} bytes, more than the {MAX_BYTES} that a ConfigMap has room "
                "for; put what is large into an image or a volume"
            )

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(map(len, self.files.values()))

    @property
    def digest(self) -> str:
        """Of names and contents: other files are another ConfigMap."""
        total = sha256()
        for path in sorted(self.files, key=_key):
            for part in (_key(path).encode(), self.files[path]):
                total.update(len(part).to_bytes(8, "big") + part)
        return total.hexdigest()[:8]

    def name(self, job: str) -> str:
        """Of the ConfigMap."""
        return f"{job}-scripts-{self.digest}{self.token and '-'}{self.token}"

    def in_pods(self, command: Sequence[str]) -> list[str]:
        """The command as pods can run it: files are called as they are called there."""
        there = {path: f"{PATH}/{_key(path)}" for path in self.files}
        return [there.get(word, there.get(word.removeprefix("./"), word)) for word in command]

    def config_map(self, job: str, *, namespace: str | None = None) -> Manifest:
        """The ConfigMap: never changed, for pods of one attempt must not see different files."""
        text: dict[str, str] = {}
        binary: dict[str, str] = {}
        for path, content in self.files.items():
            try:
                text[_key(path)] = content.decode()
            except UnicodeDecodeError:
                binary[_key(path)] = b64encode(content).decode()
        metadata: dict[str, Any] = {"name": self.name(job), "labels": {LABEL_JOB_NAME: job}}
        if namespace:
            metadata["namespace"] = namespace
        found: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "immutable": True,
        }
        if text:
            found["data"] = text
        if binary:
            found["binaryData"] = binary
        return found


def _key(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
