"""The generated table of backends: cells that were read by hand, and what rules make of it."""

from __future__ import annotations

import itertools

from spark_prof.ab.sides import BACKENDS
from spark_prof.analyzers.findings.other_backends import choice_of_row
from spark_prof.rules.backend_order import (
    JUDGED,
    NEWEST,
    OLDEST,
    backends_for,
    order_of,
    orders,
)
from spark_prof.rules.environment import Version
from spark_prof.rules.tune_candidates import FOREIGN
from tests.rows import each_row

MOE, LINEAR, ATTENTION = "--moe-backend", "--linear-backend", "--attention-backend"
_FOREIGN = {value for names in FOREIGN for value in names.split()}

CELLS: tuple[tuple[str, str, float, Version, str], ...] = (
    (MOE, "nvfp4", 9.0, (0, 33), "humming marlin"),
    (MOE, "nvfp4", 9.0, (0, 32), "humming marlin"),
    (MOE, "nvfp4", 9.0, (0, 31), "marlin humming"),
    (MOE, "nvfp4", 9.0, (0, 28), "marlin humming"),
    (MOE, "nvfp4", 9.0, (0, 24), "marlin"),
    (MOE, "nvfp4", 12.1, (0, 33),
     "flashinfer_cutlass cutlass marlin humming flashinfer_b12x b12x"),
    (MOE, "nvfp4", 10.0, (0, 33),
     "flashinfer_trtllm flashinfer_cutedsl flashinfer_cutlass cutlass marlin humming"),
    (MOE, "mxfp4", 12.1, (0, 33), "marlin triton humming"),
    (MOE, "mxfp4", 12.1, (0, 26), "marlin humming"),
    (MOE, "mxfp4", 9.0, (0, 33), "triton flashinfer_cutlass humming marlin"),
    (MOE, "mxfp4", 9.0, (0, 26), "triton flashinfer_cutlass marlin humming"),
    (MOE, "bf16", 9.0, (0, 33), "triton flashinfer_cutlass"),
    (MOE, "bf16", 12.1, (0, 33), "flashinfer_cutlass triton"),
    (LINEAR, "nvfp4", 12.1, (0, 33),
     "flashinfer_cutlass flashinfer_b12x cutlass flashinfer_cutedsl marlin b12x humming"),
    (LINEAR, "nvfp4", 12.1, (0, 26), "flashinfer_cutlass cutlass marlin humming"),
    (LINEAR, "nvfp4", 9.0, (0, 33), "humming marlin"),
    (LINEAR, "int4", 9.0, (0, 26), "machete marlin conch triton humming"),
    (LINEAR, "fp8", 9.0, (0, 33), "cutlass torch humming marlin"),
    (LINEAR, "fp8", 9.0, (0, 26), "cutlass humming"),
    (ATTENTION, "plain", 12.1, (0, 33), "FLASH_ATTN FLASHINFER TRITON_ATTN FLEX_ATTENTION"),
    (ATTENTION, "plain", 10.0, (0, 33), "FLASHINFER FLASH_ATTN TRITON_ATTN FLEX_ATTENTION"),
    (ATTENTION, "sinks", 9.0, (0, 26), "FLASH_ATTN TRITON_ATTN"),
    (ATTENTION, "sinks", 12.1, (0, 33), "FLASHINFER TRITON_ATTN"),
    (ATTENTION, "sinks", 12.1, (0, 26), "TRITON_ATTN"),
    (ATTENTION, "mla", 9.0, (0, 33), "FLASH_ATTN_MLA FLASHMLA TRITON_MLA"),
    (ATTENTION, "mla", 12.1, (0, 33), "TRITON_MLA"),
)  # fmt: skip
"""Option, format, compute capability, version, and the values that run, in order: each was read in
the sources of that version."""


