"""The verdict in words: the first sentence of what the doctor says."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.ceilings.schemes import bits_of
from spark_prof.analyzers.fallbacks.verdict import DoctorVerdict
from spark_prof.dashboards.units import count, shorten

_LONGEST = 500
_NAMES = {"linear": "linear layers", "moe": "experts"}
_NOT_LOOKED = {
    "everything": "Nothing is known about kernels and settings",
    "sglang": "Nothing was found, and much not looked at: of an SGLang log only its configuration, "
    "backends and errors are read",
    "start": "Nothing was found in the lines that are here, and kernels and settings were not "
    "looked "
    "at: the start of the engine is not in the log",
    "end": "Nothing was found so far: the log ends before the engine says which kernels it takes",
    "gpu": "The GPU is not known: whether a faster kernel exists was not looked at; give --gpu, "
    "such "
    "as --gpu gb10",
    "no-gpu": "No NVIDIA GPU here: its software was not looked at; for another machine: spark-prof "
    "doctor its-vllm.log --gpu gb10, or spark-prof why its-model --gpu gb10",
    "no-vllm": "No vLLM here: nothing was looked at; run this in the environment that serves",
}


def verdict_sentence(verdicts: Sequence[DoctorVerdict]) -> str:
    """The worst verdict as a sentence, and the others behind it; empty where there is none.

    "KV cache full: 55 run, 40 wait."
    """
    if not verdicts:
        return ""
    first, *rest = (_sentence(one) for one in verdicts)
    also = "; ".join(text for text in dict.fromkeys(rest) if text != first)
    return f"{first}. Also: {also}." if also else f"{first}."


def unknown_sentence(number: int) -> str:
    """How many warnings no rule knows; empty for none.

    unknown_sentence(7) == "7 warnings of this log are not known to me"
    """
    if not number:
        return ""
    return f"{count(number)} warning{'s' * (number > 1)} of this log " + (
        "are not known to me" if number > 1 else "is not known to me"
    )


def _sentence(one: DoctorVerdict) -> str:
    if one.kind in ("not-started", "died", "failed-before"):
        return _failed(one)
    if one.kind in ("weight-only", "emulated", "unquantized"):
        return _layers(one)
    if one.kind == "kv-full":
        again = f", up to {count(one.preemptions)} preempted" if one.preemptions else ""
        wait = f", {count(one.waiting)} wait" if one.waiting else ""
        return f"KV cache full: {count(one.running)} run{wait}{again}"
    if one.kind == "eager":
        return "CUDA graphs are off: the host launches every kernel"
    if one.kind == "piecewise":
        return "CUDA graphs are piecewise instead of full"
    if one.kind == "attention-forced":
        named = "Triton" if one.subject == "TRITON_ATTN" else one.subject
        return f"Attention was forced to {named} by the model's mixed head sizes"
    if one.kind == "known-issue":
        return (
            f"Known issue of this vLLM ({one.subject}): {shorten(one.what.rstrip('.'), _LONGEST)}"
        )
    if one.kind == "finding":
        return shorten(one.what, _LONGEST)
    if one.kind == "not-looked":
        return _with_unknown(_NOT_LOOKED[one.subject], one)
    return _with_unknown("Nothing to change was found", one)


def _with_unknown(text: str, one: DoctorVerdict) -> str:
    unknown = unknown_sentence(one.unknown)
    return f"{text}; {unknown}" if unknown else text


def _failed(one: DoctorVerdict) -> str:
    where = f" in {one.subject}" if one.subject else ""
    failure = shorten(one.what.rstrip(". "), _LONGEST) or "the log does not have the error"
    how = {
        "not-started": "The engine did not start",
        "died": "The engine died while it served",
        "failed-before": "A later start succeeded; an earlier engine failed",
    }[one.kind]
    return f"{how}: {failure}{where}"


def _layers(one: DoctorVerdict) -> str:
    *most, last = (_NAMES.get(name, name) for name in one.layers or (one.subject,))
    names = f"{', '.join(most)} and {last}" if most else last
    bits = bits_of(one.weights) or 16
    format_name = one.weights.upper() if bits < 16 else ""
    if one.kind == "weight-only":
        kernel = one.what or "a weight-only kernel"
        unit = "FP8" if format_name in ("FP8", "MXFP8") else "FP4"
        text = (
            f"{format_name} {names} run W{bits}A16 on {kernel} although this GPU multiplies {unit}"
        )
    elif one.kind == "emulated":
        text = f"{format_name} {names} are emulated: each step widens their weights"
    else:
        text = f"unquantized although the checkpoint quantizes them: {names}"
    text = text.strip()
    why = shorten(one.why, _LONGEST)
    if why and one.cause == "forced":
        why = f"{why} asks for it"
    return f"{text[:1].upper()}{text[1:]}" + (f": {why}" if why else "")
