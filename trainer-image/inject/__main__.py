"""Runs the launcher in this file's folder: `python3 FOLDER [flags] -- command`.

The operator copies the folder, with `ddp_trainer` and `ddp_protocol` in it, into pods of any image.
This file runs on every Python since 2.7, so that it can report a Python that is too old.
"""

import os
import runpy
import sys

_EX_USAGE = 64
"""Tells the operator that a restart cannot help."""

if sys.version_info < (3, 11):  # noqa: UP036 - the image's own
    sys.stderr.write("spec.launcher: inject needs Python 3.11 or newer in the image, and its ")
    sys.stderr.write("%s is %d.%d; " % ((sys.executable,) + sys.version_info[:2]))  # noqa: UP031, RUF005
    sys.stderr.write("take an image that has it, or leave launcher out\n")
    sys.exit(_EX_USAGE)

# The launcher starts processes by module name; they must find the same modules here.
_FOLDERS = [os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _FOLDERS))
runpy.run_module("ddp_trainer.launch", run_name="__main__", alter_sys=True)
