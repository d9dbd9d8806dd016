"""How a client makes the archive of a folder of code, which pods unpack with `code_archive`."""

import io
import tarfile
import zlib
from collections.abc import Mapping
from hashlib import sha256

from ddp_protocol import code_archive
from ddp_protocol.code_archive import GZIP, REFERENCE, CodeError, checked_name


def make(files: Mapping[str, tuple[bytes, bool]], max_bytes: int | None = None) -> bytes:
    """Return an archive of files by name; each has its content and is a program or not.

    Equal files make an equal archive: names are sorted, and there are no times or owners.
    `max_bytes`: of all files together; default: `MAX_BYTES`.

    Raises:
        CodeError: a name or a limit.
    """
    most_files, most = code_archive.MAX_FILES, max_bytes or code_archive.MAX_BYTES
    if len(files) > most_files:
        raise CodeError(f"{len(files)} files, but at most {most_files} can be sent")
    size = sum(len(content) for content, _ in files.values())
    if size > most:
        raise CodeError(f"{size} bytes, but at most {most} can be sent")
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            content, is_program = files[name]
            entry = tarfile.TarInfo(checked_name(name))
            entry.size, entry.mode = len(content), 0o755 if is_program else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def pack(archive: bytes) -> bytes:
    """Compress an archive."""
    packer = zlib.compressobj(9, zlib.DEFLATED, GZIP)
    return packer.compress(archive) + packer.flush()


def reference_to(archive: bytes) -> bytes:
    """Return what travels instead of an archive that is stored in a volume."""
    return REFERENCE + sha256(archive).hexdigest().encode()
