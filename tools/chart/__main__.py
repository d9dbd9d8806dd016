"""Generate files of the Helm chart, and write releases: `python -m tools.chart generate`."""

import argparse
from pathlib import Path

from tools.chart.generated import generate
from tools.chart.plugin import build
from tools.chart.release import install_lines, release


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m tools.chart", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("generate", help="write the chart's schema and the table in its README")
    asked = commands.add_parser("release", help="write the downloads of a release")
    asked.add_argument(
        "--registry", default="", help="registry of the images, as in image.registry"
    )
    asked.add_argument(
        "--digest", default="", help="digest of the operator's image, as in image.digest"
    )
    asked.add_argument("--downloads", default="", help="URL of the folder with the downloads")
    alone = commands.add_parser("plugin", help="write kubectl ddp as one file that Python runs")
    for one in (asked, alone):
        one.add_argument("--into", type=Path, default=Path("dist"), metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.command == "generate":
        generate()
    elif arguments.command == "plugin":
        print(build(arguments.into))
    else:
        written = release(
            arguments.into,
            registry=arguments.registry,
            digest=arguments.digest,
            downloads=arguments.downloads,
        )
        print("\n".join(map(str, written)))
        print("\n".join(["", *install_lines(written, downloads=arguments.downloads)]))


if __name__ == "__main__":
    main()
