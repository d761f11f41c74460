"""Writes tests/data/cupti/layouts.json: how libcupti lays out its records and numbers its calls.

The sizes and offsets come from a C compiler and the headers in NVIDIA's nvidia-cuda-cupti wheels.
Where libcupti answers on a machine without a GPU (up to CUDA 13.1), the sizes by which its own
cuptiActivityGetNextRecord steps are noted too, as `walked`.

usage: python scripts/cupti_layouts.py --cuda /usr/local/cuda/include WHEEL_FOLDER...

A WHEEL_FOLDER is an unpacked wheel: pip download --no-deps nvidia-cuda-cupti==13.0.85; unzip.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent.parent / "tests" / "data" / "cupti" / "layouts.json"
READ_KINDS = (1, 2, 3, 4, 5, 10, 12, 17, 22, 48)
"""The kinds whose fields are noted; of the others only the size."""

_KIND = re.compile(
    r"/\*\*(?P<comment>(?:(?!\*/).)*)\*/\s*CUPTI_ACTIVITY_KIND_\w+\s*=\s*(?P<kind>\d+)", re.DOTALL
)
_CALL = re.compile(
    r"CUPTI_(RUNTIME|DRIVER)_TRACE_CBID_(\w*(?:Launch|Memcpy|Memset)\w*)\s*=\s*(\d+)"
)
_VERSION = re.compile(r"#define CUPTI_API_VERSION (\d+)")
_STRUCT = re.compile(r"typedef struct\b[^{};]*\{(?P<body>[^}]*)\}\s*(?P<name>CUpti_Activity\w+);")
_INNER = re.compile(r"(?<!typedef )(?:union|struct)\s*\{[^{}]*\}")
_FIELD = re.compile(r"(\w+)\s*(?:\[\w+\])?\s*;")
_UNUSED = re.compile(r"pad|reserved")
_WALK = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
step = library.cuptiActivityGetNextRecord
step.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]
sizes = {}
for kind in range(1, 64):
    words = (ctypes.c_uint64 * 512)(*[kind] * 512)
    record = ctypes.c_void_p()
    begin = ctypes.addressof(words)
    if all(step(begin, 4096, ctypes.byref(record)) == 0 for _ in range(2)):
        sizes[kind] = record.value - begin
print(json.dumps(sizes))
"""


def main() -> int:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuda", type=Path, required=True, help="a folder with cuda.h")
    parser.add_argument("wheels", type=Path, nargs="+")
    options = parser.parse_args()
    structs: dict[str, Any] = {}
    libraries: dict[int, Any] = {}
    calls: dict[str, dict[int, str]] = {"RUNTIME": {}, "DRIVER": {}}
    for wheel in options.wheels:
        include = next(wheel.rglob("cupti_activity.h")).parent
        version = int(_VERSION.findall((include / "cupti_version.h").read_text())[-1])
        kinds = struct_of_kind((include / "cupti_activity.h").read_text())
        wheel_layouts = layouts(include, options.cuda, kinds)
        for name, layout in wheel_layouts.items():
            add(structs.setdefault(name, layout), layout, f"{name} of {wheel}")
        for header in include.glob("cupti_*_cbid.h"):
            for api, call, number in _CALL.findall(header.read_text()):
                if calls[api].setdefault(int(number), call) != call:
                    raise SystemExit(f"{call} of {wheel} had another number before")
        libraries[version] = {"wheel": wheel.name, "structs": kinds, "walked": walked(wheel)}
    parts = [
        _part("libraries", {str(key): value for key, value in sorted(libraries.items())}),
        _part("structs", dict(sorted(structs.items()))),
        _part("calls", {api: dict(sorted(numbers.items())) for api, numbers in calls.items()}),
    ]
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text("{" + ",\n".join(parts) + "}\n")
    return 0


def _part(name: str, rows: dict[str, Any]) -> str:
    """A member of the file, one line a row."""
    lines = ",\n".join(f'  "{key}": {json.dumps(value)}' for key, value in rows.items())
    return f'"{name}": {{\n{lines}\n}}'


def add(stored: dict[str, Any], layout: dict[str, Any], where: str) -> None:
    """Adds what a padding became in a later version; nothing else may differ."""
    fields = stored.get("fields", {}), layout.get("fields", {})
    both = fields[0].keys() & fields[1].keys()
    if stored["size"] != layout["size"] or any(fields[0][f] != fields[1][f] for f in both):
        raise SystemExit(f"{where} is not what it is in another version")
    fields[0].update(fields[1])


def struct_of_kind(header: str) -> dict[int, str]:
    """The structure that the header's comments name for each kind."""
    structs = {}
    for match in _KIND.finditer(header):
        names = re.findall(r"CUpti_Activity\w+", match["comment"])
        if names:
            structs[int(match["kind"])] = names[-1]
    return structs


def layouts(include: Path, cuda: Path, kinds: dict[int, str]) -> dict[str, Any]:
    """Size of each structure, and offset and size of the fields of those that are read."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "layouts.c", Path(folder) / "layouts"
        source.write_text("#include <cupti_activity.h>\n")
        compiler = ["gcc", "-w", f"-I{include}", f"-I{cuda}", str(source)]
        text = subprocess.run([*compiler, "-E", "-P"], check=True, capture_output=True).stdout
        read = {kinds[kind] for kind in READ_KINDS if kind in kinds}
        fields = {name: structs for name, structs in struct_fields(text.decode()) if name in read}
        lines = [f"#include <{name}.h>" for name in ("stddef", "stdio", "cupti_activity")]
        lines.append("int main(void) {")
        for name in sorted(set(kinds.values())):
            lines.append(f'printf("{name} - %zu 0\\n", sizeof({name}));')
            lines += [
                f'printf("{name} {field} %zu %zu\\n", offsetof({name}, {field}),'
                f" sizeof((({name} *)0)->{field}));"
                for field in fields.get(name, ())
            ]
        source.write_text("\n".join([*lines, "}\n"]))
        subprocess.run([*compiler, "-o", str(program)], check=True)
        output = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    structs: dict[str, Any] = {}
    for name, field, first, second in map(str.split, output.splitlines()):
        if field == "-":
            structs[name] = {"size": int(first)}
        else:
            structs[name].setdefault("fields", {})[field] = [int(first), int(second)]
    return structs


def struct_fields(text: str) -> list[tuple[str, list[str]]]:
    """Each structure of a preprocessed header with the names of its fields."""
    before = ""
    while before != text:  # the innermost unions and structures first
        before, text = text, _INNER.sub("int", text)
    return [
        (m["name"], [name for name in _FIELD.findall(m["body"]) if not _UNUSED.match(name)])
        for m in _STRUCT.finditer(text)
    ]


def walked(wheel: Path) -> dict[str, int] | None:
    """The size of each kind by libcupti's own steps; None where it does not answer."""
    library = next((p for p in wheel.rglob("libcupti.so.*")), None)
    if library is None:
        return None
    # Some libraries crash without a driver.
    process = subprocess.run([sys.executable, "-c", _WALK, str(library)], capture_output=True)
    sizes = json.loads(process.stdout) if process.returncode == 0 else {}
    return sizes or None


if __name__ == "__main__":
    sys.exit(main())
