"""Pipeline schedules: ordered operations per rank, their validator, and stage balancing."""

from meshwright.schedules.ops import Kind, Op, Schedule
from meshwright.schedules.registry import FAMILIES, Shape, build, refusal
from meshwright.schedules.torch_csv import read_torch_csv, write_torch_csv
from meshwright.schedules.validate import validate

__all__ = [
    "FAMILIES",
    "Kind",
    "Op",
    "Schedule",
    "Shape",
    "build",
    "read_torch_csv",
    "refusal",
    "validate",
    "write_torch_csv",
]
