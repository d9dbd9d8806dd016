"""What a release offers to download: the chart, one file for kubectl, the command line as one file
for Python and for Krew, and their checksums.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import helm_python as helm
import yaml
from ddp_operator import __version__

from tools.chart import plugin
from tools.chart.generated import CHART, values_yaml
from tools.chart.values import Crds, Image, Values

NAMESPACE: Final = "ddp-operator"
SINGLE_FILE: Final = "ddp-operator.yaml"
CHECKSUMS: Final = "SHA256SUMS"
_MADE_AT: Final = 946_684_800  # 2000-01-01
_NAMESPACE_FILE: Final = CHART.parent / "install/namespace.yaml"


def release(folder: Path, *, registry: str = "", downloads: str = "") -> list[Path]:
    """Write everything into a folder, for images in `registry` that bear the release's version;
    `downloads`: the URL of the folder where all of it will be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        chart = Path(shutil.copytree(CHART, Path(scratch, "ddp-operator")))  # follows its links
        chosen = Values(image=Image(registry=registry))
        (chart / "values.yaml").write_text(values_yaml(chosen))
        for path in chart.rglob("*"):  # the same chart is the same package, whoever makes it
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
    """Render a chart for kubectl, with its namespace first, which Helm would make itself."""
    without_helm = Values(crds=Crds(keep=False)).model_dump(include={"crds": {"keep"}})
    with helm.Chart.load(chart) as loaded:
        rendered = loaded.render(without_helm, name="ddp-operator", namespace=NAMESPACE)
    documents = [_NAMESPACE_FILE.read_text().strip()]
    for path in sorted(rendered, key=lambda path: (not path.endswith("crd.yaml"), path)):
        if path.endswith(".yaml") and "/tests/" not in path:
            documents += [text.strip() for text in rendered[path].split("\n---\n")]
    return "\n---\n".join(text.removeprefix("---\n") for text in documents if _objects(text)) + "\n"


def _objects(text: str) -> bool:
    return any(yaml.safe_load_all(text))
