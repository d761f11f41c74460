"""Asks pip's package index whether every dependency has a wheel for Linux on ARM (DGX Spark).

Looks at the core dependencies with all that they need, and at what each extra names. Nothing is
installed or downloaded but metadata. Run it with an environment in which spark-prof is installed.

usage: python scripts/check_wheels.py [--python 3.12] [--skip EXTRA ...]
exit code: 0 every wheel is there, 1 one is missing, 2 pip could not tell
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
MACHINE = "aarch64"
PLATFORMS = [f"manylinux_2_{minor}_{MACHINE}" for minor in range(39, 16, -1)]
PLATFORMS += [f"manylinux2014_{MACHINE}", f"linux_{MACHINE}"]


@dataclass(frozen=True)
class Wheel:
    """What pip would install for a requirement; empty where there is no wheel."""

    version: str
    file: str


def main(words: Sequence[str] | None = None) -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--project", type=Path, default=ROOT / "pyproject.toml")
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--skip", nargs="*", default=[], metavar="EXTRA")
    options = parser.parse_args(words)
    project = tomllib.loads(options.project.read_text(encoding="utf-8"))["project"]
    parts = {"core": with_dependencies(project["dependencies"], options.python)}
    for extra, names in project.get("optional-dependencies", {}).items():
        if extra not in options.skip:
            parts[extra] = sorted(names)
    needed = [(part, requirement) for part, names in parts.items() for requirement in names]
    try:
        with ThreadPoolExecutor(4) as pool:
            wheels = list(pool.map(lambda item: find_wheel(item[1], options.python), needed))
    except LookupError as error:
        print(f"check_wheels: {error}", file=sys.stderr)
        return 2
    print(f"{'for':8}  {'requirement':30}  {'version':14}  wheel")
    for (part, requirement), wheel in zip(needed, wheels, strict=True):
        print(f"{part:8}  {requirement:30.30}  {wheel.version:14}  {wheel.file or 'MISSING'}")
    missing = sum(not wheel.file for wheel in wheels)
    print(f"{len(wheels) - missing} of {len(wheels)} have a wheel for Python {options.python} "
          f"on {MACHINE}")  # fmt: skip
    return 1 if missing else 0


def with_dependencies(requirements: Sequence[str], python: str) -> list[str]:
    """The requirements and all that they need, as the installed packages declare it."""
    environment = {
        "platform_machine": MACHINE, "platform_system": "Linux", "sys_platform": "linux",
        "os_name": "posix", "platform_python_implementation": "CPython",
        "implementation_name": "cpython", "python_version": python,
        "python_full_version": f"{python}.0",
    }  # fmt: skip
    requirement_of: dict[str, str] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = requirement.name.lower().replace("_", "-")
        if name in requirement_of:
            continue
        requirement_of[name] = f"{requirement.name}{requirement.specifier}"
        try:
            declared = [Requirement(text) for text in requires(requirement.name) or ()]
        except PackageNotFoundError:
            continue
        for extra in ("", *requirement.extras):
            waiting += [
                needed
                for needed in declared
                if needed.marker is None or needed.marker.evaluate(environment | {"extra": extra})
            ]
    return sorted(requirement_of.values(), key=str.lower)


def find_wheel(requirement: str, python: str) -> Wheel:
    """The wheel that pip would take for the requirement, looked up without its dependencies.

    Raises:
        LookupError: pip failed for another reason than a missing wheel.
    """
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    command += ["--no-deps", "--quiet", "--only-binary=:all:", "--disable-pip-version-check"]
    command += ["--python-version", python, "--implementation", "cp"]
    for abi in ("cp" + python.replace(".", ""), "abi3", "none"):
        command += ["--abi", abi]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    with tempfile.TemporaryDirectory() as folder:
        # With --platform pip asks for a target, though it installs nothing.
        command += ["--target", folder, "--report", "-", requirement]
        ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        if "No matching distribution" in ended.stderr:
            return Wheel("", "")
        raise LookupError(f"pip could not look up {requirement}; try it by hand to see why")
    item = json.loads(ended.stdout[ended.stdout.index("{") :])["install"][0]
    file = unquote(urlsplit(item["download_info"]["url"]).path.rsplit("/", 1)[-1])
    return Wheel(item["metadata"]["version"], file)


if __name__ == "__main__":
    sys.exit(main())
