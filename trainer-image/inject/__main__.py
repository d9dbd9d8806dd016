"""Runs the launcher of the folder that this file lies in: `python3 FOLDER [flags] -- command`.

The operator copies that folder, with `ddp_trainer` in it, into pods of any image. Every Python
since 2.7 understands this file, to say what is wrong with it.
"""

import os
import runpy
import sys

_EX_USAGE = 64
"""Tells the operator that starting again cannot help."""

if sys.version_info < (3, 11):  # noqa: UP036 - the image's own
    sys.stderr.write("spec.launcher: inject needs Python 3.11 or newer in the image, and its ")
    sys.stderr.write("%s is %d.%d; " % ((sys.executable,) + sys.version_info[:2]))  # noqa: UP031, RUF005
    sys.stderr.write("take an image that has it, or leave launcher out\n")
    sys.exit(_EX_USAGE)

# Processes that the launcher starts by the names of its modules find them here, and the same ones.
_FOLDERS = [os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _FOLDERS))
runpy.run_module("ddp_trainer.launch", run_name="__main__", alter_sys=True)
