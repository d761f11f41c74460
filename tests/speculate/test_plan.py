"""The command's drafter, the engines, the blocks, and the option that serves what is best."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spark_prof.ab.command import EngineCommand
from spark_prof.errors import CommandError
from spark_prof.speculate.best_k import Best, DraftCount
from spark_prof.speculate.engines import padded
from spark_prof.speculate.plan import (
    PLAIN,
    blocks_of,
    drafter_of,
    fixed_variants,
    served_config,
    served_words,
    table_of,
    variants_of,
    with_drafter,
)
from spark_prof.speculate.speculate_result import Measured, served_drafts
from spark_prof.speculate.step_cost import StepCost

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}


def command(*words: str) -> EngineCommand:
    return EngineCommand(("vllm", "serve", *words), (), "python", "serve", tuple(words))


@pytest.mark.parametrize("option", ["--speculative-config", "--speculative_config", "-sc"])
def test_the_drafter_is_read_and_replaced(option: str) -> None:
    engine = command("m", option, json.dumps(NGRAM), "--max-num-seqs", "8")
    assert drafter_of(engine) == NGRAM
    assert with_drafter(engine, None) == ("m", "--max-num-seqs", "8")
    other = {"method": "ngram", "num_speculative_tokens": 2}
    words = served_words(engine, other)
    assert words[:2] == ("vllm", "serve")
    assert json.loads(words[-1]) == other
    joined = command("m", f"{option}={json.dumps(NGRAM)}", "-tp", "2")
    assert drafter_of(joined) == NGRAM
    assert with_drafter(joined, None) == ("m", "-tp", "2")


def test_a_model_alone_is_served_by_vllm_serve() -> None:
    words = ("folder", "--speculative-config", json.dumps(NGRAM))
    engine = EngineCommand(words, (), "python", "model", words)
    assert served_words(engine, None) == ("vllm", "serve", "folder")


@pytest.mark.parametrize("text", ["{", "[1]", "3", '"a"'])
def test_what_is_no_drafter_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="--speculative-config"):
        drafter_of(command("m", "--speculative-config", text))
    with pytest.raises(CommandError, match="has no drafter"):
        drafter_of(command("m"))


def test_one_engine_has_all_numbers_where_vllm_can() -> None:
    assert [entry.drafts for entry in variants_of(NGRAM, (1, 2, 3))] == [(), (0, 1, 2, 3)]
    for config in ({"method": "suffix"}, NGRAM | {"parallel_drafting": True}):
        assert [entry.drafts for entry in variants_of(config, (1, 3))] == [(), (1,), (3,)]
    assert variants_of(NGRAM, (2,)) == fixed_variants((2,))
    assert variants_of(NGRAM, (2,))[0] == PLAIN


def test_all_numbers_have_the_same_mean_place() -> None:
    blocks = blocks_of((0, 1, 2, 3), 5)
    places: dict[int, list[int]] = {}
    for place, (drafts, steps) in enumerate(blocks):
        assert steps == 5
        places.setdefault(drafts, []).append(place)
    assert {sum(entry) for entry in places.values()} == {len(blocks) - 1}


def test_the_option_has_one_number_or_a_table() -> None:
    config = NGRAM | {
        "rejection_sample_method": "synthetic",
        "num_speculative_tokens_per_batch_size": [[1, 1, 1]],
    }
    rest = {"method": "ngram", "prompt_lookup_max": 3}
    assert served_config(config, {1: 3, 8: 3}) == rest | {"num_speculative_tokens": 3}
    assert served_config(config, {1: 3, 8: 1}) == rest | {
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [[1, 7, 3], [8, 8, 1]],
    }
    assert served_config(config, {1: 0, 8: 0}) is None
    assert served_config(config, {}) is None


@pytest.mark.parametrize(
    ("best", "rows"),
    [
        ({4: 2}, [[1, 4, 2]]),
        ({1: 3, 2: 3, 4: 0}, [[1, 3, 3], [4, 64, 0]]),
        ({1: 5, 4: 3, 16: 5}, [[1, 3, 5], [4, 15, 3], [16, 64, 5]]),
    ],
)
def test_the_table_covers_every_batch_size_once(
    best: dict[int, int], rows: list[list[int]]
) -> None:
    most = 64 if len(best) > 1 else None
    table = table_of(best, most)
    assert table == rows
    covered = [size for low, high, _ in table for size in range(low, high + 1)]
    assert covered == list(range(1, covered[-1] + 1))
    for size, drafts in best.items():
        assert next(k for low, high, k in table if low <= size <= high) == drafts


def test_the_table_of_vllm_takes_it() -> None:
    utils = pytest.importorskip("vllm.v1.spec_decode.dynamic.utils")
    rows = table_of({1: 3, 8: 1, 32: 0}, 64)
    dense = utils.build_dynamic_sd_schedule_lookup(rows, 64, 3)
    assert (dense[1], dense[7], dense[8], dense[31], dense[32], dense[64]) == (3, 3, 1, 1, 0, 0)


def test_graphs_are_padded_as_vllm_pads_them() -> None:
    sizes = (1, 2, 3, 4, 5, 8, 9, 16, 250, 256, 257)
    assert [padded(size) for size in sizes] == [1, 2, 4, 4, 8, 8, 16, 16, 256, 256, 272]


def best(requests: int, drafts: int, token_us: dict[int, float]) -> Best:
    rows = tuple(DraftCount(k, StepCost(us), None, 1.0, us) for k, us in sorted(token_us.items()))
    return Best(requests, 128, rows, drafts)


def test_no_drafts_are_not_free_where_the_drafter_is_loaded() -> None:
    bests = [best(1, 1, {0: 10.0, 1: 8.0}), best(8, 0, {0: 20.0, 1: 21.0})]
    dear = [Measured(8, 128, (), (22.0, 22.0))]
    cheap = [Measured(8, 128, (), (20.5, 20.5))]
    assert served_drafts(bests, dear, 128) == {1: 1, 8: 1}
    assert served_drafts(bests, cheap, 128) == {1: 1, 8: 0}
    assert served_drafts(bests[1:], dear, 128) == {8: 0}
    assert served_drafts(bests, dear, 4096) == {}


def test_drafts_that_may_be_no_faster_than_none_are_not_served() -> None:
    unsure = replace(best(1, 2, {0: 10.0, 1: 9.8, 2: 9.7}), rivals=(0, 1))
    sure = replace(unsure, rivals=(1,))
    assert served_drafts([unsure], [], 128) == {1: 0}
    assert served_drafts([sure], [], 128) == {1: 2}
    assert served_config(NGRAM, served_drafts([unsure], [], 128)) is None
