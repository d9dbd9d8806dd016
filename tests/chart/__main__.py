"""The Helm chart from the command line: `python -m tests.chart generate`."""

import argparse
from pathlib import Path

from tests.chart.generated import generate
from tests.chart.release import release


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m tests.chart", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("generate", help="write what comes from the model of the values")
    asked = commands.add_parser("release", help="write what a release offers to download")
    asked.add_argument("--registry", default="", help="where its images are, as image.registry")
    asked.add_argument("--into", type=Path, default=Path("dist"), metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.command == "generate":
        generate()
    else:
        for path in release(arguments.into, registry=arguments.registry):
            print(path)


if __name__ == "__main__":
    main()
