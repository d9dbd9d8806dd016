"""Local files that pods get from a ConfigMap, without building an image."""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from ddp_operator.api.constants import LABEL_JOB_NAME
from ddp_operator.ports import Manifest

from ddp_client.submit.validation import JobRequestError

PATH: Final = "/ddp-scripts"
"""The folder of the files in pods."""
VOLUME: Final = "ddp-scripts"
MAX_BYTES: Final = 1024 * 1024
"""Most bytes of a ConfigMap's values (k8s.io/api, MaxSecretSize, the same for both kinds)."""
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")


@dataclass(frozen=True)
class Scripts:
    """Files by their local paths, as the command line names them."""

    files: Mapping[str, bytes]
    token: str = ""
    """Makes the ConfigMap's name unique to one submission: the ConfigMap of an earlier job that is
    being deleted must not be used again."""

    def __post_init__(self) -> None:
        """Check that a ConfigMap can hold the files.

        Raises:
            JobRequestError: it cannot; the text says why.
        """
        paths: dict[str, str] = {}
        for path in self.files:
            key = _key(path)
            if not _KEY.fullmatch(key) or key in (".", ".."):
                raise JobRequestError(
                    f"script {path[:120]!r}: use only letters, digits, - _ . in its name"
                )
            if key in paths:
                raise JobRequestError(
                    f"scripts {paths[key]} and {path}: both become {PATH}/{key}; rename one"
                )
            paths[key] = path
        if self.size > MAX_BYTES:
            raise JobRequestError(
                f"scripts: {self.size} bytes, but a ConfigMap holds at most {MAX_BYTES}; put large "
                "files into an image or a volume"
            )

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(map(len, self.files.values()))

    @property
    def digest(self) -> str:
        """Hash of names and contents: different files get a different ConfigMap."""
        total = sha256()
        for path in sorted(self.files, key=_key):
            for part in (_key(path).encode(), self.files[path]):
                total.update(len(part).to_bytes(8, "big") + part)
        return total.hexdigest()[:8]

    def name(self, job: str) -> str:
        """Return the ConfigMap's name."""
        return f"{job}-scripts-{self.digest}{self.token and '-'}{self.token}"

    def in_pods(self, command: Sequence[str]) -> list[str]:
        """Return the command with the files' paths in pods."""
        there = {path: f"{PATH}/{_key(path)}" for path in self.files}
        return [there.get(word, there.get(word.removeprefix("./"), word)) for word in command]

    def config_map(self, job: str) -> Manifest:
        """Return the ConfigMap; immutable, so that all pods of an attempt get the same files."""
        text: dict[str, str] = {}
        binary: dict[str, str] = {}
        for path, content in self.files.items():
            try:
                text[_key(path)] = content.decode()
            except UnicodeDecodeError:
                binary[_key(path)] = b64encode(content).decode()
        return immutable_config_map(self.name(job), job=job, text=text, binary=binary)


def immutable_config_map(
    name: str, *, job: str, text: Mapping[str, str], binary: Mapping[str, str]
) -> Manifest:
    """Return a ConfigMap of a job; `binary`: in base64."""
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {LABEL_JOB_NAME: job}},
        "immutable": True,
    }
    if text:
        manifest["data"] = text
    if binary:
        manifest["binaryData"] = binary
    return manifest


def _key(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
