"""`meshwright simulate`: one training step as a timeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from meshwright.cli import options
from meshwright.cli.simulate_view import Result, print_result, print_result_json, time_format

if TYPE_CHECKING:
    from meshwright.schedules import Schedule
    from meshwright.simulator import StageTimes
    from meshwright.simulator.memory import MemoryModel


@dataclass
class _Question:
    """What to simulate. Times are seconds for a plan, abstract units otherwise."""

    schedule: Schedule
    times: StageTimes
    comm: float
    tail: float = 0.0
    pair_ratio: float | None = None
    memory: MemoryModel | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> bool:
        """Whether times are seconds."""
        return bool(self.facts)


def command(
    plan: str | None = typer.Argument(None, help="A plan file; or give --schedule."),
    schedule: str | None = typer.Option(
        None, "--schedule", "-s", help="A schedule's name, or a torch schedule file (.csv)."
    ),
    pp: int | None = typer.Option(None, "--pp", help="Pipeline ranks."),
    micro_batches: int | None = typer.Option(
        None, "--microbatches", "--micro-batches", "-m", help="Micro-batches per step."
    ),
    virtual_stages: int = typer.Option(
        0, "--virtual-stages", "-v", help="Model chunks per rank; 0: the schedule's default."
    ),
    group: int = typer.Option(0, "--group", help="Micro-batch group of interleaved schedules."),
    slices: int = typer.Option(0, "--slices", help="Pieces per sequence, for seq-1f1b."),
    memory_limit: float = typer.Option(
        0.0, "--memory-limit", help="Micro-batches a rank may hold, for zb-auto; 0: pp."
    ),
    times: str = typer.Option(
        "1,1,1", "--times", help="Forward, input gradient, weight gradient of one micro-batch."
    ),
    comm: float = typer.Option(0.0, "--comm", help="Time of one message between stages."),
    stage_times: Path | None = typer.Option(
        None, "--stage-times", help="File with forward, backward_input, backward_weight per stage."
    ),
    pair_ratio: float | None = typer.Option(
        None, "--pair-ratio", help="Time of an overlapped F and B over their sum, for DualPipe."
    ),
    overlap_slowdown: float = typer.Option(
        1.0, "--overlap-slowdown", help="How much slower a rank computes while it communicates."
    ),
    slow: str | None = typer.Option(
        None, "--slow-rank", help="What if a rank were slower: 2:1.5 is rank 2, 1.5 times."
    ),
    jitter: float = typer.Option(
        0.0, "--jitter", help="What if operations varied: relative deviation, as 0.1."
    ),
    balance: bool = typer.Option(
        False, "--balance", help="Also cut the plan's layers into stages of equal time."
    ),
    trace: Path | None = typer.Option(
        None, "--trace", callback=options.writable, help="Write a trace for Perfetto."
    ),
    svg: Path | None = typer.Option(
        None, "--svg", callback=options.writable, help="Write a picture."
    ),
    csv: Path | None = typer.Option(
        None, "--csv", callback=options.writable, help="Write the schedule for torch."
    ),
    output: Path | None = typer.Option(
        None,
        "-o",
        "--output",
        callback=options.writable,
        help="Write the timeline as columnar JSON.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the numbers as JSON."),
    width: int = typer.Option(0, "--width", help="Columns of the timeline; 0: the terminal's."),
) -> None:
    """Simulate one training step: a coloured timeline, the bubble and its causes, the memory.

    With a plan, times and memory are those that the cost model gives its layout. With --schedule,
    time is in abstract units: --times 1,1,1 is one micro-batch through one rank's whole share.
    """
    from meshwright.schedules import Shape, refusal
    from meshwright.specs.errors import SpecError

    if (plan is None) == (schedule is None):
        raise SpecError("plan", plan, "give either a plan file or --schedule")
    if plan is not None:
        question = _from_plan(plan, balance)
    else:
        if balance:
            raise SpecError(
                "--balance", schedule, "it needs a plan file, whose layers it can price"
            )
        assert schedule is not None
        triple = parse_times(times)
        if schedule.endswith(".csv"):
            built = _read_csv(Path(schedule))
        else:
            if pp is None or micro_batches is None:
                raise SpecError("--pp", pp, "give --pp and --microbatches with --schedule")
            shape = Shape(
                pp, micro_batches, virtual_stages, group, slices, memory_limit, triple, comm
            )
            reason = refusal(schedule, shape)
            if reason and as_json:
                from meshwright.cli.output import print_json

                print_json({"schedule": schedule, "legal": False, "reason": reason})
                raise typer.Exit(2)
            built = _build(schedule, shape)
        question = _abstract(built, stage_times, triple, comm, pair_ratio)
    result = _run(question, slow, jitter, overlap_slowdown)
    _write(result, trace, svg, csv, output)
    if as_json:
        print_result_json(result)
    else:
        print_result(result, width)


def _run(question: _Question, slow: str | None, jitter: float, overlap_slowdown: float) -> Result:
    from meshwright.simulator import Simulator, slow_rank, spread
    from meshwright.simulator.memory import memory_over_time

    simulator = Simulator(question.schedule, pair_ratio=question.pair_ratio)
    times, undisturbed = question.times, None
    if slow is not None:
        undisturbed = simulator.makespan_s(times, question.comm)
        times = slow_rank(question.schedule, times, *_slow(slow))
    timeline = simulator.run(
        times, question.comm, optimizer_s=question.tail, overlap_slowdown=overlap_slowdown
    )
    memory = memory_over_time(timeline, question.memory) if question.memory else None
    varied = spread(simulator, times, jitter, comm_s=question.comm) if jitter else None
    return Result(timeline, memory, question.seconds, question.facts, varied, undisturbed)


def _slow(text: str) -> tuple[int, float]:
    from meshwright.specs.errors import SpecError

    rank, _, factor = text.partition(":")
    try:
        return int(rank), float(factor)
    except ValueError:
        raise SpecError("--slow-rank", text, "a rank and a factor are expected, as 2:1.5") from None


def _build(name: str, shape: Any) -> Schedule:
    from meshwright.schedules import build

    return build(name, **vars(shape))


def _read_csv(path: Path) -> Schedule:
    from meshwright.schedules import read_torch_csv
    from meshwright.specs.foreign import read_text

    return read_torch_csv(read_text(path, "--schedule"), path.name)


def parse_times(text: str) -> tuple[float, float, float]:
    """Parse F,I,W."""
    from meshwright.specs.errors import SpecError

    try:
        forward, backward_input, backward_weight = (float(part) for part in text.split(","))
    except ValueError:
        raise SpecError("--times", text, "three numbers F,I,W are expected, as 1,1,1") from None
    return forward, backward_input, backward_weight


def _stage_times(path: Path) -> StageTimes:
    """Read per-stage times; `backward` alone is split into two equal halves."""
    from meshwright.simulator import StageTimes
    from meshwright.specs.errors import SpecError
    from meshwright.specs.foreign import read_data

    data = read_data(path, "--stage-times")
    names = (
        ("forward", "backward")
        if "backward" in data
        else ("forward", "backward_input", "backward_weight")
    )
    missing = [name for name in names if name not in data]
    if missing:
        raise SpecError("--stage-times", str(path), f"it has no list named {missing[0]}")
    try:
        columns = [[float(value) for value in data[name]] for name in names]
    except (TypeError, ValueError):
        raise SpecError("--stage-times", str(path), "lists of numbers are expected") from None
    if len(names) == 2:
        half = [value / 2 for value in columns[1]]
        columns = [columns[0], half, half]
    return StageTimes.of(*columns)


def _abstract(
    schedule: Schedule, stage_times: Path | None, times: tuple[float, float, float], comm: float,
    pair_ratio: float | None,
) -> _Question:  # fmt: skip
    from meshwright.simulator import StageTimes

    given = StageTimes.per_rank(schedule, *times)
    if stage_times is not None:
        given = _stage_times(stage_times)
    return _Question(schedule, given, comm, pair_ratio=pair_ratio)


def _from_plan(path: str, balance: bool) -> _Question:
    from meshwright.simulator.plan_step import plan_step
    from meshwright.specs.plan import load_plan

    plan = load_plan(path)
    step = plan_step(plan.model, plan.cluster, plan.job, plan.layout)
    facts: dict[str, Any] = {
        "layout": plan.layout.label(),
        "tail": step.tail_s,
        "closed_form_step": step.closed_form.step_time_s,
        "capacity_bytes": step.closed_form.capacity_bytes,
    }
    if balance:
        from meshwright.simulator.plan_balance import balance_plan

        found = balance_plan(plan.model, plan.cluster, plan.job, plan.layout)
        facts["balanced"] = {
            "step": found.step_s,
            "stage_layers": list(found.partition.stage_layers()),
            "recomputed_layers": [len(stage.recomputed) for stage in found.partition.stages],
            "megatron_layout": found.partition.megatron_layout(),
            "torch_split_points": found.partition.torch_split_points(),
        }
    return _Question(
        step.schedule, step.times, step.comm_s, step.tail_s, memory=step.memory, facts=facts
    )


def _write(
    result: Result, trace: Path | None, svg: Path | None, csv: Path | None, output: Path | None
) -> None:
    import json

    from meshwright.specs.writing import write_atomically

    if trace is not None:
        from meshwright.simulator.render_trace import perfetto_trace

        unit_s = 1.0 if result.seconds else 1e-3
        write_atomically(trace, perfetto_trace(result.timeline, result.memory, unit_s=unit_s))
    if svg is not None:
        from meshwright.simulator.render_svg import svg_timeline

        write_atomically(svg, svg_timeline(result.timeline, format_time=time_format(result)))
    if csv is not None:
        from meshwright.schedules import write_torch_csv

        write_atomically(csv, write_torch_csv(result.timeline.schedule))
    if output is not None:
        from meshwright.simulator.columnar import columnar

        write_atomically(output, json.dumps(columnar(result.timeline, result.memory)))
