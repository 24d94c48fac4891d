"""Finalists that run where a user's own command takes them, read back from the log it prints."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.diagnose.log_reading import read_log
from meshwright.measure.racing import TIE, Race
from meshwright.measure.settle import Finish
from meshwright.specs.errors import SpecError
from meshwright.specs.plan import Plan, save_plan

WARM_UP = 2
"""Logged steps left out of the timing."""


def step_times_s(log: str, name: str = "log") -> tuple[list[float], bool]:
    """Step times that a framework's log tells after its warm-up, and whether memory ran out."""
    reading = read_log(log.splitlines(), name)
    steps = reading.steps or reading.bars
    times = [step.step_time_s for step in steps if step.step_time_s]
    return times[WARM_UP:] or times, bool(reading.messages)


def race_by_command(
    plan: Plan, racers: Sequence[tuple[Any, Any]], launch: str, confidence: float, seconds: float
) -> Finish:
    """Run each finalist by the command, one after another, and compare what their logs say.

    Raises:
        SpecError: the command has no place for the plan.
    """
    if "{plan}" not in launch:
        raise SpecError("--launch", launch, "{plan} is expected where the plan file's path goes")
    race, each = Race(len(racers), confidence), seconds / len(racers)
    with tempfile.TemporaryDirectory(prefix="meshwright-settle-") as folder:
        for runner, (layout, priced) in enumerate(racers):
            file = Path(folder) / f"finalist-{runner}.toml"
            one = plan.but(
                layout=layout.model_dump(exclude_unset=True),
                estimate=priced.model_dump(exclude_unset=True),
                fits=priced.fits,
            )
            save_plan(one, file)
            try:
                done = subprocess.run(
                    launch.replace("{plan}", str(file)), shell=True, capture_output=True, text=True,
                    errors="replace", timeout=each, check=False,
                )  # fmt: skip
                log = done.stdout + done.stderr
            except subprocess.TimeoutExpired as late:
                held = [late.stdout or b"", late.stderr or b""]
                log = "".join(
                    t.decode("utf-8", "replace") if isinstance(t, bytes) else t for t in held
                )
            times, no_memory = step_times_s(log, layout.label())
            if no_memory or not times:
                race.drop(runner, "out of memory" if no_memory else "failed")
            race.times[runner] = times
    return _judged(race)


def _judged(race: Race) -> Finish:
    """Runs one after another share no rounds: each is compared by its own mean and error."""
    first, once = race.leader(), race.level([max(race.most_rounds, 2)])
    for runner in [one for one in race.left if one != first]:
        assert first is not None
        mean, error = race.difference(runner, first, once)
        if mean - error > -TIE:
            race.drop(runner, "slower")
    return Finish(
        race.times, race.out, {r: race.error(r) for r in range(race.runners)}, race.leader(), False,
        max((len(times) for times in race.times.values()), default=0),
    )  # fmt: skip
