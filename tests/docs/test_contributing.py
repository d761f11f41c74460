"""CONTRIBUTING.md: its files, targets and tests are there, and its layout is that of the code."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib

from tests.docs.pages import ROOT, tables
from tests.rows import each_row

PAGE = ROOT / "CONTRIBUTING.md"
TEXT = PAGE.read_text(encoding="utf-8")
CODE = re.findall(r"^```\n(.*?)^```$|`([^`\n]+)`", TEXT, re.M | re.S)
PATHS = [
    word
    for _, word in CODE
    if re.fullmatch(r"[\w./]+(\.(py|md|toml|txt|json)|/\w+)", word)
    and not word.startswith("build/")
]
FOLDERS = ("", "spark_prof", "spark_prof/analyzers/findings", "spark_prof/cli",
           "spark_prof/explorer",
           "spark_prof/kernels", "spark_prof/profiler", "spark_prof/rules",
           "spark_prof/traces", "spark_prof/traces/readers")  # fmt: skip
"""What a path on the page may be relative to."""
RUNS_TORCH = {"profiler", "swaps", "ab", "kernels", "cli", "plugin"}


def test_every_task_has_one_command_that_tests_it() -> None:
    tasks = re.split(r"^### ", TEXT.partition("## Extend it")[2], flags=re.M)[1:]
    tasks[-1] = tasks[-1].partition("\n## ")[0]
    for task in tasks:
        assert len(re.findall(r"^```\n\S+ .*\n```$", task, re.M)) == 1, task.partition("\n")[0]


@each_row("command", re.findall(r"^\.venv/bin/python -m pytest (.*)$", TEXT, re.M))
def test_a_task_s_tests_are_there(command: str) -> None:
    words = shlex.split(command)
    chosen = words.pop() if "-k" in words else ""
    files = [ROOT / word for word in words if word != "-k"]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    names = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    for word in chosen.split(" or ") if chosen else ():
        assert any(name.startswith("test_") and word in name for name in names), word


@each_row("path", PATHS)
def test_every_file_that_it_names_is_there(path: str) -> None:
    assert any((ROOT / folder / path).exists() for folder in FOLDERS)


def test_every_target_of_make_is_there() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    lines = [line for code in CODE for line in "".join(code).split("\n")]
    named = [re.match(r"make ([a-z-]+)", line) for line in lines]
    assert {match[1] for match in named if match} <= {*targets}
    assert any(named)


def test_the_layout_is_the_order_of_imports() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    layers = contracts["tool"]["importlinter"]["contracts"][0]["layers"]
    depth = {name: n for n, layer in enumerate(layers) for name in layer.split(" | ")}
    [rows] = tables(PAGE, "Layout")
    packages = [re.findall(r"`(\w+)`", cells[0]) for cells in rows]
    order = [depth[name] for names in packages for name in names]
    assert order[:-3] == sorted(order[:-3])
    assert min(order[-3:]) > order[-4]
    folders = {path.parent.name for path in (ROOT / "spark_prof").glob("*/__init__.py")}
    assert folders <= {name for names in packages for name in names}


def test_only_some_packages_import_torch_and_vllm() -> None:
    pattern = re.compile(r"^\s*(?:import|from) (?:torch|triton|vllm)\b", re.M)
    package = ROOT / "spark_prof"
    importing = {
        path.relative_to(package).parts[0].removesuffix(".py")
        for path in sorted(package.rglob("*.py"))
        if pattern.search(path.read_text("utf-8"))
    }
    assert importing == RUNS_TORCH
    [line] = re.findall(r"only (.*) import them", TEXT)
    assert {*re.findall(r"`(\w+)`", line)} == RUNS_TORCH


def test_the_golden_files_are_as_many_as_it_says() -> None:
    words = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen")
    files = sorted((ROOT / "tests/golden/expected").rglob("*.txt"))
    reports = [file for file in files if not file.name.endswith("-text.txt")]
    assert f"the reports of {words[len(reports) - 10]} recordings" in TEXT
