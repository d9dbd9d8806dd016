"""A headless Chromium that can reach only files and this machine."""

import shutil
from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.cluster import ClusterUnavailableError
from tests.cluster.preparation import packages
from tests.skipping import skip_or_fail

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests run as root, also in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    """One browser for all pages."""
    try:
        packages.check(packages.BROWSER)
    except ClusterUnavailableError as reason:
        skip_or_fail("BROWSER", reason)
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()
