"""`spark-prof merge`: a whole bundle or one line and exit code 2, and nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from spark_prof.analyzers.ranks.rank_summary import collectives_of
from spark_prof.traces.assemble import assemble
from spark_prof.traces.bundle import Bundle
from tests.analyzers.ranks.bundles import bundle, parallel, write
from tests.analyzers.ranks.play import Play
from tests.cli.conftest import Refuses, Run

COMMAND = "merge"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> None:
    """Two parts `a` and `b` of a run, another run `c`, and a folder that is full."""
    play = Play(ranks=3, offset_ns={1: 50_000_000})
    for rank, name in enumerate("abc"):
        facts = {rank: {"boot": name, "run": "other" if name == "c" else "r"}}
        bundle(tmp_path / name, play, facts, parallel=parallel(tensor=2))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()


def test_two_hosts_become_one_bundle(run: Run, tmp_path: Path) -> None:
    code, _, said = run("b", "a", "-o", "deep/whole")
    assert code == 0
    assert "ranks 0, 1 in deep/whole" in said
    assert "rank1: clock +50,0" in said
    assert "times moved" in said
    assert Bundle(tmp_path / "deep" / "whole").ranks == (0, 1)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["whole"]


def node(folder: Path, play: Play, rank: int, first: int = 0, stop: int = 40, **more: str) -> None:
    """What one recorder of two wrote: a rank of a run that each host was given a command of."""
    own = {"boot": f"host-{rank}", "run": folder.name, "model": f"/models-{rank}/m"}
    command = (
        "vllm serve m --nnodes 2 --master-addr 10.0.0.1 --master-port "
        f"{more.pop('port', '29501')} --node-rank {rank} {'--headless' * rank}"
    )
    write(folder, play, {rank: own | more}, parallel=parallel(tensor=2))
    for path in (folder / "pieces").glob("rank*.steps.npy"):
        rows = np.load(path)[first:stop]
        rows["step"] -= first
        np.save(path, rows)
    made = assemble(folder, state="complete")
    meta = json.loads((made.path / "meta.json").read_text()) | {"command": command.split()}
    (made.path / "meta.json").write_text(json.dumps(meta))


@pytest.mark.parametrize(
    ("first", "stop"),
    [(0, 40), (0, 30), (0, 3), (7, 40), (5, 33)],
    ids=["all steps", "lost the last", "lost nearly all", "began later", "both"],
)
def test_each_node_may_have_a_recorder_of_its_own(
    run: Run, tmp_path: Path, first: int, stop: int
) -> None:
    play = Play(ranks=2, offset_ns={1: 3_000_000})
    node(tmp_path / "n0", play, 0)
    node(tmp_path / "n1", play, 1, first, stop)
    code, _, said = run("n0", "n1", "-o", "whole")
    assert code == 0, said
    whole = Bundle(tmp_path / "whole")
    found, _ = collectives_of(whole)
    assert whole.ranks == (0, 1)
    assert found.steps == stop - first
    assert found.matched == 3 * (stop - first)
    assert whole.facts(1)["clock_shifts"][0]["offset_ns"] == pytest.approx(3e6, abs=1e5)


OTHER = Play(ranks=2, seed=9)
SAME_BATCHES = Play(ranks=2, seed=9)
SAME_BATCHES.keys = Play(ranks=2).keys
PARTLY = Play(ranks=2)
PARTLY.keys = np.where(np.arange(40) % 3 == 0, PARTLY.keys, 20_000 + np.arange(40))


@pytest.mark.parametrize(
    ("play", "rank", "more", "why"),
    [
        (OTHER, 1, {}, "no step of rank 0 is one of rank 1"),
        (PARTLY, 1, {}, "their steps differ"),
        (Play(ranks=2, offset_ns={1: 60_000_000_000}), 1, {}, "before the other began"),
        (SAME_BATCHES, 1, {}, "by no clock do the collectives of ranks 0 and 1 fit together"),
        (Play(ranks=2), 1, {"port": "29777"}, "--master-port is 29501 for one and 29777"),
        (Play(ranks=2), 0, {}, "both hold"),
        (Play(ranks=3), 2, {}, "one has rank 2, the run has 2 ranks"),
        (Play(ranks=2), 1, {"model": "/models/other"}, "model differs"),
    ],
)
def test_what_is_not_one_run_is_refused(
    refuses: Refuses, tmp_path: Path, play: Play, rank: int, more: dict[str, str], why: str
) -> None:
    node(tmp_path / "n0", Play(ranks=2), 0)
    node(tmp_path / "n1", play, rank, **more)  # type: ignore[arg-type]
    assert why in refuses("n0 n1 -o whole")
    assert not (tmp_path / "whole").exists()


def test_who_knows_better_may_say_so(run: Run, tmp_path: Path) -> None:
    node(tmp_path / "n0", Play(ranks=2), 0)
    node(tmp_path / "n1", Play(ranks=2, offset_ns={1: 60_000_000_000}), 1)
    assert run("n0", "n1", "-o", "whole", "--same-run")[0] == 0


def test_bad_input_is_one_line(refuses: Refuses) -> None:
    for words in (
        "a -o whole", "a b", "a b -o full", "a b -o a", "a a -o whole", "a c -o whole",
        "a nosuch -o whole", "a full -o whole", "-o whole", "a b -o full/x/whole",
    ):  # fmt: skip
        refuses(words)
