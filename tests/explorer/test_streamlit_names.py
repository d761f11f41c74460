"""What is used of Streamlit and of what serves it: a release that lacks a name is found here."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path

import streamlit
from packaging.requirements import Requirement
from streamlit import config

from spark_prof.explorer import server

ROOT = Path(__file__).parents[2]


def _sources(folder: str) -> Iterator[str]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path.read_text(encoding="utf-8")


def test_every_name_that_is_used_is_there() -> None:
    offered = {name for text in _sources("spark_prof/explorer")
               for name in re.findall(r"\bst\.(\w+)", text)}  # fmt: skip
    assert len(offered) > 20
    missing = [f"st.{name}" for name in sorted(offered) if not hasattr(streamlit, name)]
    for flag in server._FLAGS:
        try:
            config.get_option(flag)
        except RuntimeError:
            missing.append(f"the option {flag}")
    assert not missing, f"Streamlit {version('streamlit')} lacks {', '.join(missing)}"


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
