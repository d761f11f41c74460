"""What a shared recording holds, in lines for the person who is about to send it."""

from __future__ import annotations

import shlex

from spark_prof.exporters.shared_recording import Sent

_PLURALS = {
    "path": "paths", "host": "hosts", "user": "users", "model": "models", "url": "URLs",
    "mail": "mail addresses", "address": "network addresses", "id": "ids", "value": "values",
    "name": "names", "text": "texts", "option": "options", "secret": "texts with a secret",
}  # fmt: skip
_TEXTS = {
    "kernels": "names of kernels", "modules": "paths of modules", "layers": "layers",
    "log": "log lines",
}  # fmt: skip
_TABLES = {"markers": "NVTX ranges", "clients": "load tests", "requests": "requests"}


def shared_lines(sent: Sent) -> list[str]:
    """What goes out, what gets another name, and what is left out.

    >>> shared_lines(sent)[0]  # doctest: +SKIP
    'goes out: NVIDIA GB10, driver 580.95.05, vllm 0.33.0; model openai/gpt-oss-20b'
    """
    versions = ", ".join(sent.versions) or "no versions"
    if sent.models:
        versions += f"; model {', '.join(sent.models)}"
    texts = [f"{count:,} {_TEXTS[name]}" for name, count in sent.texts.items() if count]
    lines = [f"goes out: {versions}"]
    if sent.command:
        lines.append(f"the command goes out as: {shlex.join(sent.command)}")
    lines.append(
        f"goes out: every figure, {', '.join(texts)}" if texts else "goes out: every figure"
    )
    if sent.unknown_kernels:
        kernels_left = sent.unknown_kernel_count - len(sent.unknown_kernels)
        kernel_names = "; ".join(name[:100] for name in sent.unknown_kernels)
        lines.append(
            "kernels that no rule knows go out as: "
            f"{kernel_names}{f'; and {kernels_left:,} more' if kernels_left else ''}"
        )
    replaced = [
        f"{count:,} {_counted(kind, count)}" for kind, count in sorted(sent.replaced.items())
    ]
    lines.append(f"under other names: {', '.join(replaced) or 'nothing'}")
    left = [f"{count:,} {_left(name)}" for name, count in sent.left_out.items()]
    lines.append(f"left out: {', '.join([*left, 'machine code'])}")
    return lines


def _counted(kind: str, count: int) -> str:
    return (
        kind if count == 1 and kind not in ("url", "secret", "mail", "address") else _PLURALS[kind]
    )


def _left(name: str) -> str:
    return _TABLES.get(name, "environment variables" if name == "variables" else name)
