"""Disassembling what ran: real cubins, damaged ones, and tools that are missing, fail or hang."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_prof.analyzers.classify.evidence import evidence_of
from spark_prof.extras import install_command
from spark_prof.traces.assemble import assemble
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import cubins_folder, names_name, write_json
from spark_prof.traces.cuda_tools import FOLDER_VARIABLE, count_opcodes, find_tool
from spark_prof.traces.machine_code import CUBINS_FOLDER, read_machine_code, short_opcode
from spark_prof.traces.readers.cubin import read_code
from tests.support import Piece, Recorded, kernel, kineto, program, step

from .cubins import ARCHITECTURES, CUBINS, SM_90, SM_121, probes

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def tool(name: str = "nvdisasm") -> Path:
    found = find_tool(name)
    assert found is not None, install_command("sass")
    return found


def as_the_tool_says(path: Path) -> dict[str, Counter[str]]:
    """Opcodes of each function, by nvdisasm on the whole file."""
    printed = subprocess.run([tool(), "-c", path], capture_output=True, text=True, check=True)
    found: dict[str, Counter[str]] = {}
    for line in printed.stdout.splitlines():
        if title := re.match(r"\.text\.(.*):$", line):
            counts = found.setdefault(title[1], Counter())
        elif opcode := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(\S+)", line):
            counts[opcode[1].rstrip(";")] += 1
    return found


def put(folder: Path, path: Path, content: bytes | None = None) -> Path:
    content = path.read_bytes() if content is None else content
    target = folder / f"{hashlib.sha256(content).hexdigest()[:16]}.cubin"
    target.write_bytes(content)
    return target


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES[::3])
def test_the_same_opcodes_as_when_the_whole_file_is_disassembled(
    architecture: str, tmp_path: Path
) -> None:
    path = probes(architecture, tmp_path)
    codes = read_code(path)
    found = count_opcodes(tool(), codes[0].architecture, [c.instructions for c in codes], 60)
    assert {c.symbol: n for c, n in zip(codes, found, strict=True)} == as_the_tool_says(path)


def test_only_functions_that_ran_are_read(tmp_path: Path) -> None:
    code = read_machine_code({put(tmp_path, SM_90): {"mix"}, put(tmp_path, SM_121): {"scale"}})
    rows = code.rows[["function", "architecture", "suffix", "registers"]]
    assert rows.to_numpy().tolist() == [
        ["mix", "sm_90", "plain", 32],
        ["scale", "sm_121", "plain", 8],
    ]
    assert not code.lost


def test_a_second_reading_needs_no_tool(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {put(tmp_path, SM_90): None}
    first = read_machine_code(wanted)
    without_tools(monkeypatch)
    again = read_machine_code(wanted)
    assert again.rows.equals(first.rows)
    assert not again.lost
    assert [path.name for path in (cache / "spark-prof").iterdir()] == ["opcodes-1.sqlite"]


def test_a_cubin_with_the_name_of_another_gets_its_own_opcodes(tmp_path: Path) -> None:
    """The cache goes by instructions: nobody else's bundle can put something wrong into it."""
    first = put(tmp_path, SM_90)
    before = read_machine_code({first: {"mix"}}).rows["opcodes"][0]
    shutil.copy(SM_121, first)
    assert read_machine_code({first: {"mix"}}).rows["opcodes"][0] != before


