"""Create a job, and the ConfigMaps with its scripts or code."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ddp_operator.job.pods.manifests import owner_reference
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
    config_maps: Sequence[Manifest] = (),
    *,
    dry_run: bool = False,
) -> Manifest:
    """Create a job and the ConfigMaps that its pods need, and return the job as stored.

    The ConfigMaps are created first, so that no pod waits for them, and get the job as their owner
    afterwards. If the program ends between the two, unused ConfigMaps remain; their names must be
    unique to this submission. With `dry_run` the server only validates.

    Raises:
        NameTakenError, NotInstalledError: the job cannot be created.
        ClusterError: the server refused one of them; none exists then.
        UnavailableError: no answer; the job and its ConfigMaps may exist.
    """
    names: list[str] = []
    try:
        for config_map in config_maps:
            await create_config_map(cluster, namespace, config_map, dry_run=dry_run)
            names.append(config_map["metadata"]["name"])
        # One attempt: after a lost answer, a second one would find its own job and report a
        # conflict.
        stored = await _create(cluster, JOBS, namespace, job, dry_run=dry_run, max_attempts=1)
    except ClusterError as error:
        if not dry_run and not isinstance(error, UnavailableError):
            await delete_config_maps(cluster, namespace, names)
        if isinstance(error, AlreadyExistsError):
            raise NameTakenError(Key(namespace, job["metadata"]["name"])) from None
        if isinstance(error, NotFoundError) and not await check_served(cluster.client, JOBS):
            raise NotInstalledError from None
        raise
    for name in () if dry_run else names:
        path = CONFIG_MAPS.path(namespace=namespace, name=name)
        await cluster.client.request("PATCH", path, body=owned_by(stored), content_type=MERGE_PATCH)
    return stored


async def create_config_map(
    cluster: Cluster, namespace: str, config_map: Manifest, *, dry_run: bool = False
) -> None:
    """Create a ConfigMap with a name that is unique to this submission."""
    # After a lost answer, the second attempt finds the ConfigMap of the first.
    with contextlib.suppress(AlreadyExistsError):
        await _create(cluster, CONFIG_MAPS, namespace, config_map, dry_run=dry_run)


async def delete_config_maps(cluster: Cluster, namespace: str, names: Iterable[str]) -> None:
    """Delete ConfigMaps; those that cannot be deleted remain."""
    for name in names:
        with contextlib.suppress(ClusterError):
            path = CONFIG_MAPS.path(namespace=namespace, name=name)
            await cluster.client.request("DELETE", path)


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


def owned_by(job: Manifest) -> Mapping[str, Any]:
    """Return the metadata of an object that a job owns."""
    owner = owner_reference(job["metadata"]["name"], job["metadata"]["uid"])
    return {"metadata": {"ownerReferences": [owner]}}
