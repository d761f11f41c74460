"""How fast a checkpoint can decode at most, from its configuration and its tensors' types."""

from spark_prof.analyzers.ceilings.model import Ceilings, Question
from spark_prof.analyzers.ceilings.summary import ceilings_of

__all__ = ["Ceilings", "Question", "ceilings_of"]
