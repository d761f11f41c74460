"""600 made texts that are nobody else's business, and 30 places of a recording to put them in."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_prof.traces.bundle import Bundle, Meta
from spark_prof.traces.tables import TABLES
from tests.secret_places import secrets

USERS = (
    "alice", "bob", "jdoe", "m.mueller", "svc-vllm", "xu_wei", "okafor", "lindqvist", "tanaka",
    "pieterse", "nguyenk", "oconnor", "zielinski", "rdr4", "adm-kowalski",
)  # fmt: skip
CLIENTS = (
    "acme-secret", "novabank", "Zurichre", "helvetica-ag", "medsanta", "bluefjord", "kestrelco",
    "projekt-adler", "contoso", "initech", "umbrellacorp", "hoolixyz",
)  # fmt: skip


def private_texts(seed: int = 3) -> list[str]:
    """200 paths, hosts and names, each other than the rest."""
    draw = random.Random(seed)
    found: dict[str, None] = dict.fromkeys(user for user in USERS)
    while len(found) < 200:
        user, client = draw.choice(USERS), draw.choice(CLIENTS)
        number = draw.randint(2, 99)
        found.setdefault(draw.choice((
            f"../clients/{client}/model{number}", f"/home/{user}/{client}/qwen-{number}",
            f"~/{client}/w{number}", f"~{user}/models/{client}{number}",
            f"./{client}-{number}/gguf", f"/mnt/nfs{number}/{client}",
            f"C:\\Users\\{user}\\{client}{number}",
            f"\\\\nas{number}\\{client}\\m", f"{client}/internal-model-{number}",
            f"gpu{number}.{client}.example".lower(), f"node{number}.corp.internal",
            f"GPU{number}.{client.upper()}.EXAMPLE.COM", f"spark-{number:04x}", f"dgx{number}",
            f"{client}-gpu-{number}", f"10.{number}.3.{draw.randint(2, 250)}",
            f"fe80::{number}:1ff:fe23",
            f"{user}@{client}.example".lower(), f"https://git.{client}.example/x{number}".lower(),
            f"{client}_{number}_prod", f"{user}-{client}", f"registry.{client}.io:5000/m:{number}",
            f"de:ad:be:ef:{number:02d}:01",
        )))  # fmt: skip
    return list(found)[:200]


def all_private() -> list[str]:
    """The 400 secrets and the 200 others."""
    return [*(secret.text for secret in secrets()), *private_texts()]


Change = Callable[[Meta, Sequence[str]], Meta]


def _facts(meta: Meta, **found: Any) -> Meta:
    return replace(meta, facts={"rank0": {**meta.facts["rank0"], **found}})


def _command(*words: str) -> Change:
    """Each text in these words, where § stands for it."""

    def change(meta: Meta, texts: Sequence[str]) -> Meta:
        more = [word.replace("§", text) for text in texts for word in words]
        return replace(meta, command=("vllm", "serve", "m", *more))

    return change


def _of_rank(key: str, make: Callable[[Sequence[str]], Any]) -> Change:
    return lambda meta, texts: _facts(meta, **{key: make(texts)})


def _environment(name: str) -> Change:
    return _of_rank("environment", lambda texts: {f"{name}_{i}": t for i, t in enumerate(texts)})


def _processes(key: str) -> Change:
    return lambda meta, texts: replace(
        meta, facts={f"rank{i}": {**meta.facts["rank0"], key: t} for i, t in enumerate(texts)}
    )


META_PLACES: dict[str, Change] = {
    "a host": _command("--host", "§"),
    "an address": _command("--master-addr=§"),
    "a user": _command("--user", "§"),
    "an unknown option": _command("-k", "§"),
    "an unknown long option": _command("--ca=§", "--acme-mode", "§"),
    "a mount and a name": _command("-v", "§:/models", "--name", "§"),
    "a variable of docker": _command("-e", "VLLM_X=§", "--env=NCCL_HOSTID=§", "-eA=§"),
    "a word": _command("§"),
    "a script": _command("-c", "cd '§'; X='§' vllm serve \"§\" --port 1"),
    "a model and a JSON": _command("--tokenizer", "§", "--hf-overrides", '{"x": "§"}'),
    "VLLM_USERNAME": _environment("VLLM_USERNAME"),
    "a variable": _environment("VLLM_CACHE_ROOT"),
    "another variable": _environment("USER"),
    "the host of a process": _processes("host"),
    "the model of a process": _processes("model"),
    "a chat template": _of_rank(
        "model_config",
        lambda texts: {"chat_template": "{% if x %}" + "\n".join(texts) + "{% endif %}"},
    ),
    "texts of the model": _of_rank("model_config", lambda texts: {"note": list(texts)}),
    "keys of the model": _of_rank("model_config", lambda texts: dict.fromkeys(texts, 1)),
    "a configuration": _of_rank(
        "engine_config",
        lambda texts: {"load_config": {f"x_{i}": f"L(a='{t}', b=2)" for i, t in enumerate(texts)}},
    ),
    "the GPU": _of_rank("gpu", lambda texts: {"name": [f"NVIDIA GB10 {t}" for t in texts]}),
    "settings": lambda meta, texts: replace(meta, settings={"bundle": list(texts)}),
    "what was lost": lambda meta, texts: replace(
        meta, lost=tuple(f"could not read {t}: it is missing" for t in texts)
    ),
}
TABLE_PLACES: dict[str, tuple[str, str, str]] = {
    "log": ("log", "message", "Using 'MARLIN' NvFp4 MoE backend out of § for it"),
    "kernels": ("kernels", "name", "void §_kernel<float>(int)"),
    "calls": ("host", "name", "§"),
    "modules": ("modules", "path", "model.layers.§.mlp"),
    "types": ("layers", "type", "§"),
    "tensors": ("tensors", "name", "§"),
    "ranges": ("markers", "name", "step of §"),
    "stacks": ("stacks", "stack", "vllm/v1/core/sched/scheduler.py:Scheduler.§"),
    "files of stacks": ("stacks", "stack", "vllm/§.py:f"),
    "threads": ("threads", "name", "§"),
    "notes of a load test": ("clients", "notes", "of §"),
}


def bundle_with(folder: Path, place: str, texts: Sequence[str]) -> Bundle:
    """A small recording with these texts in one place of it."""
    facts = {"vllm": "0.26.0", "model": "openai/gpt-oss-20b", "gpu": {"name": "NVIDIA GB10"}}
    meta = Meta(
        1, "0", "complete", ("vllm", "serve", "m"), "2026-11-21", "cupti", {}, {"rank0": facts}
    )
    folder.mkdir(parents=True)
    rows = {"steps-rank0.parquet": 0}
    pq.write_table(TABLES["steps"].schema.empty_table(), folder / "steps-rank0.parquet")
    if place in TABLE_PLACES:
        table, column, form = TABLE_PLACES[place]
        schema = TABLES[table].schema
        values = [form.replace("§", text) for text in texts]
        columns = [
            pa.array(values if field.name == column else [_nothing(field.type)] * len(values))
            for field in schema
        ]
        made = pa.table(
            [c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
        )
        pq.write_table(made, folder / f"{table}-rank0.parquet")
        rows[f"{table}-rank0.parquet"] = len(values)
    else:
        meta = META_PLACES[place](meta, texts)
    # Not by Meta.write, which hides secrets: an older spark-prof may have left some.
    replace(meta, tables=rows).write(folder)
    return Bundle(folder)


def _nothing(kind: pa.DataType) -> Any:
    text = pa.types.is_string(kind) or pa.types.is_dictionary(kind)
    return "" if text else (False if pa.types.is_boolean(kind) else 0)
