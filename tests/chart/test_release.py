"""Files of `make release`."""

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import helm_python as helm
import pytest
import yaml
from ddp_operator import __version__
from packageurl import PackageURL

from tests.unit.chart.kustomize import build
from tests.unit.chart.rendering import by_name, container_of
from tools.chart import wheels
from tools.chart.generated import CHART
from tools.chart.release import install_lines, release

WHERE = "https://example.com/v1/"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
IMAGE = f"ghcr.io/example/ddp-operator@{DIGEST}"

pytestmark = pytest.mark.nightly  # a release includes the plugin, which takes 14 s to build


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dist")


@pytest.fixture(scope="module")
def written(folder: Path) -> dict[str, Path]:
    paths = release(folder, registry="ghcr.io/example", digest=DIGEST, downloads=WHERE)
    return {path.name: path for path in paths}


def test_release_has_these_files(written: dict[str, Path], folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == written.keys()
    [archive] = [name for name in written if name.startswith("kubectl-ddp-")]
    assert archive.startswith(f"kubectl-ddp-{__version__}-{sys.platform}-")
    assert written.keys() - {archive} == {
        f"ddp-operator-{__version__}.tgz",
        "ddp-operator.yaml",
        "ddp-operator-chart.cdx.json",
        "kubectl-ddp",
        "krew-ddp.yaml",
        "SHA256SUMS",
        *(f"ddp_{part}-{__version__}-py3-none-any.whl" for part in wheels.PARTS),
    }


def test_install_lines_name_files_of_the_release(written: dict[str, Path]) -> None:
    packages, operator = install_lines([*written.values()], downloads=WHERE)
    _, _, urls = packages.partition(": pip install ")
    names = [url.removeprefix(WHERE) for url in urls.split()]
    assert names == [f"ddp_{part}-{__version__}-py3-none-any.whl" for part in wheels.PARTS]
    assert operator.endswith(f" {WHERE}ddp-operator.yaml")


def test_checksums_match(written: dict[str, Path], folder: Path) -> None:
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    checked = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    assert checked.stdout.count(": OK") == len(written) - 1


def test_package_has_the_chart_with_resolved_links(written: dict[str, Path]) -> None:
    with tarfile.open(written[f"ddp-operator-{__version__}.tgz"]) as package:
        assert all(member.isfile() for member in package.getmembers())
        assert len({member.mtime for member in package.getmembers()}) == 1
        packed = {member.name for member in package.getmembers()}
        [crd] = [m for m in package.getmembers() if m.name.endswith("files/ddpjobs.yaml")]
        content = package.extractfile(crd)
        assert content
        assert content.read() == (CHART.parents[1] / "crds/ddpjobs.yaml").read_bytes()
    stored = {f"ddp-operator/{p.relative_to(CHART)}" for p in CHART.rglob("*") if p.is_file()}
    assert packed == stored


def test_package_installs_this_release(written: dict[str, Path]) -> None:
    with helm.Chart.load(written[f"ddp-operator-{__version__}.tgz"]) as chart:
        assert chart.version == chart.metadata["appVersion"] == __version__
        texts = chart.render(name="ddp", namespace="ddp-operator")
    rendered = by_name([yaml.safe_load(texts["ddp-operator/templates/deployment.yaml"])])
    assert container_of(rendered)["image"] == IMAGE


def test_single_file_equals_the_kustomization(written: dict[str, Path]) -> None:
    text = written["ddp-operator.yaml"].read_text()
    documents = list(yaml.safe_load_all(text))
    assert all(documents)
    applied, installed = by_name(documents), build()
    # In an order that a server can take them in.
    assert [key[0] for key in applied][:2] == ["Namespace", "CustomResourceDefinition"]
    container_of(installed)["image"] = IMAGE
    assert applied == installed
    assert "helm" not in text.lower()


def test_sbom_of_the_chart_names_its_image_by_digest(written: dict[str, Path]) -> None:
    sbom = json.loads(written["ddp-operator-chart.cdx.json"].read_text())
    chart = written[f"ddp-operator-{__version__}.tgz"].read_bytes()
    assert sbom["metadata"]["component"]["hashes"] == [
        {"alg": "SHA-256", "content": hashlib.sha256(chart).hexdigest()}
    ]
    [image] = sbom["components"]
    assert (image["type"], image["name"]) == ("container", "ghcr.io/example/ddp-operator")
    assert image["hashes"] == [{"alg": "SHA-256", "content": DIGEST.removeprefix("sha256:")}]
    assert PackageURL.from_string(image["purl"]).version == DIGEST


@pytest.mark.parametrize("digest", ["latest", DIGEST.removesuffix("f"), DIGEST.upper()])
def test_bad_digest_is_refused_before_anything_is_written(digest: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"digest: .* is not sha256: and 64 hexadecimal digits"):
        release(tmp_path / "dist", digest=digest)
    assert not (tmp_path / "dist").exists()


def test_krew_manifest_names_program_and_licence(written: dict[str, Path]) -> None:
    krew = yaml.safe_load(written["krew-ddp.yaml"].read_text())
    assert (krew["kind"], krew["metadata"]) == ("Plugin", {"name": "ddp"})
    assert krew["spec"]["version"] == f"v{__version__}"
    [platform] = krew["spec"]["platforms"]
    assert platform["uri"].startswith(WHERE)
    archive = written[platform["uri"].removeprefix(WHERE)]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert platform["selector"]["matchLabels"]["os"] == sys.platform
    with tarfile.open(archive) as packed:
        assert packed.getnames() == [platform["bin"], "LICENSE"]
        assert packed.getmember(platform["bin"]).mode & 0o111
        plugin = packed.extractfile(platform["bin"])
        assert plugin
        assert plugin.read() == written["kubectl-ddp"].read_bytes()


def test_release_is_reproducible(written: dict[str, Path], tmp_path: Path) -> None:
    paths = release(tmp_path, registry="ghcr.io/example", digest=DIGEST, downloads=WHERE)
    again = {path.name: path for path in paths}
    for name, path in written.items():
        assert again[name].read_bytes() == path.read_bytes(), name
