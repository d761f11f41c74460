"""What is used of Streamlit and of what serves it: a release that lacks a name is found here."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import packages_distributions, version
from operator import attrgetter
from pathlib import Path

import streamlit
from packaging.requirements import Requirement
from streamlit import config

from spark_prof.explorer import server

ROOT = Path(__file__).parents[2]
INTERNALS = (
    # module, name, which of this project's folders uses it
    ("streamlit", "App.lifespan", "spark_prof"),
    ("streamlit", "config", "tests"),
    ("streamlit", "net_util", "spark_prof"),
    ("streamlit.delta_generator", "DeltaGenerator", "spark_prof"),
    ("streamlit.net_util", "get_external_ip", "spark_prof"),
    ("streamlit.proto.BackMsg_pb2", "BackMsg", "tests"),
    ("streamlit.proto.ForwardMsg_pb2", "ForwardMsg", "tests"),
    ("streamlit.testing.v1", "AppTest", "tests"),
    ("streamlit.util", "calc_hash", "tests"),
    ("streamlit.web", "bootstrap", "spark_prof"),
    ("streamlit.web.bootstrap", "load_config_options", "spark_prof"),
    ("streamlit.web.server.starlette.starlette_app", "create_streamlit_routes", "tests"),
)
"""Beside what `st` offers: what a release may rename without saying so."""

_IMPORT = re.compile(
    r"^\s*from (streamlit[\w.]*) import (.+)$|^\s*import (streamlit\.[\w.]+)", re.M
)


def _sources(folder: str) -> Iterator[str]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path.read_text(encoding="utf-8")


def _has(module: str, name: str) -> bool:
    with suppress(ImportError):
        try:
            attrgetter(name)(import_module(module))
        except AttributeError:
            import_module(f"{module}.{name}")
        return True
    return False


def test_every_name_that_is_used_is_there() -> None:
    missing = [f"{module}.{name}" for module, name, _ in INTERNALS if not _has(module, name)]
    offered = {name for text in _sources("spark_prof/explorer")
               for name in re.findall(r"\bst\.(\w+)", text)}  # fmt: skip
    assert len(offered) > 20
    missing += [f"st.{name}" for name in sorted(offered) if not hasattr(streamlit, name)]
    for flag in server._FLAGS:
        try:
            config.get_option(flag)
        except RuntimeError:
            missing.append(f"the option {flag}")
    assert not missing, f"Streamlit {version('streamlit')} lacks {', '.join(missing)}"


def test_the_table_has_what_is_imported() -> None:
    listed = {(module, name) for module, name, _ in INTERNALS}
    found = set()
    for folder in ("spark_prof", "tests", "benchmarks"):
        for text in _sources(folder):
            for module, names, whole in _IMPORT.findall(text):
                found |= {(module, name.split()[0]) for name in names.split(",") if name}
                found |= {(whole, "")} if whole else set()
    assert not found - listed, "add it to the table, and see that nothing public does the same"
    for module, name, folder in INTERNALS:
        last = name.rpartition(".")[2]
        assert any(last in text for text in _sources(folder)), f"{module}.{name} is not used"


def test_what_the_explorer_imports_is_declared_with_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = {Requirement(text).name: Requirement(text)
                for text in (*project["dependencies"], *extras["explore"])}  # fmt: skip
    owners = packages_distributions()
    for text in _sources("spark_prof/explorer"):
        for module in re.findall(r"^\s*(?:from|import) (\w+)", text, re.M):
            if module not in sys.stdlib_module_names and module in owners:
                names = {name.lower() for name in owners[module]}
                assert names & {*declared, "spark-prof"}, f"{module} is not declared"
    assert set(extras["explore"]) <= set(extras["test"])
    for name in ("streamlit", "starlette", "uvicorn"):
        bounds = {one.operator for one in declared[name].specifier}
        assert bounds == {">=", "<"}, name
        assert declared[name].specifier.contains(version(name)), name
