"""What is known of GPUs: bandwidth, arithmetic, sizes and limits, each figure with its source."""

from spark_prof.hardware.gpus import GPUS, Figure, Gpu, find_gpu, gpu_called
from spark_prof.hardware.multiprocessors import SM_LIMITS, SmLimits

__all__ = ["GPUS", "SM_LIMITS", "Figure", "Gpu", "SmLimits", "find_gpu", "gpu_called"]
