"""The documentation: links resolve, commands are real, options and JSON keys are all there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from spark_prof.analyzers.step_accounting import step_times
from spark_prof.profiler import vllm_names
from spark_prof.profiler.commands import recognise
from spark_prof.profiler.container import Mount, container_command
from tests.command_line import parsed, ran
from tests.docs.pages import GENERATED, PAGES, ROOT, commands, tables, written
from tests.rows import each_row

CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)
COMMANDS = sorted({tuple(words) for page in PAGES for words in commands(page)})
# But of all captures at once: test_every_recording draws each of them.
REPORTS = [words for words in COMMANDS if words[0] == "report" and "tests/data/" in words[1]]


def prose(page: Path) -> str:
    return CODE.sub(lambda code: re.sub(r"\S", "x", code[0]), page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = (heading.lower().replace(" ", "-") for heading in HEADING.findall(text))
    return {re.sub(r"[^\w-]", "", heading) for heading in headings}


@each_row("page", PAGES)
def test_relative_links_resolve(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_page_is_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in PAGES if page.parent.name == "docs"} - {"README.md"}
    assert pages == set(LINK.findall(index))


@each_row("words", COMMANDS)
def test_command_lines_parse(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if recorded := parsed(words).get("command"):
        # The command need not be installed here, but it must be one that can be recorded.
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(shutil, "which", lambda word: f"/usr/bin/{word}")
        for script in (word for word in recorded if word.endswith(".py")):
            (tmp_path / script).touch()
        if recognise(recorded).kind == "container":
            container_command(recorded, mounts=(Mount(tmp_path, "/spark-prof"),), environment={})


@pytest.mark.slow
@each_row("words", REPORTS)
def test_reports_of_the_captures_are_drawn(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "data").symlink_to(ROOT / "tests" / "data")
    monkeypatch.chdir(tmp_path)
    code, out, _ = ran(*words)
    assert code == 0
    assert out or [path for path in tmp_path.iterdir() if path.is_file()]


@each_row("page", [page for page in GENERATED if page.exists()])
def test_what_the_code_writes_is_that_of_today(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == written(page), "run: python -m tests.docs.pages"


def test_every_internal_name_of_vllm_is_on_the_versions_page() -> None:
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    names = [".".join(vllm_names.WORKER), ".".join(vllm_names.SCHEDULER)]
    names += [vllm_names.COMPILED_CLASS, vllm_names.MOE_RUNNER_ENTRY]
    # What begins like this package's name is put into vLLM by it.
    calls = [c for c in vllm_names.CALLS if not (c.holder or c.method).startswith("spark_prof")]
    names += [name for call in calls for name in (call.holder, call.method) if name]
    names += [".".join(map(str, v)) for v in (vllm_names.OLDEST, vllm_names.NEWEST)]
    assert [name for name in names if name not in page] == []


def test_the_worked_example_of_the_books_is_right() -> None:
    page = ROOT / "docs" / "time.md"
    windows = pd.DataFrame(
        {"begin_ns": [0, 10**6], "finish_ns": [10**6, 2 * 10**6], "engine_ns": [0.0, 0.0]},
        index=[1, 2],
    )
    launched, documented = tables(page, "A worked example")
    ran = [
        (int(step.split()[1]), what.split()[0], *(1000 * int(us) for us in times.split(" to ")))
        for step, what, times in launched
    ]
    kernels = pd.DataFrame(ran, columns=["step", "kind", "start_ns", "end_ns"])
    kernels = kernels.astype({"kind": "category"})
    result = step_times(windows, kernels)
    parts = ["kernels_us", "copies_us", "overlap_us", "gap_us", "residual_us", "step_us"]
    figures = [[float(cell) for cell in row[1:]] for row in documented]
    assert figures == [*result[parts].to_numpy().tolist(), result[parts].sum().tolist()]
