"""Times of a log's lines, as vLLM, FlashInfer and torch write them, and what has none."""

from __future__ import annotations

import json
from pathlib import Path

from spark_prof.traces.readers.engine_log import read_engine_log
from spark_prof.traces.readers.log_lines import parsed
from spark_prof.traces.readers.start_marks import StartMarks, second_of
from tests.rows import each_row

_NOON = (31 + 28) * 86_400 + 12 * 3600  # of 29 February, in a leap year
UP = "init engine (profile, create kv cache, warmup model) took 68.20 s"


def marks(folder: Path, text: str) -> StartMarks:
    path = folder / "serve.log"
    path.write_text(text, encoding="utf-8")
    return read_engine_log(path).starts


@each_row(
    ("line", "second"),
    [
        ("INFO 02-29 12:00:01 [core.py:1] x", _NOON + 1),
        ("(EngineCore pid=7) WARNING 02-29 12:00:02 [core.py:1] x", _NOON + 2),
        # What docker puts before a line may be of another time zone.
        ("2026-02-28T10:00:00.5Z (EngineCore pid=7) INFO 02-29 12:00:03 [a.py:1] x", _NOON + 3),
        ("2026-02-28T10:00:00.5Z Application startup complete.", None),
        ("2026-02-29 12:00:02,721 - INFO - autotuner.py:1 - flashinfer.jit: x", _NOON + 2),
        ("W0229 12:00:04.403000 1788 torch/x.py:6] x", _NOON + 4),
        ("[W0229 12:00:05.290089299 socket.cpp:207] x", _NOON + 5),
        ("INFO 13-45 12:00:01 [core.py:1] x", None),
        ("INFO 01-01 00:00:00 [log:0] a JSON record without a time", None),
        ("INFO:     Application startup complete.", None),
        ("what somebody asked on 02-29 12:00:01", None),
    ],
)
def test_a_time_is_read_where_a_program_writes_its_own(line: str, second: int | None) -> None:
    assert second_of(parsed(1, line)) == second


def test_the_first_and_last_times_are_those_of_any_line(tmp_path: Path) -> None:
    text = (
        "no time\nW0229 12:00:04.403000 17 torch/x.py:6] x\n"
        f"INFO 02-29 12:00:09 [core.py:1] {UP}\n\x1b[32mINFO\x1b[0m 02-29 12:00:20 [b.py:2] end\n"
    )
    starts = marks(tmp_path, text)
    assert (starts.first, starts.last) == (_NOON + 4, _NOON + 20)
    (mark,) = starts.marks
    assert (mark.milestone, mark.second, mark.line) == ("engine-up", _NOON + 9, 3)


def test_records_of_json_have_their_times(tmp_path: Path) -> None:
    record = {"levelname": "INFO", "message": UP, "asctime": "2026-02-29 12:00:01,123",
              "filename": "core.py", "lineno": 1}  # fmt: skip
    (mark,) = marks(tmp_path, json.dumps(record) + "\n").marks
    assert mark.second == _NOON + 1
    record["asctime"] = ""
    (mark,) = marks(tmp_path, json.dumps(record) + "\n").marks
    assert mark.second is None


def test_a_bar_states_its_time(tmp_path: Path) -> None:
    bars = (
        "DeepGEMM warmup: 100%|█| 8/8 [1:01:10<00:00]\nDeepGEMM warmup:  50%|█| 4/8 [02:00<1:0]\n"
    )
    (mark,) = marks(tmp_path, bars).marks
    assert (mark.milestone, mark.second, mark.stated_seconds) == ("deep-gemm", None, 3670)


def test_a_hostile_log_costs_no_more_than_its_lines(tmp_path: Path) -> None:
    starts = marks(tmp_path, f"INFO 02-29 12:00:09 [core.py:1] {UP}\n" * 20_000)
    assert len(starts.marks) == 5000