@pytest.mark.parametrize("damage", ["garbage", "cut"])
def test_a_damaged_cache_is_replaced(tmp_path: Path, cache: Path, damage: str) -> None:
    wanted = {put(tmp_path, SM_90): None}
    first = read_machine_code(wanted)
    path = cache / "spark-prof" / "opcodes-1.sqlite"
    content = path.read_bytes()
    path.write_bytes(
        b"no database" * 999 if damage == "garbage" else content[: len(content) // 2]
    )  # fmt: skip
    again = read_machine_code(wanted)
    assert again.rows.equals(first.rows)
    assert not again.lost


def test_damaged_code_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    content = SM_90.read_bytes()
    mix = next(code for code in read_code(SM_90) if code.symbol == "mix").instructions
    broken = content.replace(mix, mix[:32] + b"\xff" * 32 + mix[64:])
    code = read_machine_code({put(tmp_path, SM_90, broken): None})
    assert list(code.rows["function"]) == ["_Z3addIiEvPT_S0_", "scale"]
    (line,) = code.lost
    assert "1 kernel is damaged" in line
    assert "mix" in line


def test_without_the_note_the_suffix_is_unknown(tmp_path: Path) -> None:
    for path, architecture in ((SM_90, "sm_90"), (SM_121, "sm_121")):
        content = path.read_bytes().replace(b"-arch sm_", b"-orch sm_")
        (first, *_) = read_code(put(tmp_path, path, content))
        assert (first.architecture, first.suffix) == (architecture, "")


def test_the_first_layout_has_the_architecture_in_the_lowest_byte(tmp_path: Path) -> None:
    content = bytearray(SM_90.read_bytes().replace(b"-arch sm_", b"-orch sm_"))
    content[7] = 0x33
    content[48:52] = (0x5A055A).to_bytes(4, "little")
    assert read_code(put(tmp_path, SM_90, bytes(content)))[0].architecture == "sm_90"


def test_overlapping_functions_are_refused(tmp_path: Path) -> None:
    """A small file cannot make much code: sections would share their content."""
    content = bytearray(SM_90.read_bytes())
    sections = int.from_bytes(content[40:48], "little")
    for number in range(int.from_bytes(content[60:62], "little")):
        at = sections + 64 * number
        if not content[at + 8] & 4:  # no code
            continue
        content[at + 24 : at + 40] = (0).to_bytes(8, "little") + len(content).to_bytes(8, "little")
    code = read_machine_code({put(tmp_path, SM_90, bytes(content)): None})
    assert code.rows.empty
    assert len(code.lost) == 1


def without_tools(monkeypatch: pytest.MonkeyPatch, instead: Path | None = None) -> None:
    """No tool, or only what is in that folder."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(instead or "/nonexistent"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo broken >&2; exit 3", "nvdisasm failed: broken"),
        ("kill -SEGV $$", "nvdisasm failed: exit code -11"),
        ("exec sleep 60", "was stopped after"),
        ("while :; do echo; done", "was stopped after"),
        ("while :; do echo x >&2; done", "was stopped after"),
        ("exit 0", "damaged or newer"),
        ("echo '/*ffffffffff*/ NOP ;'", "damaged or newer"),
    ],
)
def test_a_tool_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    without_tools(monkeypatch, program(tmp_path / "bin" / "nvdisasm", script).parent)
    code = read_machine_code({put(tmp_path, SM_90): None}, seconds=1.0)
    assert code.rows.empty
    (line,) = code.lost
    assert words in line


@pytest.mark.parametrize(
    ("opcode", "short"),
    [
        ("HMMA.16816.F32.BF16", "HMMA.16816.F32.BF16"), ("UTCQMMA.2CTA", "UTCQMMA.2CTA"),
        ("F2FP.F16.E4M3.UNPACK_B", "F2FP.F16.E4M3.UNPACK_B"), ("HFMA2.MMA", "HFMA2.MMA"),
        ("IMAD.MOV.U32", "IMAD"), ("LDG.E.128.CONSTANT", "LDG.128"), ("LDG.E", "LDG"),
        ("LDG.E.U8", "LDG.U8"), ("LDG.E.ENL2.256", "LDG.256"), ("STL.64", "STL.64"),
        ("LDGSTS.E.BYPASS.128", "LDGSTS"), ("CALL.ABS.NOINC", "CALL.ABS.NOINC"), ("NOP", "NOP"),
    ],
)  # fmt: skip
def test_what_is_kept_of_an_opcode(opcode: str, short: str) -> None:
    assert short_opcode(opcode) == short


def recorded(folder: Path) -> Bundle:
    """A bundle with a step of one kernel, `mix`, which is in two cubins; the registers decide."""
    events = kernel("mix", 100, 200, 1, 50, **{"registers per thread": 32})
    pieces = Recorded({0: [Piece([step(0, 0, 900)], (), kineto(*events))]}).write(folder)
    cubins_folder(pieces).mkdir()
    for number, path in enumerate(CUBINS):
        shutil.copy(path, cubins_folder(pieces) / f"42-{number}.cubin")
    write_json(pieces, names_name("rank0", 0), {"functions": {"mix": "mix"}})
    return assemble(folder, state="complete")


def test_a_bundle_holds_what_its_kernels_are_made_of(tmp_path: Path) -> None:
    bundle = recorded(tmp_path / "b")
    (row,) = bundle.frame("functions", 0).itertuples()
    assert (row.function, row.name, row.architecture, row.registers) == ("mix", "mix", "sm_90", 32)
    assert bundle.meta.lost == ()
    assert evidence_of(bundle, 0).label("mix").evidence == "sass"


def test_a_bundle_keeps_its_evidence_without_cubins_and_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = recorded(tmp_path / "b")
    shutil.rmtree(bundle.path / CUBINS_FOLDER)
    without_tools(monkeypatch)
    evidence = evidence_of(Bundle(bundle.path), 0)
    assert (evidence.label("mix").evidence, evidence.lost) == ("sass", ())


def test_a_bundle_that_was_recorded_without_the_tool_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        without_tools(patch)
        bundle = recorded(tmp_path / "b")
        assert bundle.meta.lost == ()
        assert bundle.frame("functions", 0).empty
        evidence = evidence_of(bundle, 0)
        assert evidence.label("mix").evidence != "sass"
        (line,) = evidence.lost
        assert install_command("sass") in line
    assert evidence_of(bundle, 0).label("mix").evidence == "sass"


def test_hostile_rows_of_a_bundle(tmp_path: Path) -> None:
    """A name that leads out of the bundle is not followed; nonsense opcodes say nothing."""
    bundle = recorded(tmp_path / "b")
    for table, column, value in (("cubins", "hash", "../../secret"), ("functions", "opcodes", "x")):
        path = bundle.path / f"{table}-rank0.parquet"
        rows = pq.read_table(path)
        index = rows.schema.names.index(column)
        changed = pa.array([value] * len(rows), pa.string())
        pq.write_table(rows.set_column(index, rows.schema.field(column), changed), path)
    evidence = evidence_of(Bundle(bundle.path), 0)
    assert evidence.label("mix").evidence != "sass"
    assert evidence.lost == ()
