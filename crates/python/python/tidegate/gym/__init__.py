"""Gymnasium environments: ``import tidegate.gym``, then ``gymnasium.make("tidegate/Bottleneck-v0")`` or
``gymnasium.make("tidegate/ParallelPaths-v0")``."""

import gymnasium

from .bottleneck import Bottleneck, BottleneckVector
from .parallel_paths import ParallelPaths

__all__ = ["Bottleneck", "BottleneckVector", "ParallelPaths"]

gymnasium.register(id="tidegate/Bottleneck-v0", entry_point=Bottleneck, vector_entry_point=BottleneckVector)
gymnasium.register(id="tidegate/ParallelPaths-v0", entry_point=ParallelPaths)
