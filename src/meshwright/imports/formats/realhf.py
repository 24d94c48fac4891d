"""ReaL (ReaLHF, and AReaL's first releases, which stood on it): what one of its quickstart experiments trains.

Defaults and the number of micro-batches are those of its dataclasses (realhf/api/quickstart, realhf/experiments/common).
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from meshwright.imports.hydra_defaults import own_configuration, with_defaults
from meshwright.imports.interpolate import merged, resolved, words_to_table
from meshwright.imports.names import model_named
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.tasks import name_task
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

_SYMMETRIC = re.compile(r"([dpm]\d+)([dpm]\d+)([dpm]\d+)")
_DEGREES = {"m": "model", "p": "pipeline", "d": "data"}
_SEVERAL = "ppo.gen.max_new_tokens", "gen.max_new_tokens", "ppo.gen.min_new_tokens"


def is_command(words: list[str]) -> bool:
    """Whether a command's words are those of such an experiment, ReaL's own or a registered one."""
    named = {word.partition("=")[0].lstrip("+") for word in words if "=" in word}
    known = {"experiment_name", "trial_name"} <= named or "allocation_mode" in named
    return known and any(name.endswith(("type._class", ".train_bs_n_seqs")) for name in named)


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is one of its experiments."""
    said = data.get("dataset")
    return "allocation_mode" in data and isinstance(said, dict) and "train_bs_n_seqs" in said


def read_words(
    words: list[str], given: Given, program: str = "", folder: Path | None = None
) -> Reading:
    """Return what a command trains, over the configuration that its program starts from where that is at hand.

    Raises:
        SpecError: it generates alone, its degrees are left to a search, or a value cannot be.
    """
    kind = next((word for word in words if re.fullmatch(r"[a-z][\w-]*", word)), "")
    said = words_to_table([word for word in words if "=" in word])
    path = own_configuration(program, words, folder)
    return read(said if path is None else merged(with_defaults(path), said), given, kind)


def read(data: dict[str, Any], given: Given, kind: str = "") -> Reading:
    """Return what an experiment trains: the actor of a reinforcement, or its one model.

    Args:
        kind: its name on the command line (sft, rw, dpo, ppo, gen); empty where it is not said.

    Raises:
        SpecError: it generates alone, its degrees are left to a search, or a value cannot be.
    """
    if kind == "gen":
        raise SpecError("experiment", kind, "generates answers; it does not train")
    options = Options(flattened(resolved(data, dict(given.variables))))
    reading = Reading("ReaL command", options={"micro_batch": "n_mbs"})
    role = "actor" if options.has("actor.path", "actor.type._class") else "model"
    call = "actor_train" if role == "actor" else "allocation"
    reading.model, reading.model_name = given.model, _name(options, role)
    _degrees(options, reading, f"{call}.parallel.")
    _batches(options, reading, call)
    _job(options, reading, f"{role}.")
    name_task(reading, {"rw": "rm"}.get(kind, kind if kind in ("dpo", "ppo") else ""))
    if role == "actor" and kind != "dpo":
        reading.note("the actor's training is priced, not generation, reference or rewards")
    if any(name.startswith("critic.") for name in options.values):
        reading.unmodelled("critic", "a critic trains, too; the actor is priced")
    options.read |= {name for name in options.values if not name.startswith((f"{role}.", f"{call}."))}  # fmt: skip
    options.within = (f"{role}.megatron.",)
    options.finish(reading, "areal", strict=given.strict)
    return reading


def _name(options: Options, role: str) -> str:
    """The checkpoint; its family and size where the path is of a trial and these are said."""
    path = options.loose(f"{role}.path")
    family, size = options.loose(f"{role}.type._class"), options.loose(f"{role}.type.size")
    told = f"{family}-{size}b" if family and size not in ("", "0") else ""
    return told if told and model_named(path) is None and model_named(told) is not None else path


