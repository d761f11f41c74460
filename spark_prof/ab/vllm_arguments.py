"""Reads the arguments of an engine as the vLLM command would that they are from."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

EXTENSION = "spark_prof.swaps.extension.Extension"
"""What vLLM adds to the methods of its workers."""

_SERVE_PARSERS = (
    "vllm.entrypoints.openai.cli_args",  # to 0.28
    "vllm.entrypoints.launchers.cli_args",  # to 0.32
    "vllm.entrypoints.common.cli_args",  # 0.33
)
_TOKENIZERS = ("tokenizer*", "tekken*", "vocab*", "*.tiktoken")


def engine_arguments(form: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The arguments of vllm.LLM, by the parser of the command that they are from.

    Raises:
        SystemExit: vLLM does not take them; it has said why.
        ValueError: they ask for what cannot be measured so.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    if form == "serve":
        parser = _serve_parser()(parser)
    elif form in ("latency", "throughput"):
        importlib.import_module(f"vllm.benchmarks.{form}").add_cli_args(parser)
    else:
        parser.add_argument("model_tag")
        parser = EngineArgs.add_cli_args(parser)
    options = parser.parse_args(list(arguments))
    if getattr(options, "model_tag", None):
        options.model = options.model_tag
    values = dict(vars(EngineArgs.from_cli_args(options)))
    if values.get("worker_extension_cls"):
        raise ValueError("--worker-extension-cls is what spark-prof ab needs itself; leave it out")
    if values.get("data_parallel_size", 1) > 1:
        raise ValueError("--data-parallel-size is more than one engine; leave it out")
    if values.get("speculative_config") or values.get("spec_method") or values.get("spec_model"):
        raise ValueError("a step with drafts gives no fixed number of tokens; leave them out")
    values["worker_extension_cls"] = EXTENSION
    # A prompt that is in the cache already would prefill nothing, on the second side only.
    values["enable_prefix_caching"] = False
    model = Path(str(values["model"]))
    if model.is_dir() and not any(found for name in _TOKENIZERS for found in model.glob(name)):
        values["skip_tokenizer_init"] = True
    return values


def _serve_parser() -> Any:
    for name in _SERVE_PARSERS:
        with suppress(ModuleNotFoundError):
            return importlib.import_module(name).make_arg_parser
    raise ValueError("this vLLM has no parser of 'vllm serve' that is known; give the model alone")
