"""What the documentation's pages hold, as data, and the parts of them that the code writes.

These are the tables in docs/bundle.md and the report in README.md. After a change of the schemas or
of the text report write them anew, read the difference and commit it:

    python -m tests.docs.pages
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

import spark_prof
from spark_prof.dashboards.render import RENDERERS
from spark_prof.traces.tables import TABLES

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").glob("**/*.md")))
BUNDLE_PAGE = ROOT / "docs" / "bundle.md"
CAPTURE = "tests/data/h100-qwen3-30b-a3b-nvfp4-graphs"
"""The recording whose figures pages of concepts show."""
README_CAPTURE = "tests/data/code-h100/qwen3-30b-a3b-nvfp4"
"""The recording whose report README.md shows."""

_BEGIN = "<!-- tables: written by python -m tests.docs.pages -->\n"
_END = "<!-- end of tables -->\n"
_BLOCK = re.compile(r"^```(sh|console)\n(.*?)^```$", re.M | re.S)


def commands(page: Path) -> Iterator[list[str]]:
    """The `spark-prof` command lines in the page's shell blocks, as words after the name."""
    for kind, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            if kind == "console" and not line.startswith("$ "):
                continue
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words[:1] == ["spark-prof"]:
                yield words[1:]


def tables(page: Path, heading: str) -> list[list[list[str]]]:
    """The cells of every table below a heading, without the tables' head lines."""
    text = page.read_text(encoding="utf-8")
    section = re.split(r"^#+ ", text.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.M)[0]
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
        for table in re.findall(r"(?:^\|.*\n)+", section, re.M)
    ]


def schema_tables() -> str:
    """The schemas of every table of a bundle as Markdown."""
    parts = []
    for table in TABLES.values():
        lines = [f"### {table.name}\n", f"{_sentence(table.meaning)}\n"]
        lines += ["| column | type | unit | meaning |", "| --- | --- | --- | --- |"]
        lines += [
            f"| `{c.name}` | {_type(c.type)} | {_unit(c.name)} | {c.meaning} |"
            for c in table.columns
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def with_tables(page: str) -> str:
    """The page with the schemas of today between its two markers."""
    before, _, rest = page.partition(_BEGIN)
    after = rest.partition(_END)[2]
    return f"{before}{_BEGIN}\n{schema_tables()}\n{_END}{after}"


def with_report(readme: str) -> str:
    """The README with the first sections of today's report of its capture."""
    report = spark_prof.report(ROOT / README_CAPTURE)
    report = replace(report, run=replace(report.run, source=README_CAPTURE))
    shown = RENDERERS["text"](report).partition("\nLayers\n")[0]
    before, command, rest = readme.partition(f"$ spark-prof report {README_CAPTURE}\n")
    return f"{before}{command}{shown.rstrip()}\n```{rest.partition('```')[2]}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _type(kind: pa.DataType) -> str:
    return "string, dictionary" if pa.types.is_dictionary(kind) else str(kind)


def _unit(column: str) -> str:
    if column.endswith("_ns"):
        return "ns"
    return "bytes" if column == "bytes" or column.endswith("_bytes") else ""


if __name__ == "__main__":
    BUNDLE_PAGE.write_text(with_tables(BUNDLE_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    if (ROOT / README_CAPTURE).exists():
        README.write_text(with_report(README.read_text(encoding="utf-8")), encoding="utf-8")
