"""What differs between two plans, and what the difference costs."""

from __future__ import annotations

from typing import Any

from meshwright.specs.base import Spec
from meshwright.specs.plan import Plan


class Difference(Spec):
    """One field or figure in both plans."""

    name: str
    first: float | str
    second: float | str


class Comparison(Spec):
    """Two plans side by side; times in seconds, memory in bytes."""

    setup: tuple[Difference, ...]
    figures: tuple[Difference, ...]
    time_parts: tuple[Difference, ...]
    memory_parts: tuple[Difference, ...]
    verdict: str


def compare(first: Plan, second: Plan) -> Comparison:
    """Compare layouts, settings and estimates of two plans."""
    setup = []
    for name in ("model", "cluster", "job", "layout"):
        setup += _differences(
            name, getattr(first, name).model_dump(), getattr(second, name).model_dump()
        )
    figures = [
        Difference(name=name, first=getattr(first.estimate, name), second=getattr(second.estimate, name))
        for name in (
            "step_time_s", "tokens_per_s_per_gpu", "mfu", "hfu", "bubble_fraction",
            "peak_memory_bytes", "capacity_bytes",
        )
    ]  # fmt: skip
    return Comparison(
        setup=tuple(setup),
        figures=tuple(figures),
        time_parts=_parts(first.estimate.time_parts, second.estimate.time_parts),
        memory_parts=_parts(first.estimate.memory_parts, second.estimate.memory_parts),
        verdict=_verdict(first, second),
    )


def _differences(where: str, a: Any, b: Any) -> list[Difference]:
    if isinstance(a, dict) and isinstance(b, dict):
        found = []
        for key in dict.fromkeys([*a, *b]):
            if key in ("source", "sources", "name") and where != "layout":
                continue
            found += _differences(f"{where}.{key}", a.get(key), b.get(key))
        return found
    return [] if a == b else [Difference(name=where, first=str(a), second=str(b))]


def _parts(a: dict[str, float], b: dict[str, float]) -> tuple[Difference, ...]:
    names = dict.fromkeys([*a, *b])
    return tuple(
        Difference(name=name, first=a.get(name, 0.0), second=b.get(name, 0.0)) for name in names
    )


def _verdict(first: Plan, second: Plan) -> str:
    one, two = first.estimate.tokens_per_s_per_gpu, second.estimate.tokens_per_s_per_gpu
    if not (first.fits and second.fits):
        which = [name for name, plan in (("first", first), ("second", second)) if not plan.fits]
        return f"the {' and the '.join(which)} does not fit"
    if abs(one / two - 1) < 0.005:
        return "as fast as each other, per device, within half a percent"
    faster = "first" if one > two else "second"
    return f"the {faster} plan is {max(one, two) / min(one, two) - 1:.1%} faster per device"
