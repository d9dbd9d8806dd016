"""Write the downloads of a release: the chart, one file for kubectl, `kubectl ddp` as one file for
Python and for Krew, and checksums.
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import helm_python as helm
import yaml
from ddp_operator import __version__

from tools.chart import plugin
from tools.chart.generated import CHART

NAMESPACE: Final = "ddp-operator"
SINGLE_FILE: Final = "ddp-operator.yaml"
CHECKSUMS: Final = "SHA256SUMS"
_MADE_AT: Final = 946_684_800  # 2000-01-01
_NAMESPACE_FILE: Final = CHART.parent / "install/namespace.yaml"
_REGISTRY: Final = '  registry: ""\n'


def release(folder: Path, *, registry: str = "", downloads: str = "") -> list[Path]:
    """Write all downloads into `folder` and return their paths.

    The chart and the file for kubectl name the images of this version in `registry`. Krew's
    manifest names its archive below the URL `downloads`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        chart = Path(shutil.copytree(CHART, Path(scratch, "ddp-operator")))  # follows its links
        values = (CHART / "values.yaml").read_text()
        with_registry = f"  registry: {json.dumps(registry)}\n"
        (chart / "values.yaml").write_text(values.replace(_REGISTRY, with_registry))
        for path in chart.rglob("*"):  # the same chart gives the same bytes on every machine
            os.utime(path, (_MADE_AT, _MADE_AT))
        package = helm.package(
            chart, destination=folder, version=__version__, app_version=__version__
        )
    written = [Path(package), folder / SINGLE_FILE]
    written[1].write_text(single_file(Path(package)))
    written.append(plugin.build(folder))
    written += plugin.package(written[-1], downloads=downloads)
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in written)
    (folder / CHECKSUMS).write_text("".join(sums))
    return [*written, folder / CHECKSUMS]


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


def _objects(text: str) -> bool:
    return any(yaml.safe_load_all(text))
