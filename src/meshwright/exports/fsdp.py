"""Plain PyTorch: a plan as one script with FSDP2 and DTensor that runs as it is, and back.

The script holds the plan in three literal tables (MODEL, LAYOUT, JOB); reading it back reads those
literals and nothing else.
"""

from __future__ import annotations

import ast
import pprint
from collections.abc import Iterator
from typing import Any

from meshwright.exports.bundle import STEPS, comment, learning_rate, steps, template
from meshwright.exports.canonical import canonical
from meshwright.exports.families import computes_otherwise
from meshwright.exports.limit_rules import Problem
from meshwright.exports.limits import Limits
from meshwright.exports.scripts import beside
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES, Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.numerics import numerics_of
from meshwright.specs.plan import Plan

_MODEL = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "gated",
    "tied_embeddings", "norm", "qkv_bias", "attention_out_bias", "ffn_bias", "positions",
    "max_positions",
)  # fmt: skip


def _problems(model: Model) -> Iterator[Problem]:
    yield from computes_otherwise(model)
    wrong = any((
        model.experts, model.latent_attention, model.parallel_block, model.window,
        model.embedding_norm, model.head_bias, model.qk_norm != "none", model.extra_parameters,
        model.norms_per_layer != 2, not model.final_norm,
    ))  # fmt: skip
    if wrong or model.positions in ("alibi", "none") or model.norm == "none":
        yield Problem(
            "model.family", model.family, "builds dense decoders with rotary or learned positions"
        )


LIMITS = Limits("the PyTorch script", "fsdp", _problems)
VERSION = LIMITS.can.checked


def _positions(plan: Plan) -> int:
    """Rows of the table of learned positions: as many as a sequence has, where the model's has fewer."""
    learned = plan.model.positions == "learned"
    return max(plan.model.max_positions, plan.job.seq_len) if learned else plan.model.max_positions


def tables(plan: Plan) -> dict[str, dict[str, Any]]:
    """The three literal tables of the script."""
    layout, job, model = canonical(plan.layout, plan.model), plan.job, plan.model
    full = layout.recompute == "full"
    return {
        "MODEL": {name: getattr(model, name) for name in _MODEL} | {"max_positions": _positions(plan)},
        "LAYOUT": {
            "dp": layout.dp, "cp": layout.cp, "tp": layout.tp, "zero": layout.zero,
            "shard": layout.shard_degree,
            "sequence_parallel": layout.sequence_parallel,
            "recompute_layers": (layout.recompute_layers or model.layers) if full else 0,
        },
        "JOB": {
            "seq_len": job.seq_len, "global_batch": job.global_batch,
            "micro_batch": layout.micro_batch, "compute": job.precision.compute,
            "scores_kept": job.attention_kernel == "unfused",
            "reduce_fp32": job.precision.gradient_reduce_bytes >= 4, "steps": steps(job),
        },
    }  # fmt: skip


ACTIVATED = {
    "silu": "F.silu(x)", "gelu": "F.gelu(x)", "gelu-tanh": 'F.gelu(x, approximate="tanh")', "relu": "F.relu(x)",
    "relu2": "F.relu(x).square()", "quick-gelu": "x * torch.sigmoid(1.702 * x)",
}  # fmt: skip
"""Our names of activations, as the script computes them."""


def files(plan: Plan, command: str) -> dict[str, str]:
    """`train_fsdp.py`, and what it reads its tokens and goes on with."""
    values = {
        name: pprint.pformat(table, sort_dicts=False, compact=True, width=90)
        for name, table in tables(plan).items()
    }
    numerics = numerics_of(plan.model)
    values |= {"THETA": str(numerics.rope_theta), "EPSILON": str(numerics.norm_epsilon)}
    values |= {
        "ACTIVATED": ACTIVATED[numerics.activation],
        "TURNED": str(numerics.rotary_share or 1.0),
    }
    target = f"PyTorch {VERSION}"
    values |= {
        "STAMP": comment(plan, command, target).rstrip(),
        "RATE": str(learning_rate(plan.job)),
    }
    return {"train_fsdp.py": template("train_fsdp.py", values)} | beside(plan, command, target)


def notes(plan: Plan) -> tuple[str, ...]:
    """What the script leaves out of the model, which costs nothing."""
    if numerics_of(plan.model).rope_scaling is None:
        return ()
    return (
        "the script turns positions by their base alone, without the model's stretching of long ones",
    )


def read(tree: ast.Module) -> tuple[Model, Job, Layout]:
    """Return what such a script runs, from its literal tables.

    Raises:
        SpecError: a table is missing or holds other than literals.
    """
    found = literals(tree, ("MODEL", "LAYOUT", "JOB"))
    for name in ("MODEL", "LAYOUT", "JOB"):
        if not isinstance(found.get(name), dict):
            raise SpecError(name, found.get(name), "a literal table is expected in the script")
    model_data, split, job_data = found["MODEL"], found["LAYOUT"], found["JOB"]
    model = Model.parse(
        {**model_data, "norm_bias": model_data.get("norm") == "layernorm", "name": "imported"},
        "MODEL",
    )
    compute = str(job_data.get("compute", "bf16"))
    if compute not in RECIPES:
        raise SpecError("JOB.compute", compute, "bf16 or fp32 is expected")
    wide = bool(job_data.get("reduce_fp32"))
    recipe = RECIPES["bf16-fp32-grads" if compute == "bf16" and wide else compute]
    job = Job.parse(
        {
            "seq_len": job_data.get("seq_len"),
            "global_batch": job_data.get("global_batch"),
            "framework": "fsdp",
            "precision": recipe.model_dump(),
            "attention_kernel": "unfused" if job_data.get("scores_kept") else "flash",
        },
        "JOB",
    )
    length = job_data.get("steps")
    if isinstance(length, int) and length > STEPS:
        job = job.but(token_budget=float(length * job.tokens))
    layers = split.get("recompute_layers", 0)
    layout = Layout.parse(
        {
            "dp": split.get("dp", 1),
            "tp": split.get("tp", 1),
            "cp": split.get("cp", 1),
            "zero": split.get("zero", 0),
            "shard": split.get("shard", 0) if split.get("zero") else 0,
            "sequence_parallel": split.get("sequence_parallel", False),
            "micro_batch": job_data.get("micro_batch", 1),
            "recompute": "full" if layers else "none",
            "recompute_layers": layers,
        },
        "LAYOUT",
    )
    return model, job, canonical(layout, model)


def literals(tree: ast.Module, names: tuple[str, ...]) -> dict[str, Any]:
    """Values of top-level assignments of literals, by name; others are left out."""
    found: dict[str, Any] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0]
        if isinstance(target, ast.Name) and target.id in names:
            try:
                found[target.id] = ast.literal_eval(node.value)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                continue
    return found
