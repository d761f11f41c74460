"""`spark-prof demo` has what it shows, in the package."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import spark_prof
from spark_prof.cli.demo import EXAMPLE


def test_the_example_is_a_recording_that_the_package_brings() -> None:
    assert spark_prof.report(EXAMPLE).steps.decode == 30
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["spark_prof"]
    for path in EXAMPLE.iterdir():
        assert any(fnmatch(f"example/{path.name}", pattern) for pattern in patterns), path.name
