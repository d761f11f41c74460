"""What a recorded process says about itself."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from spark_prof.profiler.process import Process
from spark_prof.profiler.settings import Settings
from spark_prof.traces.chunks import facts_name, pieces_folder


def test_who_it_is_and_which_clock_it_reads(tmp_path: Path) -> None:
    settings = Settings(str(tmp_path), run="5f")
    for name, rank in (("rank3", 3), ("engine0", 0)):
        Process(settings, name, rank).write_facts({"vllm": "0.32.0"})
    read = [
        json.loads((pieces_folder(tmp_path) / facts_name(name)).read_text())
        for name in ("rank3", "engine0")
    ]
    assert [(f["process"], f["rank"], f["run"]) for f in read] == [
        ("rank3", 3, "5f"), ("engine0", 0, "5f"),
    ]  # fmt: skip
    assert {(f["pid"], f["host"]) for f in read} == {(os.getpid(), socket.gethostname())}
    assert read[0]["boot"] == read[1]["boot"] != ""
    assert read[0]["vllm"] == "0.32.0"
