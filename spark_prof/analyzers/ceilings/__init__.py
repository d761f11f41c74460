"""How fast a checkpoint can decode at most, from its configuration and its tensors' types."""

from spark_prof.analyzers.ceilings.ceiling_rows import Ceilings, Question
from spark_prof.analyzers.ceilings.checkpoint_ceilings import ceilings_of

__all__ = ["Ceilings", "Question", "ceilings_of"]
