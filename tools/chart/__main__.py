"""The Helm chart, and releases, from the command line: `python -m tools.chart generate`."""

import argparse
from pathlib import Path

from tools.chart.generated import generate
from tools.chart.plugin import build
from tools.chart.release import release


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m tools.chart", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("generate", help="write what comes from the model of the values")
    asked = commands.add_parser("release", help="write what a release offers to download")
    asked.add_argument("--registry", default="", help="where its images are, as image.registry")
    asked.add_argument("--downloads", default="", help="URL of the folder where it will be")
    alone = commands.add_parser("plugin", help="write kubectl ddp as one file for Python")
    for one in (asked, alone):
        one.add_argument("--into", type=Path, default=Path("dist"), metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.command == "generate":
        generate()
    elif arguments.command == "plugin":
        print(build(arguments.into))
    else:
        written = release(
            arguments.into, registry=arguments.registry, downloads=arguments.downloads
        )
        print("\n".join(map(str, written)))


if __name__ == "__main__":
    main()