@each_row(("option", "stored", "capability", "vllm", "values"), CELLS)
def test_a_cell_is_as_it_was_read_by_hand(
    option: str, stored: str, capability: float, vllm: Version, values: str
) -> None:
    rows = backends_for(option, stored, capability, vllm)
    assert [row.value for row in rows if row.value not in _FOREIGN] == values.split()


def test_fp4_products_need_a_gpu_that_has_them() -> None:
    for capability in (7.5, 8.0, 8.6, 8.9, 9.0):
        for option in (MOE, LINEAR):
            for minor in range(OLDEST[1], NEWEST[1] + 1):
                rows = backends_for(option, "nvfp4", capability, (0, minor))
                assert {row.value for row in rows} - _FOREIGN <= {"marlin", "humming"}


def test_what_is_not_known_is_not_proposed() -> None:
    assert backends_for(MOE, "nvfp4", None, NEWEST) == ()
    assert backends_for(MOE, "", 9.0, NEWEST) == ()
    assert backends_for(MOE, "nvfp4", 9.0, (0, 23)) == ()
    assert backends_for(MOE, "nvfp4", 9.0, (0, NEWEST[1] + 1)) == ()
    assert backends_for(MOE, "nvfp4", 6.1, NEWEST) == ()


def test_b12x_is_no_part_of_vllm_and_never_taken_by_itself() -> None:
    rows = {row.value: row for row in backends_for(MOE, "nvfp4", 12.1, (0, 33))}
    assert (rows["b12x"].packages, rows["b12x"].by_itself) == (("b12x",), False)
    assert (rows["flashinfer_b12x"].packages, rows["flashinfer_b12x"].by_itself) == ((), False)
    assert rows["humming"].by_itself
    assert not rows["humming"].packages


def test_the_whole_list_of_candidates_is_that_of_the_log() -> None:
    """As vLLM writes it: also those that do not run here."""
    order = order_of(MOE, "nvfp4", 12.1, (0, 26))
    assert order is not None
    assert [name for name, _ in order.tries] == [
        "FLASHINFER_TRTLLM", "FLASHINFER_CUTEDSL", "FLASHINFER_CUTEDSL_BATCHED",
        "FLASHINFER_CUTLASS", "VLLM_CUTLASS", "MARLIN", "HUMMING", "EMULATION",
    ]  # fmt: skip
    gone = {(name, value) for name, value, _ in order.takes_off}
    assert ("swiglu_limit", "") in gone
    assert ("VLLM_TEST_FORCE_FP8_MARLIN", "1") in gone
    later = order_of(MOE, "nvfp4", 12.1, (0, 33))
    assert later is not None
    assert "VLLM_TEST_FORCE_FP8_MARLIN" not in {name for name, *_ in later.takes_off}


def test_every_version_and_gpu_is_in_one_row() -> None:
    known: dict[tuple[str, str], list[tuple[Version, Version, int]]] = {}
    for row in orders():
        for number in row.capabilities:
            known.setdefault((row.option, row.stored), []).append((row.since, row.until, number))
    for key, spans in known.items():
        for number in {number for *_, number in spans}:
            own = sorted((first, last) for first, last, n in spans if n == number)
            assert own[0][0] == OLDEST, key
            assert own[-1][1] == NEWEST, key
            ends = itertools.pairwise(own)
            assert all(last[1] + 1 == first[1] for (_, last), (first, _) in ends), key


def test_every_judgement_is_about_a_value_of_the_table() -> None:
    for option, value, stored, spans, why in JUDGED:
        assert value in BACKENDS[option], why
        rows = [row for row in orders() if (row.option, row.stored) == (option, stored)]
        told = [row for row in rows if value in {b.value for b in row.backends}]
        assert told or not spans or stored == "mxfp4_w4a4"
        for row in told:
            assert all(any(a <= n <= b for a, b in spans) for n in row.capabilities)


def test_every_backend_has_a_family() -> None:
    for row in orders():
        for backend in row.backends:
            assert choice_of_row(backend) is not None, backend
            assert row.option != ATTENTION or backend.implementation, backend
