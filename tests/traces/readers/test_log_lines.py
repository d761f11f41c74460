"""A line in its parts, whatever wrote it and whatever stands before it."""

from __future__ import annotations

import json

from spark_prof.traces.readers.log_lines import log_lines, parsed
from tests.rows import each_row


@each_row(
    ("line", "process", "level", "body"),
    [
        ("(EngineCore_DP0 pid=7) WARNING 06-01 21:40:20 [a.py:1] Oh", "EngineCore_DP0", "WARNING",
         "Oh"),
        ("vllm-1  | (Worker_TP1 pid=7) ERROR 06-01 21:40:20 [a.py:1] Oh", "Worker_TP1", "ERROR",
         "Oh"),
        ("INFO 06-01 21:40:20 [v1/engine/core.py:1] Oh", "", "INFO", "Oh"),
        ("(RayWorkerWrapper pid=9, ip=10.0.0.2) WARNING 06-01 21:40:20 [a.py:1] Oh",
         "RayWorkerWrapper", "WARNING", "Oh"),
        ("2026-11-28T10:58:01.123Z ERROR 06-01 21:40:20 [a.py:1] Oh", "", "ERROR", "Oh"),
        ("Nov 28 10:58:01 spark-1 vllm[812]: (APIServer pid=1) ERROR:    Oh", "APIServer", "ERROR",
         "Oh"),
        ("2026-11-28 10:00:01,123 - WARNING - autotuner.py:496 - flashinfer.jit: Oh", "", "WARNING",
         "autotuner.py:496 - flashinfer.jit: Oh"),
        ("[2026-06-08 10:00:01 TP0] WARNING server_args.py:1: Oh", "", "WARNING",
         "server_args.py:1: Oh"),
        ("(EngineCore pid=7) /x/envs.py:2033: FutureWarning: Oh", "EngineCore", "WARNING",
         "/x/envs.py:2033: FutureWarning: Oh"),
        ("[rank0]:[W1128 20:22:44.123456789 P.cpp:1524] Warning: Oh", "", "WARNING",
         ".123456789 P.cpp:1524] Warning: Oh"),
        ("[rank0]: RuntimeError: Oh", "", "", "RuntimeError: Oh"),
        ("(EngineCore pid=7) RuntimeError: Oh", "EngineCore", "", "RuntimeError: Oh"),
        ("a sentence about an ERROR", "", "", "a sentence about an ERROR"),
        ("", "", "", ""),
    ],
)  # fmt: skip
def test_the_parts_of_a_line(line: str, process: str, level: str, body: str) -> None:
    found = parsed(1, line)
    assert (found.process, found.level, found.body) == (process, level, body)


@each_row(
    ("record", "texts"),
    [
        ({"asctime": "2026-06-08 10:00:01,123", "levelname": "WARNING", "name": "vllm.x",
          "processName": "EngineCore", "process": 21, "message": "one\ntwo"}, ["one", "two"]),
        ({"log": "WARNING 06-01 21:40:20 [a.py:1] one\n", "stream": "stderr"}, ["one"]),
        ({"level": "warning", "msg": "one"}, ["one"]),
    ],
)  # fmt: skip
def test_records_of_json(record: dict[str, object], texts: list[str]) -> None:
    found = list(log_lines([(3, json.dumps(record))]))
    assert [(line.number, line.level, line.body) for line in found] == [
        (3, "WARNING", text) for text in texts
    ]


@each_row("line", ['{"a": 1}', '{"message": 3}', '{"x": ' + "[" * 3000 + "}", '{"levelname"}'])
def test_other_json_stays_a_line(line: str) -> None:
    assert [found.body for found in log_lines([(1, line)])] == [line]


@each_row(
    ("line", "bodies"),
    [
        ("", [""]),
        ("one", ["one"]),
        ("one\rtwo", ["one", "two"]),
        ("\r 50 %\r100 %\rINFO 06-01 21:40:20 [a.py:1] Oh\r", [" 50 %", "100 %", "Oh"]),
        ('50 %\r{"levelname": "INFO", "message": "one"}', ["50 %", "one"]),
    ],
)
def test_what_was_drawn_over_is_a_line(line: str, bodies: list[str]) -> None:
    assert [(found.number, found.body) for found in log_lines([(4, line)])] == [
        (4, body) for body in bodies
    ]
