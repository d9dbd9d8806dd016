"""The report page in a real browser."""

import base64
import re
from collections.abc import Iterator
from typing import Any

import pytest
from ddp_client.report import as_html, build
from selenium import webdriver

from tests.unit.cli.jobs import at, failure
from tests.unit.report.runs import facts, job

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
PICTURES = 9
MEDIA = "Emulation.setEmulatedMedia"
METRICS = "Emulation.setDeviceMetricsOverride"

# The relative luminance of a CSS colour as WCAG 2 defines it.
_LUMINANCE = """
const light = color => {
  const [r, g, b] = color.match(/[0-9.]+/g).slice(0, 3).map(part => part / 255)
    .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a job with a failure; its message looks like HTML."""
    hostile = job(failures=[failure(time=at(150), message=HOSTILE)], message=HOSTILE)
    file = tmp_path_factory.mktemp("report") / "digits.html"
    file.write_text(as_html(build(facts(hostile))))
    return file.as_uri()


@pytest.fixture
def page(browser: webdriver.Chrome, address: str) -> Iterator[webdriver.Chrome]:
    browser.get_log("browser")  # of the page before
    browser.get(address)
    yield browser
    browser.execute_cdp_cmd(MEDIA, {"media": "", "features": []})
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def ask(page: webdriver.Chrome, script: str) -> Any:
    return page.execute_script(script)


def contrasts(page: webdriver.Chrome, mode: str) -> list[float]:
    """Return the contrast of each text with its background in a colour scheme."""
    features = [{"name": "prefers-color-scheme", "value": mode}]
    page.execute_cdp_cmd(MEDIA, {"features": features})
    found: list[float] = ask(
        page,
        _LUMINANCE
        + """
        const back = light(getComputedStyle(document.body).backgroundColor);
        const words = [...document.querySelectorAll('h1, h2, p, td, th, summary, svg text')];
        return words.filter(word => word.textContent.trim()).map(word => {
          const style = getComputedStyle(word);
          const front = light(word.closest('svg') ? style.fill : style.color);
          return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
        });
        """,
    )
    return found


def test_report_shows_words_as_text_and_loads_nothing(page: webdriver.Chrome) -> None:
    assert page.title == "Report of job digits"
    assert page.get_log("browser") == []
    assert ask(page, "return performance.getEntriesByType('resource').length") == 0
    assert (
        ask(page, "return document.querySelectorAll('script, img, link[href^=http]').length") == 0
    )
    text = ask(page, "return document.body.innerText")
    assert "Failures and recoveries" in text
    assert "document.title='taken'" in text
    assert "test accuracy" in text


def test_pictures_have_sizes_names_and_texts_inside(page: webdriver.Chrome) -> None:
    boxes = ask(
        page,
        """return [...document.querySelectorAll('svg')].map(svg => {
          const box = svg.getBoundingClientRect();
          return [box.width, box.height, svg.getAttribute('aria-labelledby').split(' ')
            .map(id => document.getElementById(id).textContent).join(': ')];
        })""",
    )
    assert len(boxes) == PICTURES
    for width, height, name in boxes:
        assert width > 600, name
        assert 60 < height < 800, name
        assert len(name) > 20
    drawn = ask(page, "return [...document.querySelectorAll('svg text')].map(t => t.textContent)")
    assert "seconds since the failure" in drawn
    assert any("digits-1-0" in word and "rank 0" in word for word in drawn)
    outside = ask(
        page,
        """return [...document.querySelectorAll('svg')].flatMap(svg => {
          const box = svg.getBoundingClientRect();
          return [...svg.querySelectorAll('text')].filter(text => {
            const own = text.getBoundingClientRect();
            return own.left < box.left - 8 || own.right > box.right + 8;
          }).map(text => text.textContent);
        })""",
    )
    assert outside == []


def test_each_picture_has_a_table(page: webdriver.Chrome) -> None:
    without = ask(
        page,
        """return [...document.querySelectorAll('figure')].filter(
          figure => !figure.parentElement.querySelector('table th[scope=col]')).length""",
    )
    assert without == 0


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_report_has_enough_contrast(page: webdriver.Chrome, mode: str) -> None:
    found = contrasts(page, mode)
    assert len(found) > 100
    assert min(found) >= 4.5, "WCAG 2, level AA"
    back = ask(page, _LUMINANCE + "return light(getComputedStyle(document.body).backgroundColor)")
    assert (back > 0.5) == (mode == "light")


@pytest.mark.parametrize("width", [360, 1280])
def test_report_fits_the_width_of_the_window(page: webdriver.Chrome, width: int) -> None:
    page.execute_cdp_cmd(
        METRICS, {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    )
    assert ask(page, "return document.documentElement.scrollWidth") <= width
    heights = ask(
        page, "return [...document.querySelectorAll('dd')].map(figure => figure.offsetHeight)"
    )
    assert len({*heights}) == 1, "no number continues on a second line"


def test_printed_report_fits_on_white_paper(page: webdriver.Chrome) -> None:
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.execute_cdp_cmd(MEDIA, {"media": "print", "features": dark})
    a4 = {"width": 680, "height": 960, "deviceScaleFactor": 1, "mobile": False}  # without margins
    page.execute_cdp_cmd(METRICS, a4)
    assert ask(page, "return document.documentElement.scrollWidth") <= 680
    back = ask(page, _LUMINANCE + "return light(getComputedStyle(document.body).backgroundColor)")
    assert back == 1.0, "no ink for a dark page"
    wide = ask(
        page,
        """return [...document.querySelectorAll('table')].filter(
          table => table.getBoundingClientRect().right > 681).length""",
    )
    assert wide == 0
    printed = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {})["data"])
    pages = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert 2 <= pages <= 8
