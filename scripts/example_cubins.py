"""Puts machine code into the recording of `spark-prof demo`: out of the wheel that it ran.

The recording names every cubin by the hash of its bytes. What a library of the wheel holds under
such a hash is what the GPU ran, and nothing else is put in. Cubins that the driver compiled from
PTX are in no wheel, and those of cuBLAS are not ours to hand on.

    python -m scripts.example_cubins vllm-0.26.0-cp38-abi3-manylinux_2_28_x86_64.whl
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from spark_prof.cli.explore import EXAMPLE
from spark_prof.datasets.opened import opened
from spark_prof.traces.cuda_tools import needed_tool, read_fatbin, take_out
from spark_prof.traces.machine_code import CUBINS_FOLDER

LEAST_SHARE = 0.015
"""Of the time of all kernels: the code of those that took less is left out."""
MOST_ZIPPED = 600_000
"""Bytes that one of them may add to the package."""
SECONDS = 600.0


def main(wheel: Path) -> None:
    """Writes the example anew, with the machine code that was found."""
    hashes = set(hot_cubins())
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        codes = dict(found_in(wheel, hashes, place))
        packed = place / "example.zip"
        shutil.copyfile(EXAMPLE, packed)
        with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            names = set(archive.namelist())
            for key, code in sorted(codes.items()):
                name = f"{CUBINS_FOLDER}/{key}.cubin"
                if name not in names:
                    archive.writestr(zipfile.ZipInfo(name, (2026, 11, 29, 0, 0, 0)), code,
                                     zipfile.ZIP_DEFLATED, 9)  # fmt: skip
        shutil.copyfile(packed, EXAMPLE)
    print(f"{len(codes)} of {len(hashes)} pieces of machine code; {EXAMPLE.stat().st_size:,} bytes")


def hot_cubins() -> Iterator[str]:
    """The hashes of the machine code of kernels that took most of the time."""
    with opened(str(EXAMPLE)) as bundle:
        kernels = bundle.frame("kernels", 0, ["cubin", "start_ns", "end_ns"])
    spent = (kernels["end_ns"] - kernels["start_ns"]).groupby(kernels["cubin"].astype(str)).sum()
    for keys, time in spent.items():
        if time >= LEAST_SHARE * spent.sum():
            yield from str(keys).split()


def found_in(wheel: Path, hashes: set[str], folder: Path) -> Iterator[tuple[str, bytes]]:
    """The cubins of a wheel's libraries that have one of these hashes."""
    tool = needed_tool("cuobjdump")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith(".so"):
                continue
            library = Path(archive.extract(name, folder))
            files = [file for file in read_fatbin(tool, library, SECONDS) if not file.is_ptx]
            files = [file for file in files if file.number == 90]
            with tempfile.TemporaryDirectory() as cubin_folder:
                for path in (
                    take_out(tool, library, files, Path(cubin_folder), SECONDS) if files else ()
                ):
                    code = path.read_bytes()
                    key = hashlib.sha256(code).hexdigest()[:16]
                    if key in hashes and len(zipped(code)) <= MOST_ZIPPED:
                        yield key, code
            library.unlink()


def zipped(code: bytes) -> bytes:
    """The bytes as a zip has them."""
    return zlib.compress(code, 9)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
