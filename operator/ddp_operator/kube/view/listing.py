"""Reads whole collections page by page, so that neither side ever holds all of a large one.

Users decide how large an object is. A page that would exceed `MAX_PAGE_BYTES` is not read to its
end, but requested again with fewer objects.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from ddp_operator.kube.client import JSON, ApiClient
from ddp_operator.kube.errors import AnswerTooLargeError
from ddp_operator.ports import Key, Manifest

# Half of client-go's page size. A page of 500 parsed pods takes 30 MB for a moment, and a process
# does not give that memory back.
PAGE_SIZE: Final = 250
# A full page of ordinary pods has about half of this. Parsed, text can take 25 times its length
# (`[[],[],[]]`), and two lists are read at once.
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
# Makes the server reduce objects to their metadata (Kubernetes API concepts, "Metadata-only
# fetches").
METADATA_ONLY: Final = (
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
)


class PageSize:
    """How many objects to request at once: fewer after a page that was too large, then
    more again.
    """

    def __init__(self, most: int = PAGE_SIZE) -> None:
        self._most = most
        self.objects = most

    @property
    def max_bytes(self) -> int | None:
        """Largest size of such a page in bytes; None for a single object, which the server limits
        itself.
        """
        return MAX_PAGE_BYTES if self.objects > 1 else None

    def was_too_large(self) -> None:
        """Request fewer objects."""
        self.objects = max(1, self.objects // 4)

    def was_read(self) -> None:
        """Request more objects next time, up to the most."""
        self.objects = min(self._most, self.objects * 2)


async def list_pages(
    client: ApiClient,
    path: str,
    *,
    params: Mapping[str, str] | None = None,
    page_size: int = PAGE_SIZE,
    accept: str = JSON,
) -> AsyncIterator[tuple[list[Manifest], str]]:
    """Yield each page's items and the list's resourceVersion, which is the same for all pages.

    A caller that empties a page before it takes the next one never holds two.

    Raises `GoneError` if the pages took so long that the server forgot that version.
    """
    query = {**(params or {})}
    size = PageSize(page_size)
    version = ""
    while True:
        query["limit"] = str(size.objects)
        try:
            answer: dict[str, Any] = await client.request(
                "GET", path, params=query, accept=accept, max_bytes=size.max_bytes
            )
        except AnswerTooLargeError:
            size.was_too_large()
            continue
        size.was_read()
        metadata = answer["metadata"]
        version = version or metadata["resourceVersion"]
        yield answer.pop("items", None) or [], version
        if not metadata.get("continue"):
            return
        query["continue"] = metadata["continue"]


async def list_uids(client: ApiClient, path: str, *, page_size: int = PAGE_SIZE) -> dict[Key, str]:
    """Return the UIDs of all objects of a collection by name, to find out which of ours are gone.

    Raises `GoneError` if the list expired between its pages.
    """
    found: dict[Key, str] = {}
    async for items, _ in list_pages(client, path, page_size=page_size, accept=METADATA_ONLY):
        found |= {Key.of(item): item["metadata"]["uid"] for item in items}
    return found


async def list_metadata(
    client: ApiClient, path: str, *, labels: Mapping[str, str]
) -> list[Manifest]:
    """Return the objects of a collection with these labels, without their content. An empty value
    stands for any.
    """
    selector = ",".join(f"{name}={value}" if value else name for name, value in labels.items())
    pages = list_pages(client, path, params={"labelSelector": selector}, accept=METADATA_ONLY)
    return [item async for items, _ in pages for item in items]
