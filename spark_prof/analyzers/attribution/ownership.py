"""What is known of each kernel's owner while it is being found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.analyzers.lookup import Integers
from spark_prof.arrays import Flags
from spark_prof.vocabulary import BASES, BASIS_CLASSES

BASIS = {name: code for code, name in enumerate(BASES)}  # the bases as numbers
PROOFS = np.array([BASIS[name] for name in BASIS_CLASSES["proven"]])
"""The bases that prove an owner, as numbers."""


@dataclass
class Ownership:
    """What is known of kernels or launches so far; arrays have one entry each."""

    component: Integers  # code, -1 for none
    layer: Integers  # decoder layer, -1 for none
    role: Integers  # number of the role in `roles`
    basis: Integers  # number of the basis
    settled: Flags  # whether component and layer are known, as far as there is a layer
    roles: tuple[str, ...]  # texts, of which the first is empty
    # For each role its module's, which has no part of it such as w13 in it; None where they are.
    of_module: Integers | None = None
    # For each kernel the role of the norm that a collective makes as well, 0 for none; None where
    # none does.
    fused: Integers | None = None
    # For each kernel the rows of the `tensors` table that hold the weights that it reads, as
    # tuples, of which the first is empty; None where no arguments tell.
    reads: pd.Categorical | None = None
