"""What is installed: the wheel has all data, no tests, and runs on its own; so does the sdist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import yaml

from spark_prof.extras import EXTRAS
from tests.rows import each_row

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCES = ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE")
UNPACKED_LIMIT = 10_000_000
"""Bytes: a third are the three example recordings, half the sources."""
BUILD = """
import sys
from setuptools import build_meta
folder = sys.argv[1]
build_meta.build_wheel(folder)
build_meta.build_sdist(folder)
"""
ENDINGS = (".whl", ".tar.gz")
NOT_PACKAGED = shutil.ignore_patterns("__pycache__", "*.pyc")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist of this tree, built without the network."""
    folder = tmp_path_factory.mktemp("package")
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "spark_prof", folder / "spark_prof", ignore=NOT_PACKAGED)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_example.py").write_text("")
    return built_in(folder)


def built_in(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist of the project in a folder, by this environment's setuptools."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder / "dist")],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,), (sdist,) = (list((folder / "dist").glob(f"*{ending}")) for ending in ENDINGS)
    return wheel, sdist


def content(wheel: Path) -> dict[str, int]:
    """The files of a wheel with their checksums, but for the list of them."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            info.filename: info.CRC
            for info in archive.infolist()
            if not info.filename.endswith("/RECORD")
        }


def sources() -> set[str]:
    """The files of the package as they lie in this tree."""
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / "spark_prof").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_nothing_else(
    built: tuple[Path, Path],
) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        unpacked = sum(info.file_size for info in wheel.infolist())
        entries = next(n for n in wheel.namelist() if n.endswith("entry_points.txt"))
        assert "spark_prof = spark_prof.plugin:install" in wheel.read(entries).decode()
        example = zipfile.ZipFile(wheel.open("spark_prof/example.zip"))
        assert json.loads(example.read("meta.json"))["state"] == "complete"
    assert names == sources()
    endings = Counter(name.rsplit(".", 1)[-1] for name in names)
    assert {"json", "c", "h", "cu", "cuh", "css", "js", "j2", "typed", "txt"} <= set(endings)
    assert unpacked < UNPACKED_LIMIT


@pytest.mark.slow
def test_the_sdist_makes_the_same_wheel_and_has_no_tests(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    with tarfile.open(built[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
        sdist.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    assert content(built_in(unpacked)[0]) == content(built[0])
    assert sources() | {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"} <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs"))]


@pytest.mark.slow
def test_it_runs_installed_beside_what_it_needs(built: tuple[Path, Path], tmp_path: Path) -> None:
    """An environment of its own, whose pip asks no index; dependencies are those of this one."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.check_output([python, "-c", code], text=True).strip())
    (site / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    outside = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    options = ["--no-index", "--no-deps", "--force-reinstall", "--quiet"]
    installed = subprocess.run(
        [python, "-m", "pip", "install", *options, built[0]],
        cwd=tmp_path, env=outside, capture_output=True, text=True,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr

    def ran(*words: str | Path) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=outside, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = ran(python, "-c", "import spark_prof; print(spark_prof.__file__)").strip()
    assert Path(where).is_relative_to(site)
    assert ran(home / "bin" / "spark-prof", "--version") == f"spark-prof {PROJECT['version']}\n"
    example = Path(where).parent / "example.zip"
    assert "An output token takes" in ran(python, "-m", "spark_prof", "report", example)


def test_extras_are_named_by_packages_that_are_on_the_index() -> None:
    declared = PROJECT["optional-dependencies"]
    assert {extra: tuple(declared[extra]) for extra in EXTRAS} == EXTRAS
    for path in (*(ROOT / "spark_prof").rglob("*.py"), *ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"pip install [^\n`]*(?<![./])spark-prof\b", text), path


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert headings[0].startswith((f"{PROJECT['version']} ", "Unreleased"))
    assert any(line.startswith(f"{PROJECT['version']} ") for line in headings)


FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@each_row("form", FORMS)
def test_an_issue_form_asks_for_what_github_can_show(form: Path) -> None:
    content = yaml.safe_load(form.read_text(encoding="utf-8"))
    if form.name == "config.yml":
        assert content["blank_issues_enabled"] is True
        return
    assert {"name", "description", "body"} <= set(content)
    kinds = [part["type"] for part in content["body"]]
    assert set(kinds) <= {"markdown", "textarea", "input", "dropdown", "checkboxes"}
    names = [part["id"] for part in content["body"] if part["type"] != "markdown"]
    assert len(names) == len(set(names)) > 0
    for part in content["body"]:
        assert part["attributes"].get("label" if part["type"] != "markdown" else "value")
