"""Create a job, and the ConfigMap with its scripts."""

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from ddp_operator.api.constants import API_VERSION, KIND
from ddp_operator.kube import CONFIG_MAPS, Resource, check_served
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.ports import (
    AlreadyExistsError,
    ClusterError,
    Key,
    Manifest,
    NotFoundError,
    UnavailableError,
)

from ddp_client.remote.cluster import JOBS, Cluster, NotInstalledError

_ONLY_CHECKED: Final = {"dryRun": "All"}


class NameTakenError(Exception):
    """A job of that name already exists."""

    def __init__(self, job: Key, hint: str = "") -> None:
        hint = hint or f"see `kubectl ddp status {job.name}`"
        super().__init__(
            f"job {job.name} already exists in namespace {job.namespace}: choose another name, or "
            f"{hint}"
        )


async def submit(
    cluster: Cluster,
    namespace: str,
    job: Manifest,
    scripts: Manifest | None = None,
    *,
    dry_run: bool = False,
) -> Manifest:
    """Create a job and the ConfigMap that its pods need, and return the job as stored.

    The ConfigMap is created first, so that no pod waits for it, and gets the job as its owner
    afterwards. If the program ends between the two, an unused ConfigMap remains; its name must be
    unique to this submission. With `dry_run` the server only validates.

    Raises:
        NameTakenError, NotInstalledError: the job cannot be created.
        ClusterError: the server refused one of the two; neither exists then.
        UnavailableError: no answer; the job and its ConfigMap may exist.
    """
    made = await _create_scripts(cluster, namespace, scripts, dry_run=dry_run) if scripts else ""
    try:
        # One attempt: after a lost answer, a second one would find its own job and report a
        # conflict.
        stored = await _create(cluster, JOBS, namespace, job, dry_run=dry_run, max_attempts=1)
    except ClusterError as error:
        if made and not dry_run and not isinstance(error, UnavailableError):
            with contextlib.suppress(ClusterError):
                path = CONFIG_MAPS.path(namespace=namespace, name=made)
                await cluster.client.request("DELETE", path)
        if isinstance(error, AlreadyExistsError):
            raise NameTakenError(Key(namespace, job["metadata"]["name"])) from None
        if isinstance(error, NotFoundError) and not await check_served(cluster.client, JOBS):
            raise NotInstalledError from None
        raise
    if made and not dry_run:
        path = CONFIG_MAPS.path(namespace=namespace, name=made)
        await cluster.client.request(
            "PATCH", path, body=_owned_by(stored), content_type=MERGE_PATCH
        )
    return stored


async def _create_scripts(
    cluster: Cluster, namespace: str, scripts: Manifest, *, dry_run: bool
) -> str:
    # After a lost answer, the second attempt finds the ConfigMap of the first.
    with contextlib.suppress(AlreadyExistsError):
        await _create(cluster, CONFIG_MAPS, namespace, scripts, dry_run=dry_run)
    name: str = scripts["metadata"]["name"]
    return name


async def _create(
    cluster: Cluster,
    kind: Resource,
    namespace: str,
    manifest: Manifest,
    *,
    dry_run: bool,
    max_attempts: int | None = None,
) -> Manifest:
    stored: Manifest = await cluster.client.request(
        "POST",
        kind.path(namespace=namespace),
        body=manifest,
        params=_ONLY_CHECKED if dry_run else None,
        max_attempts=max_attempts,
    )
    return stored


def _owned_by(job: Manifest) -> Mapping[str, Any]:
    metadata = job["metadata"]
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {"metadata": {"ownerReferences": [owner]}}
