"""Compare the installed CRD with this release's, and wait until it has what decisions read."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ddp_operator import __version__
from ddp_operator.api.schema import crd
from ddp_operator.api.schema.comparison import Difference, compare
from ddp_operator.api.status import decisive_names
from ddp_operator.job.planning.words import some
from ddp_operator.kube import CUSTOM_RESOURCE_DEFINITIONS, ApiClient, Permission, check_access
from ddp_operator.kube.repeated_log import RepeatedLog
from ddp_operator.ports import NotFoundError
from ddp_operator.process.startup import APPLY_CRD, when_reachable

logger = logging.getLogger(__name__)

_CRD_SECONDS: Final = 10.0
"""How often an old CRD is read again."""
READ_CRD: Final = Permission("get", CUSTOM_RESOURCE_DEFINITIONS, name=crd.NAME)
"""Permission to compare the CRD with this release's. Optional."""


async def when_crd_fits(client: ApiClient, note: Callable[[Difference], None]) -> None:
    """Wait until the installed CRD has all status fields that decisions read, and log how it
    differs from this release's. `note` receives each comparison.
    """
    log = RepeatedLog(logger)
    while True:
        found = await when_reachable(lambda: crd_difference(client))
        note(found)
        missing = decisive_names(found.lacking)
        if found.lacking:
            waits = ", which waits for a newer one before it acts" if missing else ""
            names = some(sorted(missing or found.lacking))
            log.add(
                logging.ERROR,
                f"the CRD is older than this operator{waits}: the server drops or refuses {names}: "
                f"apply the CRD of this release, {__version__} ({APPLY_CRD})",
            )
        if not missing:
            break
        await asyncio.sleep(_CRD_SECONDS)
    if found.unknown:
        logger.warning(
            "the CRD is newer than this operator, %s, which leaves jobs with %s unchanged: "
            "upgrade the operator",
            __version__,
            some(sorted(found.unknown)),
        )


async def crd_difference(client: ApiClient) -> Difference:
    """Compare the installed CRD with this release's. There is no difference if the operator may not
    read it.
    """
    if await check_access(client, [READ_CRD]):
        logger.info(
            "cannot compare the installed CRD with this release's, and will see a difference only "
            "by its effects on jobs, because a permission is missing: %s",
            READ_CRD,
        )
        return Difference()
    path = CUSTOM_RESOURCE_DEFINITIONS.path(name=crd.NAME)
    try:
        return compare(await client.request("GET", path))
    except NotFoundError:  # the jobs are not served from a CRD
        return Difference()
