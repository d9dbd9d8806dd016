"""The dashboard asks only for what the operator says of itself, and shows all of it."""

import itertools
import json
import re
from typing import Any, Final

from ddp_operator.engine.census import Census
from ddp_operator.engine.metrics import Metrics
from ddp_operator.job.failure.records import NO_PROGRESS
from ddp_operator.job.status.goodput import KINDS

from tests.chart.queries import dashboard, panels
from tests.unit.chart.rendering import render

ENABLED: Final = {"metrics": {"dashboard": {"enabled": True}}}
GRID_COLUMNS: Final = 24


def test_it_is_installed_as_it_is() -> None:
    data = render(ENABLED, namespace="other")["ConfigMap", "ddp-operator-dashboard"]["data"]
    [(name, text)] = data.items()
    assert name.endswith(".json")
    assert json.loads(text) == dashboard()


def test_it_shows_every_metric_and_no_other() -> None:
    said = Metrics().text(Census(), queued=0, leading=True)
    known = set(re.findall(r"^# TYPE (\S+)", said, re.MULTILINE))
    asked = {
        name.removesuffix("_bucket")
        for expression in panels().values()
        for name in re.findall(r"ddp_operator_\w+", expression)
    }
    assert asked == known


def test_every_query_is_about_the_chosen_operator() -> None:
    for expression in panels().values():
        selectors = re.findall(r"ddp_operator_\w+\{([^}]*)\}", expression)
        assert len(selectors) == expression.count("ddp_operator_")
        assert all(selector.startswith('namespace="$namespace"') for selector in selectors)


def test_words_are_those_of_the_operator() -> None:
    text = " ".join(panels().values())
    assert set(re.findall(r'reason="(\w+)"', text)) == {NO_PROGRESS}
    kinds = {kind for found in re.findall(r'kind=~?"([\w|]+)"', text) for kind in found.split("|")}
    assert kinds == {"starting", "training", "lost"}
    assert kinds < set(KINDS)


def test_its_variables_are_those_that_it_has() -> None:
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard())))
    assert used - {"__rate_interval", "__range"} == variables
    sources = [panel["datasource"]["uid"] for panel in dashboard()["panels"]]
    assert set(sources) == {"${datasource}"}


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    columns = range(place["x"], place["x"] + place["w"])
    assert columns.stop <= GRID_COLUMNS
    return set(itertools.product(columns, range(place["y"], place["y"] + place["h"])))


def test_panels_have_places_of_their_own() -> None:
    found = dashboard()["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    assert len({panel["title"] for panel in found}) == len(found)
    for one, other in itertools.combinations(found, 2):
        assert not cells(one) & cells(other), (one["title"], other["title"])