def _degrees(options: Options, reading: Reading, at: str) -> None:
    """Data, tensor and pipeline ranks of the training call, by hand or by one mode for all calls."""
    hosts = options.whole("n_nodes", default=1) or 1
    per_host = options.whole("n_gpus_per_node", default=8) or 8
    mode = options.word("allocation_mode", default="pipe_model")
    sizes = {"data": 1, "model": 1, "pipeline": 1}
    symmetric = _SYMMETRIC.search(mode.rpartition("+")[2])
    if symmetric is not None:
        sizes |= {_DEGREES[part[0]]: int(part[1:]) for part in symmetric.groups()}
    elif mode == "manual":
        sizes = {one: options.whole(f"{at}{one}_parallel_size", default=1) or 1 for one in sizes}
    elif mode in ("pipe_data", "pipe_model"):
        sizes |= {mode[5:]: per_host, "pipeline": hosts}
    elif mode == "heuristic" and options.has("actor.path"):
        hosts = _heuristic(options, hosts, sizes)
        reading.note("ReaL's own rule for PPO gives the actor these devices, by the models' sizes", "allocation_mode")  # fmt: skip
    else:
        raise SpecError("allocation_mode", mode, "its degrees are set by a search or an autotuner: import one that says them, as manual, pipe_data, pipe_model or d4p2m1")  # fmt: skip
    reading.dp = sizes["data"]
    reading.layout = {
        "tp": sizes["model"], "pp": sizes["pipeline"], "zero": 1, "recompute": "none",
        "sequence_parallel": (options.flag(f"{at}use_sequence_parallel") or mode == "heuristic") and sizes["model"] > 1,
    }  # fmt: skip
    count = sizes["data"] * sizes["model"] * sizes["pipeline"]
    if count % per_host == 0 or count < per_host:  # whole hosts come first, the rest generates
        reading.hosts, reading.per_host = max(1, count // per_host), min(count, per_host)
    else:
        reading.devices = count
    reading.counts_itself = True


def _heuristic(options: Options, hosts: int, sizes: dict[str, int]) -> int:
    """Set the actor's degrees and return its hosts, as `PPOConfig._heuristic_rpc_allocation` does on eight devices a host."""
    actor, critic = (options.number(f"{one}.type.size", default=7) or 7 for one in ("actor", "critic"))  # fmt: skip
    if hosts == 1:  # half of one host, the critic has the other half
        sizes |= {"data": 2 if actor <= 7 else 1, "model": 2 if actor <= 7 else 4}
        return 1
    own = min(math.ceil(hosts * actor / (actor + critic)), hosts - 1)
    sizes |= {"data": 2, "pipeline": own, "model": 4}
    return own


def _batches(options: Options, reading: Reading, call: str) -> None:
    """Sequences of a step, and their length: a prompt with its answer where answers are generated."""
    prompts = options.whole("dataset.train_bs_n_seqs", default=256) or 256
    generates = any(name.startswith(("ppo.", "gen.")) for name in options.values)
    samples = options.whole("group_size", default=1) or 1
    parts = 1
    if any(name.startswith("ppo.") for name in options.values):
        parts = options.whole("ppo.ppo_n_minibatches", default=4) or 1
    reading.global_batch = max(1, prompts * samples // parts)
    if generates:
        answer = options.whole(*_SEVERAL, default=256)
        reading.seq_len = options.whole("dataset.max_prompt_len", default=256) + answer
    else:
        reading.seq_len = options.whole("dataset.max_seqlen", default=1024)
    reading.guess("--seq", f"sequences have at most {reading.seq_len} tokens; that is taken for all")  # fmt: skip
    tokens = options.whole(f"{call}.mb_spec.max_tokens_per_mb")
    stages = reading.layout["pp"]
    # A pipeline cuts twice as many micro-batches as it has stages.
    cut = (options.whole(f"{call}.n_mbs", default=1) or 1) * (2 * stages if stages > 1 else 1)
    if tokens:
        reading.micro_batch = max(1, tokens // reading.seq_len)
        reading.guess("--micro-batch", f"micro-batches are filled to {tokens} tokens; {reading.micro_batch} sequences are taken")  # fmt: skip
    else:
        reading.micro_batch = max(1, reading.global_batch // (reading.dp * cut))


def _job(options: Options, reading: Reading, at: str) -> None:
    """Precision, state and what is computed again; half precision is ReaL's own where nothing is said."""
    mega = options.word(f"{at}backend", default="megatron") == "megatron"
    bf16 = options.flag(f"{at}enable_bf16") or options.flag(f"{at}bf16")
    recipe = RECIPES["bf16-fp32-grads"] if bf16 and mega else RECIPES["bf16" if bf16 else "fp16"]
    if not bf16 and mega:
        recipe = recipe.but(gradient_bytes=4, gradient_reduce_bytes=4)
    if not bf16 and not options.flag(f"{at}enable_fp16", default=True):
        recipe = RECIPES["fp32"]
    stage = options.whole(f"{at}zero_stage", default=2)
    # Megatron's optimizer is sharded, or not: it knows no further stages.
    spread = options.flag(f"{at}megatron.ddp.use_distributed_optimizer", default=True)
    reading.layout["zero"] = (min(stage, 1) if spread else 0) if mega else stage
    if options.flag(f"{at}gradient_checkpointing", default=True):
        reading.layout["recompute"] = "full"
    options.word(f"{at}optimizer.type")  # Adam is all that trains there
    if options.flag(f"{at}optimizer.offload"):
        reading.offload.add("optimizer")
    if options.flag(f"{at}offload"):
        reading.offload.add("parameters")
    reading.job = {
        "framework": "megatron" if mega else "deepspeed",
        "precision": recipe.model_dump(),
        "optimizer": {"name": "adamw"},
        "document_masking": True,
    }
    if any(name.startswith(f"{at}lora.") for name in options.values):
        adapters(
            reading, rank=options.whole(f"{at}lora.dim", default=32),
            alpha=options.number(f"{at}lora.scaling", default=32.0), option=f"{at}lora.dim",
        )  # fmt: skip
