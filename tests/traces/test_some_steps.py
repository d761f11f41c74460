"""Some steps of a recording are whole, and a report of them says of each what that of all says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_prof.analyzers.summary import summary_of
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.some_steps import Share, SomeSteps
from tests.rows import each_row
from tests.support import Recorded, eager_decode, tensor_row

DATA = Path(__file__).parents[1] / "data"
CAPTURES = ["h100-gpt-oss-20b-mxfp4-eager", "h100-gpt-oss-20b-mxfp4-graphs"]


def in_groups(source: Path, folder: Path, group: int) -> Bundle:
    """The same bundle with row groups of so many kernels."""
    shutil.copytree(source, folder)
    path = folder / table_file("kernels", 0)
    pq.write_table(pq.read_table(path), path, row_group_size=group)
    return Bundle(folder)


@each_row("name", CAPTURES)
@each_row("parts", [1, 2, 7])
def test_each_step_is_as_in_the_whole(tmp_path: Path, name: str, parts: int) -> None:
    source = Bundle(DATA / name)
    kernels = source.frame("kernels", 0)
    of_a_step = int(kernels.groupby("step").size().max())
    whole = in_groups(DATA / name, tmp_path / "run", 4 * of_a_step)
    some = SomeSteps(whole, 0, len(kernels) // parts)
    own = some.frame("kernels", 0)
    assert 0 < some.share.steps < some.share.of_steps
    assert some.share == Share(
        len(some.frame("steps", 0)), len(whole.frame("steps", 0)), len(own), len(kernels)
    )
    assert own.groupby("step").size().to_dict() == {
        step: (kernels["step"] == step).sum() for step in some.frame("steps", 0)["step"]
    }
    mine, all_of_it = summary_of(some, 0), summary_of(whole, 0)
    shared = all_of_it.steps.loc[mine.steps.index]
    assert (mine.steps["kernels_us"] == shared["kernels_us"]).all()
    # The first one of a stretch does not know when the device was done with the one before it.
    follows = mine.steps["piece"].eq(mine.steps["piece"].shift()).to_numpy()
    assert mine.steps["begin_ns"].to_numpy()[follows].tolist() == (
        shared["begin_ns"].to_numpy()[follows].tolist()
    )
    components = {row.name for row in mine.report.components}
    assert components <= {row.name for row in all_of_it.report.components}


def test_other_ranks_are_left_out_and_other_tables_are_all_there(tmp_path: Path) -> None:
    pieces = [eager_decode(2 * n, 2000 * n) for n in range(10)]
    tensors = [tensor_row("model.layers.0.mlp", 1000, 8)]
    source = Recorded({0: pieces, 1: pieces}, tensors=tensors).assemble(tmp_path / "source")
    whole = in_groups(source.path, tmp_path / "run", 10)
    some = SomeSteps(whole, 0, 20)
    assert (some.ranks, whole.ranks) == ((0,), (0, 1))
    assert some.frame("host", 0).equals(whole.frame("host", 0))
    assert some.frame("tensors", 0)["address"].tolist() == [1000]
    assert some.frame("tensors", 1).empty
    assert some.frame("kernels", 1).empty
    assert list(some.frame("kernels", 0, ["step", "name"])) == ["step", "name"]
    rows, place = some.spread("kernels", 0, ["name"], 1)
    assert len(rows) == len(place) == some.share.kernels > 1


def test_where_no_step_is_whole_there_is_none(tmp_path: Path) -> None:
    pieces = [eager_decode(2 * n, 2000 * n) for n in range(10)]
    source = Recorded({0: pieces}).assemble(tmp_path / "source")
    whole = in_groups(source.path, tmp_path / "run", 3)
    assert SomeSteps(whole, 0, 6).share.steps == 0


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    source = Recorded({0: [eager_decode(2 * n, 2000 * n) for n in range(10)]})
    whole = in_groups(source.assemble(tmp_path / "source").path, tmp_path / "run", 10)
    path = whole.path / table_file("kernels", 0)
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    path.write_bytes(content)
    with pytest.raises(CommandError, match="is damaged"):
        SomeSteps(whole, 0, 20)
