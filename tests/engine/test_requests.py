"""A real vLLM engine under load: each request's way, against the scheduler's log and the client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_prof import load
from spark_prof.analyzers.requests.request_times import request_times
from spark_prof.analyzers.requests.served import served_of
from spark_prof.traces.bundle import Bundle
from tests.engine.conftest import ROOT, SPARK_PROF
from tests.engine.requested_engine import ABORTED, REQUESTS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["in-process", "own process"])
def ran(
    request: Any,
    models: dict[str, Path],
    environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Bundle, dict[str, Any]]:
    bundle = tmp_path_factory.mktemp("requests") / "b"
    argv = [
        *SPARK_PROF, "record", "-o", str(bundle), "--steps", "0", "--", sys.executable, "-m",
        "tests.engine.requested_engine", str(models["tiny-dense"]),
        *(["--in-process"] if request.param == "in-process" else []),
    ]  # fmt: skip
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    [line] = [text for text in done.stdout.splitlines() if text.startswith("REQUESTED ")]
    return load(bundle), json.loads(line.removeprefix("REQUESTED "))


def test_each_request_is_told_as_the_client_saw_it(ran: tuple[Bundle, dict[str, Any]]) -> None:
    bundle, truth = ran
    found = request_times(bundle, 0, 0).sort_values("request")
    assert len(found) == REQUESTS
    told, seen = [], []
    for row, client in zip(found.itertuples(), truth["requests"], strict=True):
        assert row.prompt_tokens == client["prompt"]
        if client["aborted"]:
            assert row.state == "aborted"
            continue
        assert row.state == "whole"
        assert row.output_tokens == client["output"]
        assert row.cached_tokens == client["cached"]
        assert client["preemptions"] in (None, row.preemptions)
        told.append((row.ttft_us, (row.last_token_ns - row.first_token_ns) / 1e3, row.queue_us))
        seen.append([1e6 * client[name] for name in ("ttft_s", "tokens_s", "queued_s")])
    ratios = np.sum(told, axis=0) / np.sum(seen, axis=0)
    print("RATIOS", ratios)
    assert ratios == pytest.approx([1.0, 1.0, 1.0], abs=0.03)
    served = served_of(bundle, 0)
    assert served is not None
    assert (served.whole, served.aborted) == (REQUESTS - ABORTED, ABORTED)
    assert served.preemptions > 0
    assert served.cached_tokens
    assert served.limited("kv") > 0


def test_parts_are_those_of_the_scheduler_s_own_log(ran: tuple[Bundle, dict[str, Any]]) -> None:
    bundle, truth = ran
    batches = [batch for batch in truth["batches"] if batch["tokens"]]
    if not batches:
        pytest.skip("the scheduler of another process has no log")
    engine = bundle.frame("engine", 0)
    assert engine["running"].tolist() == [batch["running"] for batch in batches]
    assert engine["waiting"].tolist() == [batch["waiting"] for batch in batches]
    assert engine["free_blocks"].tolist() == [batch["free"] for batch in batches]
    assert engine["scheduled_tokens"].tolist() == [sum(b["tokens"].values()) for b in batches]
    full = engine["limit"].astype(str).to_numpy() == "kv"
    assert all(full[number] for number, batch in enumerate(batches) if batch["lost"])
    found = request_times(bundle, 0).sort_values("request")
    names = ("own", "shared", "preempted", "between")
    told = dict.fromkeys(names, 0.0)
    logged = dict.fromkeys(names, 0.0)
    for row in found[found["state"] == "whole"].itertuples():
        name = truth["order"][row.request]
        for part in names:
            told[part] += getattr(row, f"{part}_us")
        for part, us in _parts(name, batches).items():
            logged[part] += us
        got = [batch["taken"] for batch in batches if name in batch["given"]]
        assert row.last_token_ns - row.first_token_ns == pytest.approx(got[-1] - got[0], rel=0.05)
    print("PARTS", told, logged)
    whole = sum(logged.values())
    for part in names:
        # What is next to nothing is all noise.
        assert told[part] == pytest.approx(logged[part], rel=0.05, abs=0.005 * whole)


def _parts(name: str, batches: list[dict[str, Any]]) -> dict[str, float]:
    """What the log says of one request until its first token, in us."""
    parts = dict.fromkeys(("own", "shared", "preempted", "between"), 0.0)
    own = [n for n, batch in enumerate(batches) if name in batch["tokens"]]
    end, lost = batches[own[0]]["chosen"], 0
    for number in range(own[0], len(batches)):
        batch = batches[number]
        if name in batch["lost"]:
            parts["between"] += (batch["chosen"] - end) / 1e3
            end, lost = batch["chosen"], 1
        if number not in own:
            continue
        parts["preempted" if lost else "between"] += (batch["chosen"] - end) / 1e3
        took = (batch["taken"] - batch["chosen"]) / 1e3
        share = batch["tokens"][name] / sum(batch["tokens"].values())
        parts["own"] += took * share
        parts["shared"] += took * (1 - share)
        end, lost = batch["taken"], 0
        if name in batch["given"]:
            break
    return parts
