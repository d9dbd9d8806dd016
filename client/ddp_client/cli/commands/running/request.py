"""The request that the options of `run` make."""

import secrets
from typing import Any

import click

from ddp_client.local.run.manifest import NO_IMAGE
from ddp_client.submit import CodeFolder, JobRequest, JobRequestError, Mount, Scripts
from ddp_client.submit.code import code_volume
from ddp_client.submit.folder import read_code, read_start
from ddp_client.submit.names import derived_name
from ddp_client.submit.request import read_options

_FOR_CLUSTERS = {
    "--dry-run": "dry_run",
    "--replace": "replace",
    "--detach": "detach",
    "--wait": "quietly",
    "--pip": "pip",
}
"""Options that a local run, which shows its logs here until its end, cannot follow."""


def request_of(name: str | None, given: dict[str, Any]) -> JobRequest:
    """Return the job that these options describe.

    Raises:
        JobRequestError: an option is invalid, or does not fit another one.
    """
    command = given["command"] or given["scripts"][:1]
    if not name and not command:
        raise JobRequestError("NAME: name the job, or give its command after --")
    image = given["image"] or (NO_IMAGE if given["local"] else None)
    if image is None:
        raise JobRequestError("--image: name an image, or add --local to run on this machine")
    if given["local"]:
        for option, value in _FOR_CLUSTERS.items():
            if given[value]:
                raise JobRequestError(f"{option} needs a cluster: leave it out, or --local")
    if given["workdir"] and given["scripts"]:
        raise JobRequestError("--script: --workdir sends a whole folder; use one of the two")
    read = {path: _read(path) for path in given["scripts"]}
    volume = code_volume(given["code_volume"]) if given["code_volume"] else None
    return JobRequest(
        **{
            **read_options(given),
            "name": name or derived_name(command),
            "image": image,
            "env": dict(_variable(text) for text in given["env"]),
            "scripts": Scripts(read, token=secrets.token_hex(2)) if read else None,
            "code": None if given["local"] else code_of(given["workdir"], given["pip"], volume),
        }
    )


def code_of(
    workdir: str | None, requirements: str | None, volume: Mount | None
) -> CodeFolder | None:
    """Read a folder and a requirements file; say what of the folder is left out.

    `volume`: stores the code if it is too large for ConfigMaps.

    Raises:
        JobRequestError: a file cannot be read, or they are too large.
    """
    code, left_out = read_code(workdir, requirements, volume)
    if left_out:
        click.echo(f"note: {left_out}", err=True)
    return code


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise JobRequestError(f"--env {text[:80]!r}: use NAME=VALUE")
    return name, value


def _read(path: str) -> bytes:
    try:
        return read_start(path)
    except OSError as error:
        raise JobRequestError(f"--script {path}: cannot read it: {error.strerror}") from None
