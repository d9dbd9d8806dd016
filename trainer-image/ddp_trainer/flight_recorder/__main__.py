"""Prints the reduced dumps of a directory: `python -m ddp_trainer.flight_recorder DIR`."""

import json
import sys
from pathlib import Path

from ddp_trainer.flight_recorder.directory import DirectoryError, reduce_directory

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m ddp_trainer.flight_recorder DIR")
    try:
        print(json.dumps(reduce_directory(Path(sys.argv[1]))))
    except DirectoryError as error:
        sys.exit(str(error))
