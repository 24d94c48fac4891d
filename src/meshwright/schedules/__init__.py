"""Pipeline schedules: ordered operations per rank, their validator, and stage balancing."""

from meshwright.schedules.ops import Kind, Op, Schedule
from meshwright.schedules.registry import FAMILIES, Shape, build, refusal
from meshwright.schedules.validate import validate

__all__ = ["FAMILIES", "Kind", "Op", "Schedule", "Shape", "build", "refusal", "validate"]
