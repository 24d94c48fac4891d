"""What several commands take: a model, a cluster, a job, a layout; and how they print JSON."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import typer

from meshwright.costs.frameworks import framework as framework_behaviour
from meshwright.specs import load_cluster, load_job, load_model
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job, PrecisionRecipe
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.plan import write_atomically
from meshwright.specs.quantities import parse_batch, parse_bytes, parse_count

MODEL = typer.Argument(..., help="Preset, size such as 30B, or a config.json / TOML file.")
CLUSTER = typer.Option(
    ..., "--cluster", "-c", help="device:nodesxgpus such as h100:8x8, or a file."
)
JOB = typer.Option(None, "--job", help="A TOML file with the job; other options override it.")
SEQ = typer.Option(None, "--seq", help="Sequence length in tokens (4k = 4000, 8192).")
BATCH = typer.Option(None, "--global-batch", help="Per step: 512 sequences or 4M-tokens.")
PRECISION = typer.Option(None, "--precision", help=f"Recipe: {', '.join(RECIPES)}.")
OPTIMIZER = typer.Option(None, "--optimizer", help=f"One of {', '.join(OPTIMIZERS)}.")
FRAMEWORK = typer.Option(None, "--framework", help="Keep to what this framework can run.")
TOKENS = typer.Option(None, "--tokens", help="Token budget of the whole run, as 15T.")
RESERVE = typer.Option(None, "--reserve", help="Memory to leave free on every device, as 4GiB.")
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
OUTPUT = typer.Option(None, "-o", "--output", help="Write to this file.")


def read_job(
    job: str | None,
    seq: str | None,
    batch: str | None,
    precision: str | None,
    optimizer: str | None,
    framework: str | None,
    tokens: str | None,
) -> Job:
    """Build a Job from a file and the options that override it."""
    base = load_job(Path(job)) if job else Job()
    changes: dict[str, Any] = {}
    if seq is not None:
        changes["seq_len"] = parse_count(seq, "--seq")
    length = changes.get("seq_len", base.seq_len)
    if batch is not None:
        changes["global_batch"] = parse_batch(batch, length, "--global-batch")
    if framework is not None:
        known = framework_behaviour(framework)
        changes["framework"] = framework
        changes["attention_kernel"] = known.attention_kernel
        if precision is None and base.precision == PrecisionRecipe() and known.gradient_bytes == 4:
            precision = "bf16-fp32-grads"
    if precision is not None:
        changes["precision"] = _named(precision, RECIPES, "--precision")
    if optimizer is not None:
        changes["optimizer"] = _named(optimizer, OPTIMIZERS, "--optimizer")
    if tokens is not None:
        changes["token_budget"] = float(parse_count(tokens, "--tokens"))
    return base.but(**changes) if changes else base


def _named(name: str, table: dict[str, Any], option: str) -> Any:
    if name not in table:
        raise SpecError(option, name, nearest(name, table))
    return table[name]


def read_cluster(cluster: str, reserve: str | None) -> Cluster:
    """Load a cluster and set the memory to leave free."""
    loaded = load_cluster(cluster)
    if reserve is not None:
        loaded = loaded.but(reserve_bytes=parse_bytes(reserve, "--reserve"))
    return loaded


def read_model(model: str) -> Model:
    """Load a model; `toy` is the lessons' four-layer one, which any laptop trains."""
    if model == "toy":
        from meshwright.engine.toy import TOY

        return TOY
    return load_model(model)


def build_layout(cluster: Cluster, degrees: dict[str, Any], options: dict[str, Any]) -> Layout:
    """Build a Layout from options; dp is what is left of the cluster unless given."""
    given = {name: value for name, value in {**degrees, **options}.items() if value is not None}
    fixed = given.get("tp", 1) * given.get("pp", 1) * given.get("cp", 1)
    if "dp" not in given:
        if cluster.gpus % fixed:
            raise SpecError(
                "layout",
                f"tp {given.get('tp', 1)} · pp {given.get('pp', 1)} · cp {given.get('cp', 1)}",
                f"their product must divide the {cluster.gpus} devices",
            )
        given["dp"] = cluster.gpus // fixed
    if given.get("virtual_stages", 1) > 1 and "schedule" not in given:
        given["schedule"] = "interleaved"
    if "sequence_parallel" not in given:
        given["sequence_parallel"] = given.get("tp", 1) > 1
    return Layout.parse(given)


def command_line() -> str:
    """The command line as typed, for the record in a plan."""
    return "meshwright " + shlex.join(sys.argv[1:])


def print_json(data: Any) -> None:
    """Print indented JSON to standard output."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def write_text(path: str, text: str) -> None:
    """Write a text file atomically, or standard output for `-`."""
    if path == "-":
        sys.stdout.write(text)
    else:
        write_atomically(path, text)
