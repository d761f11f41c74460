"""The frame around the pages: sources, ranks and pages live in the address."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from spark_prof.dashboards.charts import TEXT
from spark_prof.datasets.prepared import Prepared, prepare
from spark_prof.errors import CommandError
from spark_prof.explorer import cache
from spark_prof.explorer.app import PAGES
from spark_prof.explorer.cache import reading
from spark_prof.traces.chunks import progress_name, write_json
from tests.analyzers.ranks.bundles import bundle, parallel
from tests.analyzers.ranks.play import Play
from tests.docs.pages import DOCS, tables
from tests.explorer.framed import DATA, PATHS, framed, sidebar_links, texts
from tests.rows import each_row
from tests.support import Recorded, eager_decode

GRAPHS, EAGER = (DATA / f"h100-gpt-oss-20b-mxfp4-{kind}" for kind in ("graphs", "eager"))
RESULT = DATA / "ab-cpu"
OF_RECORDINGS = [path for path in PATHS if path != "ab"]


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "four"
    hosts = {rank: {"host": "a", "boot": "1"} for rank in range(4)}
    bundle(folder, Play(ranks=4), hosts, parallel=parallel(tensor=4))
    return folder


NONSENSE = (
    {"source": "2", "rank": "7", "step": "9" * 20, "layer": "1e9", "component": "a" * 3000,
     "kernel": "-1", "other": "-1", "call": "<b>", "show": "<script>", "phase": "no"},
    {"source": "9" * 600, "rank": "0x0", "step": "nan", "layer": "\0", "component": "norm",
     "kernel": "999999", "other": "__proto__", "of": "decode-7", "text": "\x00" * 900,
     "engine": "none", "ranks": "1,x", "line": "-4", "lines": "some", "code": ".."},
)  # fmt: skip
"""What an address may say that no page ever wrote."""


@pytest.mark.slow
@each_row("page", OF_RECORDINGS)
def test_every_page_is_drawn_at_its_address_whatever_else_that_says(page: str) -> None:
    app = framed([GRAPHS, EAGER], page, source=1)
    assert app.header[0].value.lower().replace("/", "") == page
    assert app.sidebar.selectbox(key="choice-source").value == 1
    for address in NONSENSE:
        app = framed([GRAPHS, EAGER], page, **address)
        assert app.header[0].value.lower() == page
        assert app.sidebar.selectbox(key="choice-source").value == 0, "it is the first"


def test_every_page_is_in_the_documentation() -> None:
    [rows] = tables(DOCS / "explore.md", "Explore")
    assert [cells[0] for cells in rows] == list(PAGES.values())


def test_links_keep_what_other_pages_understand() -> None:
    address = {"source": "1", "layer": "3", "step": "2", "sort": "mine"}
    kept = {name: value for name, value in address.items() if name != "sort"}
    links = sidebar_links(framed([GRAPHS, EAGER], "layers", **address))
    assert set(links) == {PAGES[path] for path in OF_RECORDINGS if path not in ("ranks", "host")}
    assert [dict(parse_qsl(query)) for query in links.values()] == [kept] * len(links)


def test_another_source_is_written_to_the_address_and_forgets_what_it_lacks() -> None:
    app = framed([GRAPHS, EAGER], layer=3, step=1, kernel=5)
    first = texts(app)
    app.sidebar.selectbox(key="choice-source").select_index(1).run()
    assert app.query_params == {"source": "1", "layer": "3"}
    assert texts(app) != first
    assert texts(app) == texts(framed([GRAPHS, EAGER], source=1, layer=3))


@pytest.mark.slow
def test_ranks_are_chosen_by_the_address(four_ranks: Path) -> None:
    app = framed([four_ranks], "steps", rank=2)
    choice = app.sidebar.selectbox(key="choice-rank")
    assert (choice.options, choice.value) == (["0", "1", "2", "3"], 2)
    choice.select_index(3).run()
    assert app.query_params == {"rank": "3"}
    for none in ("4", "-1", "x", "99999999999999999999"):
        app = framed([four_ranks], "steps", rank=none)
        assert app.sidebar.selectbox(key="choice-rank").value == 0, "it is the lowest"
    app = framed([four_ranks], "steps", ranks=[3, 1])
    assert app.sidebar.selectbox(key="choice-rank").options == ["1", "3"]


def test_a_folder_opens_each_recording_in_it(tmp_path: Path) -> None:
    for source in (GRAPHS, EAGER):
        shutil.copytree(source, tmp_path / source.name)
    app = framed([tmp_path], "fallbacks")
    assert app.sidebar.selectbox[0].options == [EAGER.name, GRAPHS.name]


def test_one_that_is_broken_says_why_and_the_others_open(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"traceEvents": [{"ph": "X", "ts"')
    (tmp_path / "text.txt").write_text("no trace")
    names = [tmp_path / "broken.json", GRAPHS, tmp_path / "text.txt", tmp_path / "none"]
    said = [texts(framed(names, "fallbacks", source=n)) for n in range(4)]
    assert "not a whole Kineto trace" in said[0]
    assert "is nothing that can be read" in said[2]
    assert "none does not exist" in said[3]
    assert "does not exist" not in said[1]


def test_a_result_of_ab_has_its_own_page_only() -> None:
    app = framed([RESULT, GRAPHS])
    assert app.header[0].value.replace("\\", "") == "A/B"
    assert list(sidebar_links(app)) == ["A/B"]
    app.sidebar.selectbox(key="choice-source").select_index(1).run()
    assert "A/B" not in sidebar_links(app)
    assert framed([GRAPHS], "ab").header[0].value == "Overview"
    assert "nothing to look at" in texts(framed([]))


@pytest.mark.slow
def test_a_recording_that_goes_on_is_read_again(tmp_path: Path) -> None:
    pieces = [eager_decode(2 * n, 2000 * n) for n in range(4)]
    place = Recorded({0: pieces[:2]}).write(tmp_path / "run")
    write_json(place, progress_name("rank0"), {"pid": os.getpid(), "recorded": 4})
    app = framed([tmp_path / "run"], "steps")
    assert "Being recorded. Read at " in texts(app)
    before = _steps(tmp_path / "run")
    Recorded({0: pieces}).write(tmp_path / "more")
    for path in sorted((tmp_path / "more").rglob("*")):
        own = tmp_path / "run" / path.relative_to(tmp_path / "more")
        if path.is_file() and not own.exists():
            shutil.copyfile(path, own)
    app.run()
    assert (before, _steps(tmp_path / "run")) == (4, 8)


def test_a_recording_met_between_two_pieces_stays_as_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Recorded({0: [eager_decode()]}).write(tmp_path / "run")
    write_json(place, progress_name("rank0"), {"pid": os.getpid(), "recorded": 2})
    source = str(tmp_path / "run")
    before = reading(source).get()
    asked: list[str] = []

    def failing(source: str, rank: int | None) -> Prepared:
        asked.append(source)
        raise CommandError("cannot look at the pieces")

    monkeypatch.setattr(cache, "prepare", failing)
    (place / "rank0.00001.steps.npy").touch()
    assert reading(source).get() is before
    assert asked == [source]


def test_a_source_is_read_once_whatever_its_rank_is_called(tmp_path: Path) -> None:
    source = str(
        Recorded({rank: [eager_decode()] for rank in range(2)}).assemble(tmp_path / "r").path
    )
    found = reading(source).get()
    assert reading(source, 0).get() is found
    assert reading(source).get() is found
    assert reading(source, 1).get().rank == 1


def test_what_cannot_be_read_is_looked_at_again_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counted(source: str, rank: int | None) -> Prepared:
        asked.append(source)
        return prepare(source, rank)

    monkeypatch.setattr(cache, "prepare", counted)
    source = tmp_path / "run"
    source.mkdir()
    (source / "meta.json").write_text("{")
    for _ in range(2):
        with pytest.raises(CommandError, match=r"meta\.json"):
            reading(str(source)).get()
    assert len(asked) == 1
    shutil.rmtree(source)
    shutil.copytree(GRAPHS, source)
    assert reading(str(source)).get().report.steps.count == 4
    assert len(asked) == 2


def test_many_who_look_at_once_have_it_read_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def slow(source: str, rank: int | None) -> Prepared:
        asked.append(source)
        time.sleep(0.2)
        return prepare(source, rank)

    monkeypatch.setattr(cache, "prepare", slow)
    shutil.copytree(GRAPHS, tmp_path / "run")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: reading(str(tmp_path / "run")).get(), range(4)))
    assert len(asked) == 1
    assert all(one is found[0] for one in found)


def _steps(source: Path) -> int:
    return len(reading(str(source)).get().steps)


def test_the_ink_of_figures_is_that_of_the_theme() -> None:
    ink = ", ".join(map(str, bytes.fromhex(TEXT[1:])))
    assert f"rgb({ink})" in (Path(cache.__file__).parent / "app.css").read_text()
