"""The launcher is injected into any image, so the protocol needs only Python."""

import subprocess
import sys
from pathlib import Path

PROTOCOL = Path(__file__).parents[3] / "protocol"
IMPORT_ALL = """
import pkgutil, sys
sys.path.insert(0, sys.argv[1])
import ddp_protocol
for module in pkgutil.walk_packages(ddp_protocol.__path__, "ddp_protocol."):
    __import__(module.name)
names = {name.partition(".")[0] for name in sys.modules}
print(*sorted(names - sys.stdlib_module_names - {"ddp_protocol", "__main__"}), end="")
"""


def test_protocol_imports_only_the_standard_library() -> None:
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", IMPORT_ALL, str(PROTOCOL)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("", "")
