"""Whose an existing object is: it must be the job's own, not another one of the same name."""

from ddp_operator.api.constants import LABEL_JOB_UID
from ddp_operator.kube.resources import Resource
from ddp_operator.ports import AlreadyExistsError, Key, Manifest, controller_of


def require_same_owner(
    resource: Resource, key: Key, *, existing: Manifest, wanted: Manifest
) -> None:
    """Check that an object which exists has the same controller as the wanted one.

    Raises:
        AlreadyExistsError: it has another one, or none.
    """
    theirs, ours = controller_of(existing), controller_of(wanted)
    if not ours:
        _require_same_job(resource, key, existing=existing, wanted=wanted)
        return
    if theirs.get("uid") == ours["uid"]:
        return
    owner = f"belongs to {theirs['kind']} {theirs['name']}" if theirs else "has no owner"
    if theirs.get("name") == ours["name"]:
        owner += f" of another UID ({theirs['uid']}), probably an earlier one of the same name"
    raise AlreadyExistsError(f"{resource} {key} already exists and {owner}", status=409)


def _require_same_job(
    resource: Resource, key: Key, *, existing: Manifest, wanted: Manifest
) -> None:
    """Check an object without a controller, which outlives its job until all pods are gone."""
    job = (existing["metadata"].get("labels") or {}).get(LABEL_JOB_UID)
    problem = ""
    if job is None:
        problem = "already exists and has no owner"
    elif job != wanted["metadata"]["labels"][LABEL_JOB_UID]:
        problem = f"belongs to an earlier job ({job}), and is deleted after the last pod of that"
    elif existing["metadata"].get("deletionTimestamp"):
        problem = "is being deleted"
    if problem:
        raise AlreadyExistsError(f"{resource} {key} {problem}", status=409)
