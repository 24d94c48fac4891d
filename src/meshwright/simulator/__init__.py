"""Simulate one training step: timelines, collectives step by step, pictures."""

from meshwright.simulator.evaluate import Simulator, evaluate
from meshwright.simulator.timeline import Bubble, Timeline, in_flight_peaks
from meshwright.simulator.times import StageTimes
from meshwright.simulator.whatif import jittered, slow_rank, spread

__all__ = [
    "Bubble",
    "Simulator",
    "StageTimes",
    "Timeline",
    "evaluate",
    "in_flight_peaks",
    "jittered",
    "slow_rank",
    "spread",
]
