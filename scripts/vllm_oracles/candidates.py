"""The kernels that one vLLM tries for one format on one GPU, in its order, and whether they run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from scripts.vllm_oracles.deployment import (
    KEYS,
    MOE,
    QUANTIZATION,
    interpreter,
    is_package_test,
    log_name,
    moe_config,
)
from scripts.vllm_oracles.interpreter import Interpreter
from scripts.vllm_oracles.source_tree import SourceTree
from scripts.vllm_oracles.values import (
    Atom,
    Builtin,
    CannotTellError,
    Class,
    Instance,
    Member,
    Preset,
    RaisedError,
    Unknown,
)

_PATHS = 96  # ways through one test that are followed
_CUDA = "vllm.platforms.cuda"
_LINEAR = "vllm.model_executor.kernels.linear"


@dataclass(frozen=True)
class Format:
    """A format of weights, and the function of the sources that chooses its kernels."""

    option: str
    stored: str
    module: str
    select: str
    weight: str = ""  # names of quant_utils.py
    activations: str = ""
    activation: str = "SILU"  # the experts' activation function: gpt-oss has another


FORMATS: tuple[Format, ...] = (
    Format("--moe-backend", "nvfp4", f"{MOE}.oracle.nvfp4", "select_nvfp4_moe_backend",
           "kNvfp4Static", "kNvfp4Dynamic"),
    Format("--moe-backend", "nvfp4_w4a16", f"{MOE}.oracle.nvfp4", "select_nvfp4_moe_backend",
           "kNvfp4Static"),
    Format("--moe-backend", "mxfp4", f"{MOE}.oracle.mxfp4", "select_mxfp4_moe_backend",
           activation="SWIGLUOAI"),
    Format("--moe-backend", "mxfp8", f"{MOE}.oracle.mxfp8", "select_mxfp8_moe_backend"),
    Format("--moe-backend", "fp8", f"{MOE}.oracle.fp8", "select_fp8_moe_backend",
           "kFp8StaticTensorSym", "kFp8StaticTensorSym"),
    Format("--moe-backend", "fp8_channel", f"{MOE}.oracle.fp8", "select_fp8_moe_backend",
           "kFp8StaticChannelSym", "kFp8DynamicTokenSym"),
    Format("--moe-backend", "fp8_block", f"{MOE}.oracle.fp8", "select_fp8_moe_backend",
           "kFp8Static128BlockSym", "kFp8Dynamic128Sym"),
    Format("--moe-backend", "int4", f"{MOE}.oracle.int_wna16", "select_wna16_moe_backend",
           "kInt4Static"),
    Format("--moe-backend", "bf16", f"{MOE}.oracle.unquantized",
           "select_unquantized_moe_backend"),
    Format("--linear-backend", "nvfp4", _LINEAR, "init_nvfp4_linear_kernel"),
    Format("--linear-backend", "nvfp4_w4a16", _LINEAR, "init_nvfp4_linear_kernel"),
    Format("--linear-backend", "mxfp4", _LINEAR, "init_mxfp4_linear_kernel"),
    Format("--linear-backend", "mxfp4_w4a4", _LINEAR, "init_mxfp4_linear_kernel",
           activations="kMxfp4Dynamic"),
    Format("--linear-backend", "mxfp8", _LINEAR, "init_mxfp8_linear_kernel"),
    Format("--linear-backend", "fp8", _LINEAR, "init_fp8_linear_kernel",
           "kFp8StaticTensorSym", "kFp8StaticTensorSym"),
    Format("--linear-backend", "fp8_channel", _LINEAR, "init_fp8_linear_kernel",
           "kFp8StaticTokenSym", "kFp8DynamicTokenSym"),
    Format("--linear-backend", "fp8_block", _LINEAR, "init_fp8_linear_kernel",
           "kFp8Static128BlockSym", "kFp8Dynamic128Sym"),
    Format("--linear-backend", "int4", _LINEAR, "choose_mp_linear_kernel"),
    Format("--attention-backend", "plain", _CUDA, "_get_backend_priorities"),
    Format("--attention-backend", "sinks", _CUDA, "_get_backend_priorities"),
    Format("--attention-backend", "mla", _CUDA, "_get_backend_priorities"),
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """Whether a kernel class runs: `yes`, `no`, `needs` packages, or `unknown`."""

    runs: str
    needs: tuple[str, ...] = ()
    reason: str = ""


@dataclass
class Tried:
    """One class that the sources try, with the backend that it stands for."""

    backend: str  # the member of the enumeration; of linear layers the class
    kernel: Class
    arguments: tuple[Any, ...] = ()
    supported: tuple[Any, ...] = ()


def order(
    tree: SourceTree,
    form: Format,
    capability: int,
    environment: dict[str, str] | None = None,
    option_value: str = "auto",
    model: str = "",
) -> tuple[list[Tried], Interpreter]:
    """What the sources try for a format on a GPU, in their order, where nothing runs.

    `option_value` is the value that the person gave the option, `model` one of `MODELS`.

    Every test of a kernel class is answered with no, so that the search goes through to its end.
    """
    tried: list[Tried] = []

    def recording(_run: Interpreter, value: Any, name: str) -> Any:
        if not isinstance(value, Class):
            return NotImplemented
        if form.option == "--moe-backend" and name == "is_supported_config":

            def test(of: Class, *rest: Any, **_named: Any) -> Any:
                tried.append(Tried("", of, rest))
                return (False, "recorded")

            return Builtin(test)
        return NotImplemented

    decide = (lambda text: text.startswith(model) or usual(text)) if model else usual
    run = interpreter(tree, capability, decide, environment, recording, option_value)
    if form.option == "--moe-backend":
        _follow_experts(run, form, tried, option_value, model)
    elif form.option == "--attention-backend":
        _follow_attention(run, form, tried)
    else:
        _follow_linear(run, form, tried)
    return tried, run


def usual(condition: str) -> bool:
    """What is taken for true where nobody can know: packages are there, all else is not."""
    return is_package_test(condition) and not condition.endswith(" is None")


def _key(run: Interpreter, name: str) -> Any:
    return run.name(KEYS, name) if name else None


MODELS = ("swiglu_limit", "no_vllm_cutlass", "should_auto_disable_deep_gemm")
"""What a model or its checkpoint may have that takes backends off the list."""


def _follow_experts(
    run: Interpreter, form: Format, tried: list[Tried], backend: str, model: str
) -> None:
    select = run.name(form.module, form.select)
    weight, activations = _key(run, form.weight), _key(run, form.activations)
    named: dict[str, Any] = {
        "config": moe_config(run, form.activation, backend),
        "moe_config": moe_config(run, form.activation, backend),
        "weight_key": weight,
        "activation_key": activations,
        "allow_vllm_cutlass": model != "no_vllm_cutlass",
        "quant_config": _gptq(run),
        "may_have_zp": False,
        "may_have_bias": False,
    }
    if model == "swiglu_limit":
        for settings in (named["config"], named["moe_config"]):
            settings.facts["swiglu_limit"] = 7.0
    parameters = {
        parameter.arg for parameter in (*select.node.args.args, *select.node.args.kwonlyargs)
    }
    backends: list[tuple[int, Member]] = []
    _watch_backends(run, form, tried, backends)
    try:
        run.call(select, [], {name: value for name, value in named.items() if name in parameters})
    except RaisedError as ended:
        if ended.name not in ("NotImplementedError", "ValueError"):
            raise CannotTellError(str(ended)) from ended
    for number, member in backends:
        for candidate in tried[number:]:
            candidate.backend = member.name


def _watch_backends(
    run: Interpreter, form: Format, tried: list[Tried], backends: list[tuple[int, Member]]
) -> None:
    """Notes which backend the classes that are tried next stand for."""
    for name in ("backend_to_kernel_cls", "_mxfp8_backend_to_kernel_cls"):
        function = run.name(form.module, name)
        if isinstance(function, Unknown):
            continue

        def noted(backend: Any, function: Any = function) -> Any:
            backends.append((len(tried), backend))
            return run.call(function, [backend], {})

        run.replace(form.module, name, Builtin(noted))


def _gptq(run: Interpreter) -> Any:
    of = run.name(f"{QUANTIZATION}.auto_gptq", "AutoGPTQConfig")
    if isinstance(of, Class):
        return Instance(of, {"group_size": 128, "desc_act": False})
    return Unknown("quant_config")


def _follow_linear(run: Interpreter, form: Format, tried: list[Tried]) -> None:
    select = run.name(form.module, form.select)
    bf16 = Atom("torch.bfloat16")
    named: dict[str, Any] = {
        "use_a16": form.stored == "nvfp4_w4a16",
        "activation_quant_key": _key(run, form.activations),
        "weight_quant_key": _key(run, form.weight),
        "input_dtype": bf16,
        "out_dtype": bf16,
        "weight_shape": (4096, 4096),
        "config": _mixed(run),
    }
    parameters = {
        parameter.arg for parameter in (*select.node.args.args, *select.node.args.kwonlyargs)
    }
    run.watch = lambda owner, method, of, args: _linear_test(tried, owner, method, of, args)
    try:
        chosen = run.call(select, [], {n: v for n, v in named.items() if n in parameters})
    except RaisedError as ended:
        if ended.name != "ValueError":
            raise CannotTellError(str(ended)) from ended
    else:
        of = chosen.of if isinstance(chosen, Instance) else chosen
        tried[:] = [Tried(log_name(of), of, ())]


def _linear_test(tried: list[Tried], owner: str, method: str, of: Class, args: list[Any]) -> Any:
    """Answers the tests that the search itself makes; a test made beforehand is followed."""
    if owner not in ("kernel", "kernel_cls"):
        return NotImplemented
    if method == "get_min_capability":
        return 0
    if method not in ("is_supported", "can_implement"):
        return NotImplemented
    if not tried or tried[-1].kernel != of:
        tried.append(Tried(of.name, of, ()))
    if method == "is_supported":
        tried[-1].supported = tuple(args)
        return (True, None)
    tried[-1].arguments = tuple(args)
    return (False, "recorded")


def _mixed(run: Interpreter) -> Preset:
    kind = Preset("scalar_types.uint4b8", {"size_bits": 4})
    types = run.name("vllm.scalar_type", "scalar_types")
    weight = run.attribute(types, "uint4b8") if not isinstance(types, Unknown) else kind
    return Preset("layer", {"weight_type": weight, "act_type": Atom("torch.bfloat16"),
                           "group_size": 128, "zero_points": False, "has_g_idx": False,
                           "full_weight_shape": (4096, 4096),
                           "partition_weight_shape": (4096, 4096)})  # fmt: skip


def _excludes(condition: str) -> bool:
    """Whether a condition is true of a few models alone: it is then one of `MODELS`."""
    return condition.startswith(MODELS)


def device_free(runs: Iterable[Interpreter]) -> bool:
    """Whether none of these runs asked for the compute capability."""
    return not any(run.asked_device for run in runs)


def paths(
    build: Callable[[Callable[[str], bool]], Interpreter], ask: Callable[[Interpreter], Any]
) -> Iterator[tuple[dict[str, bool], Any]]:
    """Every way through a test: what was decided on it, and its answer."""
    waiting: list[dict[str, bool]] = [{}]
    for _ in range(_PATHS):
        if not waiting:
            return
        fixed = waiting.pop()
        run = build(lambda text, fixed=fixed: fixed.get(text, not _excludes(text)))  # type: ignore[misc]
        answer = ask(run)
        yield run.decided, answer
        new = [text for text in run.decided if text not in fixed and not _excludes(text)]
        for number, text in enumerate(new):
            waiting.append(
                {
                    **fixed,
                    **{condition: run.decided[condition] for condition in new[:number]},
                    text: False,
                }
            )
    raise CannotTellError("too many ways")


def verdict(tree: SourceTree, form: Format, capability: int, tried: Tried) -> tuple[Verdict, bool]:
    """Whether one class runs weights on a GPU by its own tests, and if that holds on all GPUs.

    Packages that it needs are named. Where anything else decides that a running engine alone
    knows, as shapes do, the answer is `unknown` with those conditions.
    """
    runs: list[Interpreter] = []

    def build(decide: Callable[[str], bool]) -> Interpreter:
        runs.append(interpreter(tree, capability, decide))
        return runs[-1]

    answer = _verdict(form, tried, build)
    return answer, device_free(runs)


def _verdict(
    form: Format, tried: Tried, build: Callable[[Callable[[str], bool]], Interpreter]
) -> Verdict:
    try:
        answers = [
            (decided, _answer(answer))
            for decided, answer in paths(build, lambda run: _test_answer(run, form, tried))
        ]
    except (CannotTellError, RecursionError) as error:
        return Verdict("unknown", reason=str(error))
    refused = [reason for _, (yes, reason) in answers if not yes]
    if not any(yes for _, (yes, _) in answers):
        return Verdict("no", reason=refused[0] if refused else "")
    if not refused:
        return Verdict("yes")
    # The fewest conditions that make it run, packages before all else.
    ways = sorted(
        ({text if value else f"not {text}" for text, value in decided.items()} for decided, (yes, _)
         in answers if yes),
        key=lambda way: (sum(not is_package_test(text) for text in way), len(way), sorted(way)),
    )  # fmt: skip
    best = _that_matter(ways[0], answers)
    only_packages = all(is_package_test(condition) for condition in best)
    return Verdict("needs" if only_packages else "unknown", tuple(sorted(best)), refused[0])


def _that_matter(
    way: set[str], answers: list[tuple[dict[str, bool], tuple[bool, str]]]
) -> set[str]:
    """The conditions of a way without which the class is refused somewhere."""
    needed = set()
    for condition in way:
        text, expected = (
            (condition[4:], False) if condition.startswith("not ") else (condition, True)
        )
        other_conditions = {
            o.removeprefix("not "): not o.startswith("not ") for o in way if o != condition
        }
        for decided, (yes, _) in answers:
            agrees = all(
                decided.get(name, value) == value for name, value in other_conditions.items()
            )
            if not yes and agrees and decided.get(text, expected) != expected:
                needed.add(condition)
    return needed


def _answer(answer: Any) -> tuple[bool, str]:
    if isinstance(answer, tuple):
        yes, reason = answer[0], answer[1] if len(answer) > 1 else ""
    else:
        yes, reason = answer, ""
    if not isinstance(yes, bool):
        raise CannotTellError(f"an answer that is {log_name(yes)}")
    return yes, reason if isinstance(reason, str) else ""


def _test_answer(run: Interpreter, form: Format, tried: Tried) -> Any:
    of = tried.kernel
    try:
        if form.option == "--moe-backend":
            test = run.attribute(of, "is_supported_config")
            config = moe_config(run, form.activation)
            answer = run.call(test, [of, config, *tried.arguments[1:]], {})
        elif form.option == "--linear-backend":
            answer = _linear_answer(run, tried)
        else:
            answer = _attention_answer(run, form, tried)
    except RaisedError as error:
        return (False, error.text or error.name)
    return _decided(run, answer)


def _decided(run: Interpreter, answer: Any) -> Any:
    if isinstance(answer, tuple):
        return (run.truth(answer[0]), *answer[1:])
    return run.truth(answer)


def _linear_answer(run: Interpreter, tried: Tried) -> Any:
    of = tried.kernel
    least = run.attribute(of, "get_min_capability")
    if not isinstance(least, Unknown):
        platform = run.name("vllm.platforms", "current_platform")
        capability = run.call(run.attribute(platform, "get_device_capability"), [], {})
        if run.call(least, [], {}) > run.call(run.attribute(capability, "to_int"), [], {}):
            return (False, "compute capability")
    if tried.supported:
        run.asked_device = True  # the capability is among the arguments
    supported = run.attribute(of, "is_supported")
    if not isinstance(supported, Unknown):
        answer = _decided(run, run.call(supported, list(tried.supported), {}))
        if not answer[0]:
            return answer
    if not tried.arguments:
        return (True, None)
    return run.call(run.attribute(of, "can_implement"), list(tried.arguments), {})


def _follow_attention(run: Interpreter, form: Format, tried: list[Tried]) -> None:
    function = run.name(form.module, form.select)
    platform = run.name("vllm.platforms", "current_platform")
    capability = run.call(run.attribute(platform, "get_device_capability"), [], {})
    named = {"use_mla": form.stored == "mla", "device_capability": capability}
    for member in run.call(function, [], named):
        of = _class_at(run, member.value)
        if of is not None:
            tried.append(Tried(member.name, of, (capability,)))


def _class_at(run: Interpreter, path: str | None) -> Class | None:
    module, _, name = (path or "").rpartition(".")
    value = run.name(module, name) if module else None
    return value if isinstance(value, Class) else None


def _attention_answer(run: Interpreter, form: Format, tried: Tried) -> Any:
    run.asked_device = True  # the capability is among the arguments
    is_mla = form.stored == "mla"
    test = run.attribute(tried.kernel, "validate_configuration")
    named = {
        "head_size": 576 if is_mla else 64 if form.stored == "sinks" else 128,
        "dtype": Atom("torch.bfloat16"),
        "kv_cache_dtype": "auto",
        "block_size": None,
        "use_mla": is_mla,
        "has_sink": form.stored == "sinks",
        "use_sparse": False,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": tried.arguments[0],
        "attn_type": _decoder(run),
    }
    parameters = {parameter.arg for parameter in test.node.args.args}
    reasons = run.call(test, [], {n: v for n, v in named.items() if n in parameters})
    return (not reasons, "; ".join(map(str, reasons)))


def _decoder(run: Interpreter) -> Any:
    for module in ("vllm.v1.attention.backend", "vllm.attention.backends.abstract"):
        enumeration = run.name(module, "AttentionType")
        if isinstance(enumeration, Class):
            return run.attribute(enumeration, "DECODER")
    return "decoder"


def attention_members(tree: SourceTree) -> list[str]:
    """Every member of the enumeration of attention backends."""
    run = interpreter(tree, 90, usual)
    of = run.name("vllm.v1.attention.backends.registry", "AttentionBackendEnum")
    return [member.name for member in run.members(of)]


def values(tree: SourceTree, option: str) -> tuple[str, ...]:
    """The values of an option, from the Literal of vllm/config/kernel.py."""
    name = {"--moe-backend": "MoEBackend", "--linear-backend": "LinearBackend"}[option]
    statement = tree.bindings("vllm.config.kernel").get(name)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
        return ()
    constants = [node.value for node in ast.walk(statement.value) if isinstance(node, ast.Constant)]
    return tuple(
        constant for constant in constants if isinstance(constant, str) and constant != "auto"
    )
