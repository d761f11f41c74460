"""The file for speedscope: stacks in gaps first, then every thread, as its format wants them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

from spark_prof.analyzers.summary import summary_of
from spark_prof.datasets.opened import opened
from spark_prof.exporters.shared_recording import share
from spark_prof.traces.assemble import assemble
from spark_prof.traces.merge_ranks import join_bundles
from tests import host_stacks
from tests.command_line import ran


def test_a_profile_has_the_stacks_of_its_thread(tmp_path: Path) -> None:
    bundle = host_stacks.bundle(tmp_path / "b")
    out = tmp_path / "stacks.speedscope.json"
    assert ran("export", bundle.path, "-o", out)[0] == 0
    told = json.loads(out.read_text())
    frames = [frame["name"] for frame in told["shared"]["frames"]]
    by_name = {profile["name"]: profile for profile in told["profiles"]}
    assert list(by_name) == [
        "rank0, while nothing runs", "rank0, thread 2", "rank0, its first thread",
    ]  # fmt: skip
    for profile in by_name.values():
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] == sum(profile["weights"])
    leaves = Counter(frames[s[-1]] for s in by_name["rank0, while nothing runs"]["samples"])
    assert leaves == {"slow_policy": 180, "Scheduler.update_from_output": 60}
    whole = by_name["rank0, its first thread"]
    assert (len(whole["samples"]), whole["unit"]) == (600, "nanoseconds")
    assert set(whole["weights"]) == {1e6}


def test_it_can_be_packed_and_is_refused_without_stacks(tmp_path: Path) -> None:
    bundle = host_stacks.bundle(tmp_path / "b")
    out = tmp_path / "stacks.speedscope.json.gz"
    assert ran("export", bundle.path, "-o", out)[0] == 0
    assert json.loads(gzip.decompress(out.read_bytes()))["profiles"]
    without = host_stacks.recorded().assemble(tmp_path / "without")
    code, _, error = ran("export", without.path, "-o", tmp_path / "x.speedscope.json")
    assert code == 2
    assert "record --host" in error
    assert not (tmp_path / "x.speedscope.json").exists()


def test_a_shared_recording_tells_the_same_stages_and_no_private_name(tmp_path: Path) -> None:
    bundle = host_stacks.bundle(tmp_path / "b")
    share(bundle, tmp_path / "b.zip")
    code = summary_of(bundle).report.host
    with opened(str(tmp_path / "b.zip")) as sent:
        shared = summary_of(sent).report.host
        stacks = "\n".join(sent.frame("stacks", 0)["stack"].astype(str).unique())
    assert code is not None
    assert shared is not None
    assert shared.stages == code.stages
    assert shared.limits == code.limits
    assert "slow_policy" not in stacks or "policy" in stacks  # words that vLLM has stay
    assert "Scheduler.schedule" in stacks


def test_hosts_are_joined_with_their_stacks(tmp_path: Path) -> None:
    bundle = host_stacks.bundle(tmp_path / "b")
    (tmp_path / "joined").mkdir()
    joined = join_bundles([bundle], tmp_path / "joined")
    assert summary_of(joined).report.host == summary_of(bundle).report.host


def test_damaged_stacks_cost_themselves_alone(tmp_path: Path) -> None:
    for number, (name, content) in enumerate(
        (("host.00000.stacks.json", "{}"), ("host.00000.stacks.npy", "no"),
         ("host.account.json", '{"threads": 1}'))
    ):  # fmt: skip
        folder = tmp_path / f"b{number}"
        pieces = host_stacks.recorded().write(folder)
        host_stacks.plant(pieces)
        (pieces / name).write_text(content)
        bundle = assemble(folder, state="complete")
        assert any(line.startswith("host:") for line in bundle.meta.lost), name
        assert summary_of(bundle).report.steps.count == host_stacks.STEPS
