import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_client.views.reasons import REASONS
from ddp_operator import __version__

ROOT = Path(__file__).parents[3]
URL = "https://git.example.com/ml/ddp-operator"
_FETCHED = re.compile(
    r"<(?:script|img|iframe)[^>]* src=\"(https?:[^\"]+)|<link[^>]* href=\"(https?:[^\"]+)"
)


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--config-file", config, "--site-dir", site],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "COLUMNS": "96", "DOCS_REPOSITORY": URL},
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT / "mkdocs.yml", folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_pages_fetch_nothing_from_other_hosts(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 20
    found = {str(page): _FETCHED.findall(page.read_text()) for page in pages}
    assert {page: links for page, links in found.items() if links} == {}


def test_pages_show_the_version_and_link_the_repository(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert f"DDPJob {__version__}" in page
    assert f'href="{URL}"' in page


def test_copy_button_gets_the_command_alone(site: Path) -> None:
    assert '<div data-copy="make demo" class="highlight">' in (site / "index.html").read_text()


def test_navigation_has_at_most_seven_groups() -> None:
    lines = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2].splitlines()
    assert 0 < sum(line.startswith("  - ") for line in lines) <= 7


def test_reference_is_generated_from_the_code(site: Path) -> None:
    fields = (site / "reference/fields.html").read_text()
    for name in ("accelerator.provisioning", "restart.rules[].exitCodes[]", "goodput.stepsLost"):
        assert f"<code>{name}</code>" in fields
    assert "<code>template.spec</code>" not in fields  # Kubernetes' own
    assert "--since DURATION" in (site / "reference/commands.html").read_text()
    assert re.search(
        r"<td>75</td>\s*<td>LOST_PEER</td>", (site / "reference/exit-codes.html").read_text()
    )
    assert "ddp_operator_jobs" in (site / "reference/metrics.html").read_text()


def test_each_reason_has_an_anchor(site: Path) -> None:
    page = (site / "reference/reasons.html").read_text()
    anchors = set(re.findall(r'<h3 id="([^"]+)">', page))
    assert anchors == {reason.lower() for reason in REASONS}


def test_a_dead_link_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# A\n\n[b](b.md), [c](#c)\n")
    own = (ROOT / "mkdocs.yml").read_text()
    kept = [part for part in own.split("\n\n") if not part.startswith(("nav:", "hooks:"))]
    (tmp_path / "mkdocs.yml").write_text("\n\n".join(kept))
    built = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert built.returncode == 1
    assert "'b.md'" in built.stderr
    assert "'#c'" in built.stderr
