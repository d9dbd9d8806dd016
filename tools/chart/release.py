"""Write the downloads of a release: the chart with its bill of materials, one file for kubectl,
`kubectl ddp` as wheels, as one file for Python and for Krew, and checksums.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import helm_python as helm
import yaml
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from ddp_operator import __version__
from packageurl import PackageURL

from tools.chart import plugin, wheels
from tools.chart.generated import CHART

NAMESPACE: Final = "ddp-operator"
SINGLE_FILE: Final = "ddp-operator.yaml"
CHART_SBOM: Final = "ddp-operator-chart.cdx.json"
CHECKSUMS: Final = "SHA256SUMS"
_MADE_AT: Final = 946_684_800  # 2000-01-01
_NAMESPACE_FILE: Final = CHART.parent / "install/namespace.yaml"
_DIGEST: Final = re.compile("sha256:[0-9a-f]{64}")


def release(
    folder: Path, *, registry: str = "", digest: str = "", downloads: str = ""
) -> list[Path]:
    """Write all downloads into `folder` and return their paths.

    The chart and the file for kubectl name the operator's image of this version in `registry`, and
    its `digest`. Krew's manifest names its archive below the URL `downloads`.

    Raises:
        ValueError: the digest is not one.
    """
    if digest and not _DIGEST.fullmatch(digest):
        raise ValueError(f"digest: {digest!r} is not sha256: and 64 hexadecimal digits")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        chart = Path(shutil.copytree(CHART, Path(scratch, "ddp-operator")))  # follows its links
        values = (CHART / "values.yaml").read_text()
        for key, value in (("registry", registry), ("digest", digest)):
            values = values.replace(f'  {key}: ""\n', f"  {key}: {json.dumps(value)}\n", 1)
        (chart / "values.yaml").write_text(values)
        for path in chart.rglob("*"):  # the same chart gives the same bytes on every machine
            os.utime(path, (_MADE_AT, _MADE_AT))
        package = helm.package(
            chart, destination=folder, version=__version__, app_version=__version__
        )
    written = [Path(package), folder / SINGLE_FILE, folder / CHART_SBOM]
    written[1].write_text(single_file(Path(package)))
    written[2].write_text(chart_sbom(Path(package), registry=registry, digest=digest))
    written.append(plugin.build(folder))
    written += plugin.package(written[-1], downloads=downloads)
    written += wheels.build(folder)
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in written)
    (folder / CHECKSUMS).write_text("".join(sums))
    return [*written, folder / CHECKSUMS]


def install_lines(written: Sequence[Path], *, downloads: str = "") -> list[str]:
    """Return the commands that install a release from its URL, or from its folder here."""
    where = {p.name: f"{downloads.rstrip('/')}/{p.name}" if downloads else str(p) for p in written}
    packages = " ".join(place for name, place in where.items() if name.endswith(".whl"))
    return [
        f"command line and Python client: pip install {packages}",
        f"operator: kubectl apply --server-side -f {where[SINGLE_FILE]}",
    ]


def single_file(chart: Path) -> str:
    """Render a chart for kubectl, with the namespace first, which Helm itself would create."""
    no_annotation_of_helm = {"crds": {"keep": False}}
    with helm.Chart.load(chart) as loaded:
        rendered = loaded.render(no_annotation_of_helm, name="ddp-operator", namespace=NAMESPACE)
    documents = [_NAMESPACE_FILE.read_text().strip()]
    for path in sorted(rendered, key=lambda path: (not path.endswith("crd.yaml"), path)):
        if path.endswith(".yaml") and "/tests/" not in path:
            documents += [text.strip() for text in rendered[path].split("\n---\n")]
    return "\n---\n".join(text.removeprefix("---\n") for text in documents if _objects(text)) + "\n"


def chart_sbom(chart: Path, *, registry: str, digest: str) -> str:
    """Return the chart's bill of materials (CycloneDX), which names the operator's image."""
    sums = hashlib.sha256(chart.read_bytes()).hexdigest()
    bom = Bom(serial_number=uuid.UUID(bytes=bytes.fromhex(sums)[:16], version=4))
    bom.metadata.timestamp = datetime.fromtimestamp(_MADE_AT, UTC)
    bom.metadata.component = Component(
        name="ddp-operator-chart",
        type=ComponentType.APPLICATION,
        version=__version__,
        bom_ref="chart",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sums)],
    )
    repository = "/".join(filter(None, (registry.rstrip("/"), "ddp-operator")))
    image = Component(
        name=repository,
        type=ComponentType.CONTAINER,
        version=__version__,
        bom_ref="image",
        purl=PackageURL(
            "oci",
            name="ddp-operator",
            version=digest or None,
            qualifiers={"repository_url": repository, "tag": __version__},
        ),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix("sha256:"))]
        if digest
        else (),
    )
    bom.components.add(image)
    bom.register_dependency(bom.metadata.component, [image])
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    return outputter.output_as_string(indent=1) + "\n"


def _objects(text: str) -> bool:
    return any(yaml.safe_load_all(text))
