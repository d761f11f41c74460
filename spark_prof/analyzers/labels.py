"""What is known about each kernel, row by row: where it was placed, and what its name says."""

from __future__ import annotations

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.classify.evidence import evidence_of
from spark_prof.analyzers.layer_consistency import with_known_layers
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.tables import TABLES
from spark_prof.vocabulary import PHASES

LABELS = ("phase", "component", "engine", "precision", "evidence", "conversion")
"""The columns that `label_kernels` adds, all of them text; empty where nothing is known."""


def label_kernels(bundle: Bundle, rank: int) -> pd.DataFrame:
    """The kernels of a rank with their labels, in order of start.

    Returns:
        The columns of the `kernels` table, in which `layer` is where the kernel was placed, or -1
        where a report knows no layer of it, and `LABELS`, as categories.
    """
    schema = TABLES["kernels"].schema.names
    placed = with_known_layers(bundle, rank, place_kernels(bundle, rank, schema))
    names = placed["name"].cat
    evidence = evidence_of(bundle, rank)
    labels = [evidence.label(str(name)) for name in names.categories]
    codes = names.codes.to_numpy()
    placed["layer"] = placed["layer"].astype(np.int32)
    placed["phase"] = _phases(bundle, rank, placed["step"])
    for column in ("engine", "precision", "evidence", "conversion"):
        words = np.array([*(getattr(label, column) or "" for label in labels), ""], object)
        placed[column] = pd.Categorical(words)[codes]
    return placed[[*schema, *LABELS]]


def _phases(bundle: Bundle, rank: int, step: pd.Series) -> pd.Categorical:
    steps = bundle.frame("steps", rank, ["step", "phase"]).drop_duplicates("step")
    words = ["", *PHASES]
    phase = pd.Categorical(steps["phase"].astype(str), words)
    codes = np.append(np.maximum(phase.codes, 0), np.int8(0))
    position = pd.Index(steps["step"]).get_indexer(pd.Index(step))
    return pd.Categorical.from_codes(codes[position], categories=pd.Index(words, dtype=object))
