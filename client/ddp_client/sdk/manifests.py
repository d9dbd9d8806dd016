"""Build manifests from the arguments of `run`."""

import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypedDict

from ddp_operator.api.values.text import clean
from ddp_operator.ports import Manifest

from ddp_client.sdk.function import script_of
from ddp_client.submit import (
    CodeFolder,
    JobRequest,
    JobRequestError,
    Scripts,
    job_manifest,
)
from ddp_client.submit.code import code_volume
from ddp_client.submit.folder import read_code
from ddp_client.submit.names import derived_name, valid_name
from ddp_client.submit.request import Launcher, read_options

_FILE: Final = "ddp_function.py"
"""Not the function's name: a script random.py would shadow `import random`."""
_SUFFIX_BYTES: Final = 2


class Options(TypedDict, total=False):
    """Further options of `run`, the same as of `kubectl ddp run`."""

    name: str
    """Default: the name of the function or program, with four random characters."""
    image: str
    """Required on a cluster; it must have Python and the function's imports, or the command."""
    replicas: int
    gpus: str | int
    """For each pod, such as `8`, `h100:8` or `amd.com/gpu=8`."""
    spot: bool
    cpu: str
    memory: str
    queue: str
    """Kueue's LocalQueue."""
    env: Mapping[str, str]
    env_from: Sequence[str]
    """`secret/NAME` and `configmap/NAME`."""
    mounts: Sequence[str]
    """Such as `pvc/data:/data:ro`."""
    checkpoint: str
    """`pvc/NAME` or `gs://BUCKET`."""
    memory_checkpoint: str
    """`SIZE` or `SIZE,copies=N`: memory of each pod for snapshots, such as `64Gi,copies=1`."""
    max_restarts: int
    min_replicas: int
    """Training continues with this many pods while others are missing."""
    max_replicas: int
    """The job grows up to this many pods when nodes are available."""
    spares: int
    """Additional pods that wait to replace a lost one."""
    user: int
    """User ID of the processes; default: the image's user, which must not be root in `restricted`
    namespaces."""
    launcher: Launcher
    workdir: str | Path
    """Folder whose files are sent by git's rules; the command runs in it."""
    code_volume: str
    """`pvc/NAME` or `gs://BUCKET`: stores a folder that is too large for ConfigMaps."""
    pip: str | Path
    """Requirements file whose packages are installed before the start."""


def build_manifests(
    function: Callable[..., object] | None,
    command: Sequence[str] | None,
    arguments: Mapping[str, Any] | None,
    options: Options,
    *,
    default_image: str | None,
    nodes: Sequence[Manifest] = (),
    here: bool = False,
) -> tuple[Manifest, list[Manifest], CodeFolder | None]:
    """Return the job, the ConfigMaps with its script or code, and that code.

    `nodes`: those of the cluster; `here`: it runs on this machine, which has the code.

    Raises:
        JobRequestError: an argument is invalid; names it.
        FunctionError: the function cannot run on its own.
    """
    if unknown := [*options.keys() - Options.__annotations__.keys()]:
        raise JobRequestError(
            f"run has no argument {clean(min(unknown), 80)}: use a manifest with apply for other "
            "fields; pass a function's own arguments in arguments={…}"
        )
    workdir, pip = options.get("workdir"), options.get("pip")
    given = read_options(options)
    if workdir and function is not None:
        raise JobRequestError("workdir: only for a command; a function imports what the image has")
    image = given.get("image", default_image)
    if image is None:
        raise JobRequestError(
            "image: name an image with Python and everything that the function or command needs"
        )
    scripts, command, called = _program(function, command, arguments)
    if "gpus" in given:
        given["gpus"] = given["gpus"].on_nodes(nodes)
    reserved = 2 * _SUFFIX_BYTES + 1
    stem = valid_name(called, reserved=reserved) if called else ""
    stem = stem or derived_name(command, reserved=reserved)
    name = options.get("name") or f"{stem}-{secrets.token_hex(_SUFFIX_BYTES)}"
    if pip and here:
        raise JobRequestError("pip: needs a cluster; install the packages on this machine")
    volume = code_volume(options["code_volume"]) if options.get("code_volume") else None
    code, left_out = (None, "") if here else read_code(workdir, pip, volume)
    if left_out:
        warnings.warn(f"workdir: {left_out}", stacklevel=2)
    request = JobRequest(
        **{**given, "name": name, "image": image},
        command=command,
        scripts=scripts,
        code=code,
    )
    job = job_manifest(request)
    if workdir and here:
        [container] = job["spec"]["template"]["spec"]["containers"]
        container["workingDir"] = str(Path(workdir).resolve())
    config_maps = [scripts.config_map(name)] if scripts else []
    return job, config_maps + (code.config_maps(name) if code else []), code


def _program(
    function: Callable[..., object] | None,
    command: Sequence[str] | None,
    arguments: Mapping[str, Any] | None,
) -> tuple[Scripts | None, Sequence[str], str]:
    """Return the script of a function, the command, and the function's name, empty without one.

    Raises:
        JobRequestError: there is no command or function, or there are both.
    """
    if function is not None:
        if command is not None:
            raise JobRequestError("command: give a function or a command, not both")
        text = script_of(function, arguments or {})
        scripts = Scripts({_FILE: text.encode()}, token=secrets.token_hex(_SUFFIX_BYTES))
        return scripts, ["python", _FILE], function.__name__
    if arguments is not None:
        raise JobRequestError(
            "arguments: only for a function; put a command's arguments into the command"
        )
    if not command:
        raise JobRequestError("give run a function, or a command=[…]")
    if isinstance(command, str):
        raise JobRequestError("command: give a list of words, such as ['python', 'train.py']")
    return None, command, ""
