"""What the documentation's pages hold, as data, and the parts of them that the code writes.

After a change of options, schemas, kernels, measurements or the report write these parts anew,
read the difference and commit it:

    python -m tests.docs.pages
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import typer

from spark_prof.analyzers.findings.ranking import RULES
from spark_prof.analyzers.model import Report
from spark_prof.cli.app import app
from spark_prof.kernels.registry import KERNELS
from spark_prof.rules.thresholds import THRESHOLDS
from spark_prof.traces.tables import STATISTICS, TABLES, TableColumn
from tests.command_line import ran
from tests.docs.schemas import write_all

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = (README, *sorted(DOCS.glob("**/*.md")))
CAPTURE = "tests/data/h100-qwen3-30b-a3b-nvfp4-graphs"
"""The recording whose figures pages of concepts show."""
README_REPORT = ("report", "spark_prof/example.zip")
"""The command whose first lines README.md shows; its recording is that of `spark-prof demo`."""
README_LINES = 25

_BLOCK = re.compile(r"^```(sh|console)\n(.*?)^```$", re.M | re.S)


def commands(page: Path) -> Iterator[list[str]]:
    """The `spark-prof` command lines in the page's shell blocks, as words after the name.

    In a console block that is its first line; what follows was printed.
    """
    for kind, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        lines = block.replace("\\\n", " ").splitlines()
        for line in lines[:1] if kind == "console" else lines:
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


def with_schemas(page: str) -> str:
    """docs/bundle.md with the schemas of today between its two markers."""
    parts = []
    for table in TABLES.values():
        rows = list(dict.fromkeys(_column(column) for column in table.columns))
        head = [f"### {table.name}\n", f"{_sentence(table.meaning)}\n"]
        parts.append("\n".join([*head, *rows]) + "\n")
    return _between(page, "tables", "\n".join(parts))


def with_kernels(page: str) -> str:
    """docs/kernels.md with the kernels of today between its two markers."""
    names: dict[tuple[str, str], list[str]] = {}
    for kernel in KERNELS:
        key = f"{' '.join(kernel.formats)}", kernel.does
        names.setdefault(key, []).append(f"`{kernel.name}`")
    rows = [f"| {' '.join(of)} | {formats} | {does} |" for (formats, does), of in names.items()]
    head = ["| slot and kind | formats | computes |", "| --- | --- | --- |"]
    return _between(page, "kernels", "\n".join([*head, *rows]) + "\n")


def with_rules(page: str) -> str:
    """docs/findings.md with the rules of today between its two markers."""
    rows = "\n".join(f"- `{rule.id}`: {rule.looks_for}" for rule in RULES)
    return _between(page, "rules", f"{rows}\n")


def with_thresholds(page: str) -> str:
    """docs/findings.md with the thresholds of today between its two markers."""
    rows = "\n".join(
        f"- `{row.name}`, {row.value:,g} {row.unit}: {row.why}"
        + (f" ({row.source})" if row.source else "")
        + f"; {', '.join(row.findings) or 'all findings'}"
        for row in THRESHOLDS
    )
    return _between(page, "thresholds", f"{rows}\n")


def with_source(report: Report, source: str) -> Report:
    """The report as it is printed where it was asked for by this path."""
    return replace(report, run=replace(report.run, source=source))


def with_report(readme: str) -> str:
    """README.md with the first lines that its command prints today."""
    command = f"$ {shlex.join(('spark-prof', *README_REPORT))}\n"
    shown = output([*README_REPORT]).splitlines()[:README_LINES]
    before, there, rest = readme.partition(command)
    assert there, f"README.md has no {command!r}"
    lines = "\n".join(line.rstrip() for line in shown)
    return f"{before}{command}{lines}\n...\n```{rest.partition('```')[2]}"


def with_outputs(page: str) -> str:
    """A page with the outputs of today below its `$ spark-prof` commands.

    A comment behind the command names the paragraph that is shown, by its first words; without one
    it is the first.
    """

    def shown(block: re.Match[str]) -> str:
        line = block[1]
        command, _, begins = line.removeprefix("$ ").partition("  # ")
        paragraphs = output(shlex.split(command)[1:]).split("\n\n")
        found = next((text for text in paragraphs if text.startswith(begins)), None)
        assert found, f"{command} prints no paragraph that begins with {begins!r}"
        return f"```console\n{line}\n{found.strip()}\n```"

    return re.sub(r"```console\n(\$ [^\n]*)\n.*?^```", shown, page, flags=re.M | re.S)


def output(words: list[str]) -> str:
    """What a command prints where it is run in the repository."""
    with contextlib.chdir(ROOT):
        code, out, err = ran(*words)
    assert code == 0, (words, err)
    return out


def commands_page(_: str = "") -> str:
    """docs/commands.md: every option of every command, as `--help` has it."""
    group: Any = typer.main.get_command(app)
    parts = [
        "# Commands\n",
        "Every option, as `--help` tells it.\n",
        "Commands that draw something also have `--format` (by default text, or what OUT's ending "
        "says), `--out`, `-o` (a file in place of the terminal), `--section` (only this one, by "
        "its id or key; repeatable) and `--limit` (rows of each table at most). A file that is "
        "there is replaced, a folder has to be new or empty.\n",
        "## For programs\n",
        "`--format json` prints one document on stdout; [schema](schema) has the schema of each. "
        "Commands that write something (`export --json`) print "
        "[written](schema/written.schema.json), and what a recorded command prints goes to stderr "
        "then; `explore` prints its address. Keys may be added, none goes. With `--limit` or "
        "`--section` there is `left_out`, rows by list; a list is `rows` then.\n",
        "A finding's `key` is its own in a document and the same in every format; `verify` is what "
        "to type after the change. A kernel's `kernel_id` hashes its name, as `kernel_id(name)` "
        "does in SQL.\n",
        "## Exit codes\n",
        "\n".join(["| code | meaning |", "| --- | --- |", *_EXIT_CODES]) + "\n",
    ]
    told: dict[str, str] = {}  # the command that a row stands under
    for name, command in sorted(group.commands.items()):
        found = getattr(command, "commands", None) or {"": command}
        parts.append(f"## {name}\n")
        for part, inner in found.items():
            shown = f"{_sentence(_words(inner.help)).rstrip('.')}."
            parts.append(f"`{name} {part}`: {shown}\n" if part else f"{shown}\n")
            rows = [_option(p) for p in inner.params if p.param_type_name == "option"]
            rows = [row for row in rows if row not in _DRAWING]
            again: dict[str, list[str]] = {}
            for row in rows:
                if row in told:
                    names = row.partition(":")[0].removeprefix("- ")
                    again.setdefault(told[row], []).append(names)
            rows = [row for row in rows if row not in told]
            told.update(dict.fromkeys(rows, name))
            if rows:
                parts.append("\n".join(rows) + "\n")
            for where, names_of in again.items():
                parts.append(f"As of `{where}`: {', '.join(names_of)}.\n")
    return "\n".join(parts).rstrip() + "\n"


_EXIT_CODES = (
    "| 0 | it is done, whatever was found |",
    "| 1 | what was checked failed: `compare --fail-on`, `doctor --fail-on-findings`, the gate of "
    "`ab`, a kernel of `kernels`; or the command that `record` ran, whose bundle is whole |",
    "| 2 | the input or an option is not usable, nothing was recorded or could be checked, or an "
    "engine of `ab` ended; stderr has one line |",
    "| 129, 130, 143 | SIGHUP, Ctrl-C, SIGTERM |",
)
_DRAWING = (
    "- `--limit`: At most so many rows of each table",
    "- `--section`: Only this section, such as kernels; repeatable",
    "- `--format`: How to say what came of it; JSON goes to stdout; default text",
    "- `--format`: How to show it; default text",
    "- `--format`: How to draw it; by default text, or what OUT's ending says",
    "- `--out`, `-o`: Write to this file, not to the terminal",
)
"""Rows that the head of the page has once."""


def _option(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    given = (
        default not in (None, False, (), [], "") and not callable(default) and default is not ...
    )
    shown = f"; default {getattr(default, 'value', default)}" if given else ""
    return f"- {names}: {_words(parameter.help).rstrip('.')}{shown}"


def _words(text: str | None) -> str:
    return " ".join((text or "").split("\f")[0].split())


def _between(page: str, what: str, text: str) -> str:
    begin = f"<!-- {what}: written by python -m tests.docs.pages -->\n"
    end = f"<!-- end of {what} -->\n"
    before, found, rest = page.partition(begin)
    assert found, f"no place for the {what}"
    return f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _column(column: TableColumn) -> str:
    """A column's row; the statistics of one latency are one row, with a * in their place."""
    found = re.fullmatch(rf"(\w+_)({'|'.join(STATISTICS)})(_us)", column.name)
    name = f"{found[1]}*{found[3]}" if found else column.name
    meaning = column.meaning.replace(found[2], "*", 1) if found else column.meaning
    return f"- `{name}` {_type(column.type)}: {meaning}"


def _type(kind: pa.DataType) -> str:
    return "string" if pa.types.is_dictionary(kind) else str(kind)


def _with_figures(text: str) -> str:
    from tests.docs.kernel_figures import for_the_page, with_figures

    return with_figures(text, for_the_page)


def _readme_figures(text: str) -> str:
    from tests.docs.kernel_figures import for_the_readme, with_figures

    return with_figures(text, for_the_readme)


GENERATED: dict[Path, tuple[Callable[[str], str], ...]] = {
    DOCS / "bundle.md": (with_schemas,),
    DOCS / "commands.md": (commands_page,),
    DOCS / "findings.md": (with_rules, with_thresholds),
    DOCS / "kernels.md": (with_kernels, _with_figures),
    DOCS / "tutorial-kernel.md": (with_outputs,),
    DOCS / "tutorial-nvfp4.md": (with_outputs,),
    README: (with_report, _readme_figures),
}
"""The pages that the code writes parts of, and what writes them."""


def written(page: Path) -> str:
    """The page with the parts of today."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    for write in GENERATED[page]:
        text = write(text)
    return text


if __name__ == "__main__":
    for path in GENERATED:
        path.write_text(written(path), encoding="utf-8")
    write_all()
