"""What may be tried: of recordings, and row by row of the table."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.engine_options import set_options, with_options
from spark_prof.ab.sides import Side, parse_side
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.recorded_command import engine_words, split
from spark_prof.analyzers.summary import summarize
from spark_prof.datasets.opened import opened
from spark_prof.rules.backend_order import orders
from spark_prof.rules.tune_candidates import MOST_TOKENS, SWAPS, TRAITS, TUNABLES, Tunable
from spark_prof.tune.candidates import Allowed, _not_installed, candidates_of, table_rows
from spark_prof.tune.engine_traits import EngineTraits, MachineFacts, recorded_facts
from spark_prof.tune.slots_and_backends import packages_of
from spark_prof.tune.tune_trial import Candidate, CandidateTable, UntriedCandidate

_DATA = Path(__file__).resolve().parents[1] / "data"
_GPT = "h100-gpt-oss-20b-mxfp4-graphs"
_QWEN = "h100-qwen3-30b-a3b-nvfp4-graphs"
_CPU = "benchmarks/vllm-serve-bundle"
_NONE = Allowed()
_ALL = Allowed(requantize=True, kv_dtype=True)


@cache
def _recorded(name: str) -> tuple[Report, MachineFacts]:
    with opened(str(_DATA / name)) as bundle:
        return summarize(bundle), recorded_facts(bundle)


def _command(words: Sequence[str], prefix: tuple[str, ...] = ()) -> EngineCommand:
    served = tuple(words[2:] if tuple(words[:2]) == ("vllm", "serve") else words)
    return EngineCommand(tuple(words), prefix, sys.executable, "serve", served)


def _table(
    name: str,
    words: str = "",
    allowed: Allowed = _NONE,
    sizes: tuple[int, ...] = (1, 8),
    **changed: str,
) -> CandidateTable:
    report, facts = _recorded(name)
    own = shlex.split(words) or engine_words(split(report.run.command), report.run.model_name)
    facts = replace(facts, batch_sizes=sizes, **changed)
    return candidates_of(report, _command(own), facts, allowed)


def _words(table: CandidateTable) -> list[str]:
    return [row.words for row in table.candidates]


def _why(table: CandidateTable, words: str) -> str:
    """Why words are left out, in whatever line they stand."""
    for row in table.left_out:
        for part in row.words.split(", "):
            name, equals, values = part.rpartition("=")
            if words in (part, *(f"{name}{equals}{value}" for value in values.split("|"))):
                return row.why
    return ""


def _same(side: Side) -> object:
    return frozenset(side.swaps), frozenset(side.options), frozenset(side.environment)


def check_candidates(report: Report, facts: MachineFacts) -> None:
    """Fails where what may be tried of a recording contradicts itself or its command."""
    own = _command(engine_words(split(report.run.command), report.run.model_name))
    for allowed in (_NONE, _ALL):
        table = candidates_of(report, own, facts, allowed)
        rows = table.candidates
        sides = [parse_side(row.words) for row in rows]
        assert len({_same(side) for side in sides}) == len(rows)
        assert not [row.words for row in rows if _why(table, row.words)]
        promised = [row.expected_ms or 0.0 for row in rows]
        assert promised == sorted(promised, reverse=True)
        assert allowed == _ALL or not any(row.changes_model for row in rows)
        for side in sides:
            twice = set(set_options(own.arguments)) & set(set_options(side.options))
            assert not twice, side.name
            applied = set(set_options(with_options(own.arguments, side.options)))
            lost = set(set_options(own.arguments)) - applied
            assert {name.replace("--", "--no-", 1) for name in lost} <= applied
        for row in (*rows, *table.left_out):
            text = row.condition if isinstance(row, Candidate) else row.why
            assert text.isprintable()
            assert 0 < len(text) <= 200
        assert len({row.words for row in table.left_out}) == len(table.left_out)
        known = {finding.id for finding in report.findings}
        assert {row.finding for row in rows} <= known | {""}


def test_findings_commands_are_candidates() -> None:
    report, _ = _recorded(_GPT)
    words = {row.words: row for row in _table(_GPT, allowed=_ALL).candidates}
    told = [f for f in report.findings if f.command.startswith("spark-prof ab --b ")]
    assert told
    for finding in told:
        side = shlex.split(finding.command)[3]
        # What another finding claims is claimed once.
        assert (finding.ms_per_token is None) == bool(finding.within)
        assert (words[side].expected_ms or 0.0) >= (finding.ms_per_token or 0.0) - 1e-9
        assert words[side].changes_model is ("mxfp4" in side)


def test_what_quantizes_at_load_is_allowed_first() -> None:
    dense = "code-h100/dense-bf16"
    words = "--quantization fp8"
    assert "--allow-requantize" in _why(_table(dense), words)
    [row] = [row for row in _table(dense, allowed=_ALL).candidates if row.words == words]
    assert (row.source, row.changes_model) == ("kernels", True)


@pytest.mark.parametrize(("name", "words"), [("fp8-token", ""), ("bf16", "!"), ("nvfp4", "!")])
def test_a_layer_without_experts_is_insisted_on_unless_it_is_in_fp8(name: str, words: str) -> None:
    rows = {row.words: row for row in _table(f"code-h100/dense-{name}").candidates}
    layer = rows[f"layer=spark_prof{words}"]
    assert ("nobody measured it" in layer.condition) is bool(words)


def _reached(row: Tunable, traits: set[str], version: str = "") -> Candidate | UntriedCandidate:
    report, facts = _recorded(_GPT)
    newest = row.until if row.until < (1, 0) else (0, 33)
    vllm = version or f"0.{max(row.since[1], min(newest[1] - 1, 26))}.0"
    engine = EngineTraits(
        frozenset(traits), True, (1, 8), (1, 8) if "uncaptured" not in traits else (1,)
    )
    found, *_ = table_rows(report, replace(facts, vllm=vllm), engine, [row])
    return found


@pytest.mark.parametrize("row", TUNABLES, ids=lambda row: row.words)
def test_each_row_is_reached_by_its_example(row: Tunable) -> None:
    example = set(row.example.split())
    found = _reached(row, example)
    if row.never:
        assert isinstance(found, UntriedCandidate)
        assert found.why == row.never
    else:
        assert isinstance(found, Candidate)
        assert found.changes_model is row.narrows_cache
        parse_side(found.words)
    for trait in row.needs.split():
        missing = _reached(row, example - {trait})
        assert isinstance(missing, UntriedCandidate)
        assert missing.why == TRAITS[trait]
    for version in ("0.23.0", "nightly"):
        assert isinstance(_reached(row, example, version), UntriedCandidate)


@pytest.mark.slow
def test_traits_of_recorded_engines() -> None:
    from spark_prof.tune.engine_traits import traits_of

    names = (
        _GPT, _QWEN, _CPU, "code-h100/dense-fp8-token", "code-h100/dense-nvfp4",
        "architectures/deepseek-v3-mtp/default", "architectures/qwen3-next/default",
        "architectures/mamba2/default",
    )  # fmt: skip
    found = {name: traits_of(*_recorded(name)).present for name in names}
    assert {"gpu", "compiled", "native-norms", "v1-runner", "attention"} <= found[_GPT]
    assert "qk-norm" in found[_QWEN] - found[_GPT]
    assert {"fp8-activations", "mlp-quantizes", "eager"} <= found["code-h100/dense-fp8-token"]
    assert "mlp-quantizes" not in found["code-h100/dense-nvfp4"]  # Marlin: activations stay wide
    assert {"mla", "deepgemm", "shared-experts"} <= found["architectures/deepseek-v3-mtp/default"]
    assert "gdn" in found["architectures/qwen3-next/default"]
    assert "attention" not in found["architectures/mamba2/default"]
    assert {"cpu", "eager"} <= found[_CPU]
    assert found[_CPU].isdisjoint({"gpu", "compiled", "fp8-unit"})


def test_gpt_oss_on_an_h100() -> None:
    table = _table(_GPT)
    words = _words(table)
    assert words[0] == "layer=spark_prof,o=spark_prof,lm_head=spark_prof"
    assert {"moe=spark_prof", "--moe-backend=marlin", "VLLM_USE_V2_MODEL_RUNNER=1"} <= {*words}
    assert _why(table, "--moe-backend=triton") == "it is what runs"
    assert "not on compute capability 9.0" in _why(table, "--moe-backend=flashinfer_trtllm")
    assert "--allow-requantize" in _why(table, "lm_head=mxfp4")
    assert "--allow-kv-dtype" in _why(table, "--kv-cache-dtype=fp8")
    assert "BF16" in _why(table, "--linear-backend")
    more = set(_words(_table(_GPT, allowed=_ALL))) - {*words}
    assert {"lm_head=mxfp4", "qkv=fp8", "--kv-cache-dtype=fp8"} <= more
    assert {"layer=mxfp4,o=mxfp4,lm_head=mxfp4",
        "moe=spark_prof,router=spark_prof,qkv=mxfp4,o=mxfp4,lm_head=mxfp4"} <= more  # fmt: skip
    narrow = set(_words(_table(_QWEN, allowed=_ALL)))
    assert "layer=spark_prof,o=spark_prof,lm_head=mxfp4" in narrow  # its qkv is narrow already


def test_what_the_command_sets_is_left_to_it() -> None:
    config = (
        '{"cudagraph_capture_sizes": [1, 2], "pass_config": {"enable_qk_norm_rope_fusion": false}}'
    )
    table = _table(_QWEN, f"vllm serve m --moe-backend marlin -O2 -cc '{config}'")
    fusion = "--compilation-config.pass_config.enable_qk_norm_rope_fusion=true"
    assert _why(table, fusion).startswith("the command sets --compilation-config.pass_config")
    assert _why(table, "--cudagraph-capture-sizes 1 2 4 8").startswith("the command sets")
    assert _why(_table(_GPT, "vllm serve m --moe-backend triton"), "--moe-backend=marlin") == (
        "the command sets --moe-backend triton"
    )
    eager = _table(_CPU)
    assert _words(eager)[0] == "--no-enforce-eager"
    report, facts = _recorded(_QWEN)
    prefix = ("env", "VLLM_USE_V2_MODEL_RUNNER=0")
    table = candidates_of(report, _command(("m",), prefix), facts, _NONE)
    assert "set already" in _why(table, "VLLM_USE_V2_MODEL_RUNNER=1")


def test_a_gpu_that_nothing_was_measured_on_is_insisted() -> None:
    report, facts = _recorded(_QWEN)
    report = replace(report, gpu=replace(report.gpu, compute_capability="12.1"), findings=())
    facts = replace(facts, capability="12.1", gpu="NVIDIA GB10")
    table = candidates_of(report, _command(("m",)), facts, _NONE)
    swaps = {swap.kernel for row in table.candidates for swap in parse_side(row.words).swaps}
    assert swaps == {"spark_prof!"}
    moe = next(row for row in table.candidates if row.words == "moe=spark_prof!")
    assert moe.condition == "nothing was measured on compute capability 12.1 yet"
    assert {"--moe-backend=flashinfer_b12x", "--linear-backend=cutlass"} <= {*_words(table)}
    assert "not on compute capability 12.1" in _why(table, "--moe-backend=flashinfer_trtllm")


def test_what_no_side_can_do_is_said_once() -> None:
    assert "up to 16 tokens" in _why(_table(_GPT, sizes=(64,)), "moe=spark_prof")
    assert "moe=spark_prof" in _words(_table(_GPT, sizes=(64, 1)))
    assert "NVIDIA GPU" in _why(_table(_CPU), "moe=spark_prof")
    report, facts = _recorded(_GPT)
    without = candidates_of(report, _command(("m",)), replace(facts, flashinfer=""), _NONE)
    assert _why(without, "--moe-backend=flashinfer_cutlass") == "FlashInfer is not installed"
    assert "--moe-backend=marlin" in _words(without)
    untold = candidates_of(replace(report, modules=()), _command(("m",)), facts, _ALL)
    assert "does not tell" in _why(untold, "moe=spark_prof")
    assert "does not tell" in _why(untold, "VLLM_USE_DEEP_GEMM=0")


def test_slots_are_those_that_can_be_swapped() -> None:
    from spark_prof.kernels.operands import LARGEST_BATCH
    from spark_prof.kernels.quantize_at_load import DENSE_SLOTS
    from spark_prof.swaps.swap_settings import SLOTS

    assert MOST_TOKENS == LARGEST_BATCH
    assert {swap.slot for swap in SWAPS} == {*SLOTS} - {"layer", "norm"}
    assert {swap.slot for swap in SWAPS if swap.quantizes} == {*DENSE_SLOTS}


def test_models_of_slot_layer_have_a_form() -> None:
    pytest.importorskip("vllm")
    from vllm.model_executor.models import (
        deepseek_v2,
        glm4_moe,
        glm4_moe_lite,
        gpt_oss,
        llama,
        minimax_m2,
        mistral,
        mixtral,
        nemotron_h,
        qwen2,
        qwen2_moe,
        qwen3,
        qwen3_moe,
        qwen3_next,
    )

    from spark_prof.rules.tune_candidates import LAYER_MODELS
    from spark_prof.swaps.decoder_layer import FORMS

    layers = {"GptOssForCausalLM": gpt_oss.TransformerBlock.__name__,
        "Qwen3MoeForCausalLM": qwen3_moe.Qwen3MoeDecoderLayer.__name__,
        "LlamaForCausalLM": llama.LlamaDecoderLayer.__name__,
        "Qwen2ForCausalLM": qwen2.Qwen2DecoderLayer.__name__,
        "Qwen3ForCausalLM": qwen3.Qwen3DecoderLayer.__name__,
        "DeepseekV2ForCausalLM": deepseek_v2.DeepseekV2DecoderLayer.__name__,
        "DeepseekV3ForCausalLM": deepseek_v2.DeepseekV2DecoderLayer.__name__,
        "Glm4MoeForCausalLM": glm4_moe.Glm4MoeDecoderLayer.__name__,
        "Glm4MoeLiteForCausalLM": glm4_moe_lite.Glm4MoeLiteDecoderLayer.__name__,
        "MiniMaxM2ForCausalLM": minimax_m2.MiniMaxM2DecoderLayer.__name__,
        "MistralForCausalLM": mistral.MistralDecoderLayer.__name__,
        "MixtralForCausalLM": mixtral.MixtralDecoderLayer.__name__,
        "Qwen2MoeForCausalLM": qwen2_moe.Qwen2MoeDecoderLayer.__name__,
        # Whose module wants torchvision.
        "Qwen3_5MoeForCausalLM": "Qwen3_5DecoderLayer",
        "Qwen3_5MoeForConditionalGeneration": "Qwen3_5DecoderLayer",
        "NemotronHForCausalLM": nemotron_h.NemotronHMoEDecoderLayer.__name__,
        "Qwen3NextForCausalLM": qwen3_next.Qwen3NextDecoderLayer.__name__}  # fmt: skip
    beside = {  # of Nemotron-H, which has a class for each kind of layer
        nemotron_h.NemotronHMambaDecoderLayer.__name__,
        nemotron_h.NemotronHAttentionDecoderLayer.__name__,
        nemotron_h.NemotronHMLPDecoderLayer.__name__,
    }
    assert {layers[name] for name in LAYER_MODELS} | beside == set(FORMS)


def _elsewhere(
    name: str, capability: str, vllm: str, family: str = "Marlin", **config: str
) -> CandidateTable:
    """The candidates of a recording as if of another GPU and vLLM, whose kernels ran there."""
    report, facts = _recorded(name)
    assert report.audit is not None
    rows = tuple(
        replace(row, witnesses=tuple(replace(w, family=family) for w in row.witnesses))
        for row in report.audit.rows
    )
    report = replace(
        report,
        audit=replace(report.audit, rows=rows),
        gpu=replace(report.gpu, compute_capability=capability),
        run=replace(report.run, vllm=vllm),
    )
    facts = replace(
        facts, batch_sizes=(1,), capability=capability, vllm=vllm,
        configuration={**facts.configuration, **config}, flashinfer="0.7.2",
    )  # fmt: skip
    words = engine_words(report.run.command, report.run.model_name)
    return candidates_of(report, replace(_command(words), python="/elsewhere/python"), facts, _NONE)


@pytest.mark.parametrize(
    ("name", "capability", "vllm", "offered", "left_out"),
    [
        (_QWEN, "9.0", "0.33.0", "--moe-backend=humming --linear-backend=humming",
         "--moe-backend=b12x --linear-backend=flashinfer_b12x --moe-backend=deep_gemm"),
        (_QWEN, "9.0", "0.24.0", "", "--moe-backend=humming --moe-backend=b12x"),
        (_QWEN, "12.1", "0.33.0",
         "--moe-backend=humming --moe-backend=b12x --moe-backend=flashinfer_b12x "
         "--linear-backend=b12x --linear-backend=flashinfer_b12x", "--moe-backend=deep_gemm"),
        (_QWEN, "12.1", "0.26.0", "--moe-backend=flashinfer_b12x --moe-backend=humming",
         "--moe-backend=b12x --linear-backend=b12x --linear-backend=flashinfer_b12x"),
        (_GPT, "12.1", "0.33.0", "--moe-backend=triton --moe-backend=humming",
         "--moe-backend=b12x --moe-backend=deep_gemm --moe-backend=flashinfer_cutlass"),
        (_GPT, "12.1", "0.26.0", "", "--moe-backend=triton --moe-backend=b12x"),
    ],
)  # fmt: skip
def test_backends_are_offered_where_that_vllm_has_them(
    name: str, capability: str, vllm: str, offered: str, left_out: str
) -> None:
    table = _elsewhere(name, capability, vllm)
    words = set(_words(table))
    narrow = {"--moe-backend=flashinfer_b12x", "--moe-backend=b12x"}  # W4A4 checkpoints' alone
    assert set(offered.split()) - narrow <= words
    assert not set(left_out.split()) & words


def test_a_backend_whose_package_is_not_here_is_left_out() -> None:
    report, facts = _recorded(_QWEN)
    row = next(b for o in orders() for b in o.backends if b.packages == ("b12x",))
    facts = replace(facts, vllm="0.33.0", capability="12.1")
    assert packages_of(row.option, "b12x", facts) == ("b12x",)
    side = parse_side(f"{row.option}=b12x")
    command = _command(engine_words(report.run.command, report.run.model_name))
    assert "b12x, which is not installed here" in _not_installed(side, command, facts)
    assert _not_installed(side, replace(command, python="/another/python"), facts) == ""
    assert _not_installed(parse_side("--moe-backend=marlin"), command, facts) == ""


@pytest.mark.parametrize(
    ("variable", "capability", "vllm", "family", "ranks", "offered"),
    [
        ("VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC", "12.0", "0.33.0", "Marlin", "2", True),
        ("VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC", "12.0", "0.29.0", "Marlin", "2", False),
        ("VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC", "12.0", "0.33.0", "Marlin", "1", False),
        ("VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC", "9.0", "0.33.0", "Marlin", "2", False),
        ("VLLM_ENABLE_GEMM_RS", "10.0", "0.33.0", "Marlin", "2", False),  # of Kimi K3 alone
        ("VLLM_B12X_MOE_FP4_FORCE_A16", "12.1", "0.33.0", "b12x", "1", True),
        ("VLLM_B12X_MOE_FP4_FORCE_A16", "12.1", "0.28.0", "b12x", "1", False),
        ("VLLM_B12X_MOE_FP4_FORCE_A16", "12.1", "0.33.0", "Marlin", "1", False),
    ],
)
def test_newer_variables_are_tried_where_they_do_something(
    variable: str, capability: str, vllm: str, family: str, ranks: str, offered: bool
) -> None:
    of = {"parallel_config.tensor_parallel_size": ranks}
    words = _words(_elsewhere(_QWEN, capability, vllm, family, **of))
    assert (f"{variable}=1" in words) is offered


def test_where_a_backend_stands_in_vllms_order_is_said() -> None:
    table = _elsewhere(_QWEN, "12.1", "0.33.0")
    said = {row.words: row.condition for row in table.candidates}
    assert said["--moe-backend=cutlass"].endswith("on compute capability 12.1")
    assert said["--moe-backend=humming"].endswith("itself tries it after the one that runs")
    b12x = said["--moe-backend=b12x"]
    assert "takes it only where it is asked for; it needs b12x, which vLLM does not bring" in b12x
