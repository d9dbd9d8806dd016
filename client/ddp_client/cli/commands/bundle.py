"""The command `bundle`."""

import io
import os
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
from ddp_operator.api.values.text import clean, counted
from ddp_operator.ports import Key

from ddp_client.cli.app import job_argument, on_job
from ddp_client.remote.bundle import Bundle, Collector
from ddp_client.remote.cluster import Cluster

_NO_NAME: Final = re.compile(r"[^\w./-]|\.\.")
_SHOWN: Final = 200


@click.command()
@job_argument
@click.option(
    "--output",
    "-o",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Default: NAME-bundle.tar.gz in the current directory.",
)
def bundle(name: str, path: Path | None) -> None:
    """Collect a job's data in one archive for a bug report.

    The archive has the job, its pods, events and nodes, the last lines of logs, versions, and the
    operator if you may read it.

    Secrets are never read, and values of environment variables are always removed. Other secrets
    are recognized by their names (DB_PASS=..., --wandb-key ...), their places (headers, URLs,
    after login) or the forms of known tokens. One without such a sign stays, for example a password
    that a program prints alone: check the archive before you send it. The command shows how many
    were removed from each file, and the archive has the same list in removed.txt.
    """
    path = path or Path(f"{name}-bundle.tar.gz")
    if path.exists():
        raise click.UsageError(f"{path} already exists: choose another --output, or remove it")

    async def collect(cluster: Cluster, key: Key) -> Bundle:
        return await Collector(cluster).collect(key, await cluster.job(key))

    evidence = on_job(name, collect)
    content = archive(evidence, f"{name}-bundle")
    try:
        # Readable only by its owner: the content may be confidential.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from None
    for file_name, data in [*evidence.files.items()][:_SHOWN]:
        removed = _listed(evidence.removed.get(file_name))
        click.echo(f"  {len(data):>9}  {clean(file_name, 300)}{removed and f'  ({removed})'}")
    if len(evidence.files) > _SHOWN:
        click.echo(f"  and {len(evidence.files) - _SHOWN} more files")
    for each in evidence.left_out:
        click.echo(f"left out: {clean(each, 400)}", err=True)
    total = sum(removed.total() for removed in evidence.removed.values())
    click.echo(
        f"wrote {path} ({len(content)} bytes) without {counted(total, 'secret')}; there may be "
        "others: check its content before you send it"
    )


def _listed(removed: Mapping[str, int] | None) -> str:
    """Return what was removed: `removed: 2 environment variable, 1 bearer token`."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted((removed or {}).items()))
    return kinds and f"removed: {kinds}"


def archive(evidence: Bundle, folder: str) -> bytes:
    """Pack all files in one folder, with lists of what was removed and what is missing."""
    left_out = "".join(f"{line}\n" for line in evidence.left_out) or "nothing\n"
    removed = [f"{name}: {_listed(kinds)}\n" for name, kinds in evidence.removed.items()]
    lists = {"removed.txt": "".join(removed) or "nothing\n", "left-out.txt": left_out}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        listed = {name: text.encode() for name, text in lists.items()}
        for name, content in {**evidence.files, **listed}.items():
            member = tarfile.TarInfo(f"{folder}/{_NO_NAME.sub('_', name)}")
            member.size, member.mode = len(content), 0o600
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()
