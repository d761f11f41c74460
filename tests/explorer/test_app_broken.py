"""Every format, damaged: each page is drawn, or one readable line stands on it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.explorer.framed import DATA, framed, texts
from tests.fuzz.test_handmade import HURTFUL

_FILES = (
    "10 GiB of zeros in an event", "nested calls of Proton", "no rows", "only a magic number",
    "a Parquet table", "nothing", "a CSV that never ends its quote", "UTF-16",
)  # fmt: skip
_CPU = DATA / "benchmarks" / "vllm-serve-bundle"


@pytest.mark.slow
def test_what_would_do_harm_is_a_line_and_the_sound_one_beside_it_opens(tmp_path: Path) -> None:
    paths: list[Path] = []
    for number, what in enumerate(_FILES):
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_bytes(HURTFUL[what]())
    for name in ("meta.json", "kernels-rank0.parquet", "steps-rank0.parquet"):
        paths.append(shutil.copytree(_CPU, tmp_path / f"bundle-{name}"))
        data = (paths[-1] / name).read_bytes()
        (paths[-1] / name).write_bytes(data[: len(data) // 2])
    paths.append(tmp_path / "result.json")
    result = json.loads((DATA / "ab-cpu" / "result.json").read_text())
    paths[-1].write_text(json.dumps(dict.fromkeys(result)))
    sound = len(paths)
    paths.append(DATA / "h100-gpt-oss-20b-mxfp4-graphs")
    for place, path in enumerate(paths[:sound]):
        app = framed(paths, source=place)
        lines = [line for line in texts(app).splitlines() if path.name in line]
        assert lines, path
        assert max(map(len, lines)) < 400 + len(str(path))
        assert not app.get("plotly_chart")
    assert framed(paths, source=sound).get("plotly_chart")
    assert framed(paths, "compare", source=sound, other=0).header
