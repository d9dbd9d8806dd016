"""DDPJob specs that schema and parser accept, and that keep or break any of the rules."""

from copy import deepcopy
from random import Random
from typing import Any, Final

from hypothesis import strategies as st

from tests.bad_manifests import BAD_MANIFESTS
from tests.good_manifests import GOOD_MANIFESTS, Json

_AMOUNTS: Final = (
    *(-1, 0, 1, 2, 8, 9, 12, "0", "1", "2", "8", "500m", "-1", "1e3", "2.0", "", "٣", "1\n"),
    *("128", "129", "99999999999", "1Gi", ".5Gi", "1E9", "+2e9", "1025Mi", "-1Gi", "2Gib"),
)
_KNOWN: Final = [
    *(manifest["spec"] for manifest in GOOD_MANIFESTS.values()),
    *(bad.manifest["spec"] for bad in BAD_MANIFESTS if bad.refused_by != "schema"),
]


def _mixed(one: Any, other: Any, random: Random) -> Any:
    """Take each value from one of two specs, at any depth. Fields of the first are never removed,
    because some are required.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        added = {name: value for name, value in other.items() if random.random() < 0.5}
        shared = one.keys() & other.keys()
        return {
            **added,
            **{
                name: _mixed(value, other[name], random) if name in shared else value
                for name, value in one.items()
            },
        }
    if isinstance(one, list) and isinstance(other, list):
        common = zip(one, other, strict=False)
        return [_mixed(*pair, random) for pair in common] + one[len(other) :]
    return one if random.random() < 0.5 else other


def _finished(spec: Json, random: Random) -> Json:
    """Change some amounts, and keep one container of each name, as the API server does for pods."""
    pod = spec["template"]["spec"]
    pod["containers"] = list({one["name"]: one for one in pod["containers"]}.values())
    for container in pod["containers"]:
        limits = (container.get("resources") or {}).get("limits") or {}
        limits |= {name: random.choice(_AMOUNTS) for name in limits if random.random() < 0.2}
    return spec


@st.composite
def _specs(draw: st.DrawFn) -> Json:
    random = draw(st.randoms(use_true_random=False))
    spec, *others = draw(st.lists(st.sampled_from(_KNOWN), min_size=1, max_size=4))
    for other in others:
        spec = _mixed(spec, other, random)
    return _finished(deepcopy(spec), random)


SPECS: st.SearchStrategy[Json] = _specs()
"""Mixtures of up to four of the good and bad manifests."""
