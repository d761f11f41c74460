"""What a person named, and what is found in a folder of recordings, on the disk and in a store."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import fsspec
import pytest

from spark_prof.errors import CommandError
from spark_prof.traces import resolve
from spark_prof.traces.resolve import find_members, source_state
from tests.rows import each_row
from tests.support import Recorded, eager_decode

TRACE = json.dumps({"schemaVersion": 1, "traceEvents": []})

Placed = Callable[[str, str], None]


@pytest.fixture(params=["disk", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Placed]]:
    """A source, and what puts a file into it."""
    if request.param == "disk":
        root = tmp_path / "runs"
        root.mkdir()

        def write(name: str, text: str) -> None:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

        yield str(root), write
        return
    store = fsspec.filesystem("memory")

    def put(name: str, text: str) -> None:
        store.pipe_file(f"/runs/{name}", text.encode())

    yield "memory://runs", put
    store.rm("/runs", recursive=True)


def test_bundles_and_traces_at_any_depth(place: tuple[str, Placed]) -> None:
    source, write = place
    for name in ("b/meta.json", "a/x/meta.json", "t.json.gz", "a/y/trace.json", "1/2/3/s.sqlite"):
        write(name, TRACE)
    found = [member.name for member in find_members(source)]
    assert found == ["1/2/3/s.sqlite", "a/x", "a/y/trace.json", "b", "t.json.gz"]
    assert [member.source for member in find_members(source)] == [f"{source}/{n}" for n in found]


def test_what_lies_in_a_bundle_is_part_of_it(place: tuple[str, Placed]) -> None:
    source, write = place
    write("b/meta.json", "{}")
    write("b/traces/rank0.json.gz", TRACE)
    assert [member.name for member in find_members(source)] == ["b"]


def test_the_ranks_of_one_run_are_one_recording(place: tuple[str, Placed]) -> None:
    source, write = place
    for rank in range(3):
        write(f"tp/dp0_rank{rank}.pt.trace.json.gz", TRACE)
    write("other/rank0_a.json.gz", TRACE)
    write("other/rank0_b.json.gz", TRACE)
    found = [member.name for member in find_members(source)]
    assert found == ["other/rank0_a.json.gz", "other/rank0_b.json.gz", "tp"]


def test_captures_of_graphs_belong_to_their_trace(place: tuple[str, Placed]) -> None:
    source, write = place
    for run in ("one", "two"):
        write(f"{run}/rank0.1.pt.trace.json.gz", TRACE)
    write("one/capture_traces/graph_capture_rank_0.json.gz", TRACE)
    found = [member.name for member in find_members(source)]
    assert found == ["one", "two/rank0.1.pt.trace.json.gz"]


def test_too_deep_is_left_out(place: tuple[str, Placed]) -> None:
    source, write = place
    write("1/2/3/4/meta.json", "{}")
    write("1/2/3/4b/5/meta.json", "{}")
    assert [member.name for member in find_members(source)] == ["1/2/3/4"]


def test_json_counts_by_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(TRACE)
    (tmp_path / "config.json").write_text('{"model": "x"}')
    assert [member.name for member in find_members(str(tmp_path))] == ["profile.json"]


def test_a_link_to_itself_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "meta.json").write_text("{}")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert [member.name for member in find_members(str(tmp_path))] == ["run"]


def test_a_link_to_a_folder_above_ends(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "meta.json").write_text("{}")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [member.name for member in find_members(str(tmp_path))] == ["b"]


def test_too_many_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "MOST_MEMBERS", 3)
    for number in range(4):
        (tmp_path / f"{number}.json.gz").write_text("")
    with pytest.raises(CommandError, match="more than 3"):
        find_members(str(tmp_path))


DATA = Path(__file__).parents[1] / "data"


@each_row(
    ("name", "kind"),
    [
        ("h100-gpt-oss-20b-mxfp4-graphs", resolve.BundleFolder("")),
        ("kineto/gpt-oss-eager.json.gz", resolve.TraceSource("", "kineto")),
        ("proton/tree.hatchet", resolve.TraceSource("", "proton-tree")),
        ("kineto/gpt-oss-graphs", resolve.TraceSource("", "folder")),
        ("benchmarks/guidellm.json", resolve.LoadTest("")),
        ("ab-cpu", resolve.AbResult("", DATA / "ab-cpu" / "result.json")),
        ("ab-cpu/result.json", resolve.AbResult("", DATA / "ab-cpu" / "result.json")),
        ("cubins", resolve.MachineCodeSource("")),
    ],
)
def test_what_was_named(name: str, kind: resolve.Source) -> None:
    source = str(DATA / name)
    assert resolve.resolve(source) == replace(kind, name=source)
    with resolve.fetched(f"file://{source}") as copy:
        assert type(copy) is type(kind)
        assert copy.name != source


def test_what_holds_several_or_a_bundle_further_down_is_a_folder(
    place: tuple[str, Placed],
) -> None:
    source, write = place
    write("x/y/meta.json", "{}")
    one = resolve.resolve(source)
    # In a store nothing says whether a folder is a bundle before it is copied.
    assert isinstance(one, resolve.Folder) or source.startswith("memory:")
    write("t.json.gz", TRACE)
    found = resolve.resolve(source)
    assert isinstance(found, resolve.Folder)
    assert [member.name for member in found.members] == ["t.json.gz", "x/y"]


def test_the_mark_of_a_result_is_its_kind(tmp_path: Path) -> None:
    from spark_prof.ab.result import AbOutcome
    from spark_prof.tune.tune_result import to_json
    from tests.tune.sample import TUNED

    [kind] = [each.default for each in fields(AbOutcome) if each.name == "kind"]
    assert resolve._RESULT_MARK.fullmatch(f'"kind": "{kind}"'.encode())
    path = tmp_path / "result.json"
    path.write_bytes(to_json(TUNED))
    for named in (path, tmp_path):
        assert resolve.resolve(str(named)) == resolve.TuneFile(str(named), path)
    path.write_text('{"kind": "spark-prof other"}')
    assert resolve.command_of_result(path) == ""


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


def replaced(path: Path) -> None:
    """Other content of the same size and times."""
    status = path.stat()
    other = path.with_name("other")
    other.write_bytes(bytes(status.st_size))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


CHANGES = (touched, grown, replaced, Path.unlink)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Recorded({0: [eager_decode()]}).assemble(tmp_path / "run").path


def test_what_stays_has_the_same_state(bundle: Path) -> None:
    first = source_state(str(bundle))
    assert first
    assert source_state(str(bundle)) == first
    assert source_state(f"{bundle}/") == first


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_file_of_a_bundle_counts(
    bundle: Path, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    for name in sorted(path.name for path in bundle.iterdir()):
        folder = tmp_path / f"copy-{name}"
        shutil.copytree(bundle, folder)
        before = source_state(str(folder))
        change(folder / name)
        assert source_state(str(folder)) != before, name
