"""verl: the training half of its commands and configurations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.imports.formats import easyr1
from meshwright.imports.formats import verl_engines as engines
from meshwright.imports.hydra_defaults import chosen, own_configuration, with_defaults
from meshwright.imports.interpolate import merged, resolved, words_to_table
from meshwright.imports.names import PLANNED, model_named
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.recipes import weights_alone
from meshwright.imports.tuning import adapters
from meshwright.planner.corners import largest_divisor
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES
from meshwright.specs.model import Model

_PREPARES = re.compile(r"generation|eval|merger|(?:pre|data_)process|download|convert")
"""Programs of verl's and of its recipes that train nothing."""
_ENTRIES = re.compile(r"(?:^|\.)(?:fsdp_sft_trainer|sft_trainer|main_ppo|main_dapo)$")
"""Programs of its that others copy."""
_PICTURES = re.compile(r"(?i)geo(?:metry)?3k|clevr|mmk12|virl39k|docvqa|multimodal")
"""Data sets with pictures, by the names that examples give them."""
_ACTS = re.compile(r"(?:^|[./_])vla(?:[./_]|$)")
"""Programs of its recipe for vision-language-action models."""


def starts_verl(program: str, words: list[str], folder: Path | None) -> bool:
    """Whether a command trains with verl: by its program, its words, or the configuration that they name."""
    if program.startswith(("verl.", "recipe.")) or any("actor_rollout_ref." in one for one in words):  # fmt: skip
        return True
    if _ENTRIES.search(program) and any("data.train_files" in one for one in words):
        return True
    path = own_configuration(program, words, folder) if chosen(words)[1] else None
    return path is not None and "actor_rollout_ref" in with_defaults(path)


def is_config(data: dict[str, Any]) -> bool:
    """Whether a table is verl's, of a policy or of a supervised run."""
    defaults = str(data.get("defaults", ""))
    if "actor_rollout_ref" in data or "@actor_rollout_ref" in defaults:
        return True
    model, samples = data.get("model"), data.get("data")
    supervised = "engine@engine" in defaults or (isinstance(model, dict) and "partial_pretrain" in model)  # fmt: skip
    return supervised and isinstance(samples, dict) and "train_files" in samples


def read_verl(program: str, words: list[str], given: Given, folder: Path | None) -> Reading:
    """Return the training half of a verl command.

    Raises:
        SpecError: it does not train, or a value cannot be.
    """
    if _PREPARES.search(program):
        raise SpecError("file", program, "does not train; a training command is expected")
    if _ACTS.search(program):
        raise SpecError("file", program, f"trains a model that sees and acts: {PLANNED}")
    if easyr1.is_command(words):
        return easyr1.read_words(words, given, folder)
    data = words_to_table(words)
    said = set(flattened(data))
    named = chosen(words)[1]
    path = own_configuration(program, words, folder)
    if path is not None:
        groups = {name: value for name, value in data.items() if isinstance(value, str)}
        data = merged(with_defaults(path, chosen=groups), data)
    elif "megatron" in named:
        data = merged({"actor_rollout_ref": {"actor": {"strategy": "megatron"}}}, data)
    reading = read_verl_data(data, given, program, said=said if path is not None else None)
    if "split" in program and reading.per_host > 1:
        # verl's example of split placement gives the critic the other half.
        reading.per_host //= 2
        reading.guess("--cluster", f"{program} splits its devices between actor and critic; half of them are taken")  # fmt: skip
    return reading


def read_verl_data(
    data: dict[str, Any],
    given: Given,
    program: str = "",
    path: Path | None = None,
    said: set[str] | None = None,
    tables: tuple[str, ...] = ("rl", "common"),
) -> Reading:
    """Return the training half of a verl configuration.

    Args:
        path: of the file, whose `defaults` lie beside it.
        said: what the command itself states, over a configuration of verl's own; None: all of it.
        tables: which say what an option changes that is not read here.

    Raises:
        SpecError: a value that cannot be.
    """
    if path is not None and "defaults" in data:
        data = with_defaults(path)
    if "evaluator" in data and "trainer" not in data and not program:
        raise SpecError("file", path.name if path else program, "describes no training run of its own: no trainer is configured")  # fmt: skip
    options = Options(_of_rllm(flattened(resolved(data, dict(given.variables)))))
    if not program and "defaults" not in data and not _whole(options):
        raise SpecError("file", path.name if path else "configuration", "describes no training run of its own: it says neither model, data nor trainer, and is laid over another file; import the command that starts it")  # fmt: skip
    reading = Reading("verl command", options={"micro_batch": "ppo_micro_batch_size_per_gpu"})
    options.guessing = given.guess
    reading.model = given.model
    reading.model_name = options.loose(
        "model.partial_pretrain", "actor_rollout_ref.model.path", "model.path"
    )
    reading.encoder_frozen = options.flag("actor_rollout_ref.actor.freeze_vision_tower")
    reading.hosts = options.whole("trainer.nnodes", default=1) or 1
    reading.per_host = options.whole("trainer.n_gpus_per_node", default=8)
    started = "trainer.n_gpus_per_node" in (said if said is not None else options.values)
    reading.counts_itself = started and "sft" not in program  # torchrun starts a supervised run
    if options.flag("trainer.val_only"):
        raise SpecError("trainer.val_only", True, "answers and scores alone: it does not train")
    rollout = "actor_rollout_ref.rollout."
    prompt = options.whole("data.max_prompt_length", f"{rollout}prompt_length", default=512)
    response = options.whole("data.max_response_length", f"{rollout}response_length", default=512)
    supervised = (
        "sft" in program
        or options.has("model.partial_pretrain")
        or not any(name.startswith(_ACTOR) for name in options.values)
    )
    reading.job = {
        "framework": "verl",
        "precision": RECIPES["bf16"].but(gradient_bytes=4, gradient_reduce_bytes=4).model_dump(),
    }
    if supervised:
        _verl_sft(options, reading, program)
    else:
        reading.seq_len = prompt + response
        reading.guess(
            "--seq", f"sequences have at most {reading.seq_len} tokens; that is taken for all"
        )
        _verl_actor(options, reading, program)
        reading.note("the actor's training is priced, not rollouts, reference or critic")
    stated = said if said is not None else options.values
    keyed = (
        program and "easyr1" not in tables and "data.image_key" in stated
    )  # EasyR1's own file says it always
    if keyed or _PICTURES.search(options.loose("data.train_files")):
        reading.unmodelled("data.image_key", "samples hold pictures; a part of the model that sees, and its tokens, are not priced")  # fmt: skip
    beside = ["data.", "checkpoint.", "trainer.", "custom_", "ray_", "global_"]
    # Tables of what is off say nothing.
    beside += [
        f"{one}mtp."
        for one in ("model.", "actor_rollout_ref.model.")
        if str(options.values.get(f"{one}mtp.enable", False)).lower() == "false"
    ]
    options.read |= {
        n
        for n in options.values
        if n.endswith(("_group_", "_target_"))
        or n.startswith(tuple(beside))
        or (said is not None and n not in said)
    }
    options.finish(reading, *tables, strict=given.strict)
    return reading


_ACTOR = "actor_rollout_ref.actor."
_RLLM = {
    "rllm.rollout.n": "actor_rollout_ref.rollout.n", "rllm.algorithm.adv_estimator": "algorithm.adv_estimator",
    "rllm.async_training.mini_batch_size": f"{_ACTOR}ppo_mini_batch_size",
}  # fmt: skip
"""What rLLM's own table says of a run on verl, by verl's names."""


def _of_rllm(values: dict[str, Any]) -> dict[str, Any]:
    """verl's options with what rLLM's table says over them."""
    if not any(name.startswith("rllm.") for name in values):
        return values
    on = str(values.get("rllm.async_training.enable", "false")).lower() == "true"
    told = {ours: values[name] for name, ours in _RLLM.items() if name in values and (on or "async" not in name)}  # fmt: skip
    if on and "rllm.async_training.mini_batch_size" in values:
        values = {name: one for name, one in values.items() if name != "data.train_batch_size"}
    rest = {name: one for name, one in values.items() if not name.startswith(("rllm.", "rllm/"))}
    return {"algorithm.adv_estimator": "grpo", **rest, **told}


def _whole(options: Options) -> bool:
    """Whether a configuration says what is trained, on what or where: less is a part laid over another."""
    return any(
        name.startswith(("data.", "trainer.", "model.", "actor_rollout_ref.model."))
        for name in options.values
    )


def _sft_names(engine: str) -> dict[str, str]:
    """Tables of a supervised run, and what a policy's are called."""
    return {"model.": "actor_rollout_ref.model.", "engine.": f"{_ACTOR}{engine}.", "optim.": f"{_ACTOR}optim."}  # fmt: skip


def _verl_sft(options: Options, reading: Reading, program: str) -> None:
    reading.seq_len = options.whole("data.max_length", default=1024)
    reading.micro_batch = options.whole(
        "data.micro_batch_size_per_gpu", "data.micro_batch_size", default=4
    )
    reading.global_batch = options.whole("data.train_batch_size", default=256)
    again = options.flag("model.enable_gradient_checkpointing", default=True)
    sp, engine = 1, engines.sft_engine(options)
    options.spoken = _sft_names("fsdp_config" if engine == "fsdp" else engine)
    if engine == "megatron":
        engines.megatron_layout(options, reading, "engine.", "optim.", _model(reading))
    elif engine == "fsdp":
        sp = _sft_sharding(options, reading, again)
        engines.optimizer(options, reading, "optim.")
    else:
        if engine == "veomni":
            engines.veomni_layout(options, reading, "engine.", "model.")
        else:
            engines.torchtitan_layout(options, reading, "engine.")
        sp = reading.layout["cp"]
        engines.optimizer(options, reading, "optim.")
    _verl_adapters(options, reading, "model.")
    if options.raw("engine.reshard_after_forward") in (False, "False", "false"):
        reading.layout["zero"] = 2
    if engine == "fsdp":
        reading.shard = max(0, int(options.number("engine.fsdp_size", default=-1)))
    if "bf" in options.word("engine.model_dtype", "model.fsdp_config.model_dtype", default="fp32"):
        reading.job["precision"] = RECIPES["pure-bf16"].model_dump()
        weights_alone(reading.job, sharded=True)
    engines.model_switches(options, reading, "model.")
    options.read |= {"model.strategy", "model.fsdp_config.wrap_policy.min_num_params"}
    reading.count_steps(options, "trainer.total_training_steps")
    by_tokens = re.search(r"(?:^|[./])sft_trainer(?:_ray)?(?:\.py)?$", program) is not None
    if options.flag("data.use_dynamic_bsz", default=by_tokens):  # on by itself in today's trainer
        tokens = options.whole("data.max_token_len_per_gpu", default=8192) * sp
        reading.micro_batch = max(1, tokens // reading.seq_len)
        reading.guess(
            "--micro-batch",
            f"micro-batches are filled to {tokens} tokens; {reading.micro_batch} sequences are taken",
        )
    if options.flag("model.fsdp_config.cpu_offload", "model.fsdp_config.offload_params"):
        reading.offload |= {"optimizer", "parameters"}
    if options.flag("engine.offload_policy"):
        engines.offloaded(options, reading, "engine.strategy")
    if options.flag("model.use_remove_padding", "use_remove_padding"):
        reading.job["document_masking"] = True


def _sft_sharding(options: Options, reading: Reading, again: bool) -> int:
    """FSDP's layout of an SFT run; returns the ranks that share a sequence."""
    names = ("ulysses_sequence_parallel_size", "engine.ulysses_sequence_parallel_size")
    sp = engines.sharing(options, *names)
    reading.layout = {"zero": 3, "cp": sp, "recompute": "full" if again else "none"}
    if sp > 1:
        reading.layout["cp_method"] = "ulysses"
    return sp


_SHARED = {
    "megatron": ("megatron.context_parallel_size",),
    "mindspeed": ("mindspeed.context_parallel_size",),
    "torchtitan": ("torchtitan.context_parallel_size",),
    "veomni": ("veomni.ulysses_parallel_size",),
    "fsdp": ("ulysses_sequence_parallel_size", "fsdp_config.ulysses_sequence_parallel_size"),
}
"""Where each engine says how many ranks share a sequence."""


def _model(reading: Reading) -> Model | None:
    return reading.model or model_named(reading.model_name)


def _verl_actor(options: Options, reading: Reading, program: str) -> None:
    engine = engines.engine_of(options, _ACTOR)
    _verl_batch(options, reading, engine, program)
    if engine in ("megatron", "mindspeed"):
        engines.megatron_layout(
            options, reading, f"{_ACTOR}{engine}.", f"{_ACTOR}optim.", _model(reading)
        )
    else:
        if engine == "veomni":
            engines.veomni_layout(options, reading, f"{_ACTOR}veomni.")
        elif engine == "torchtitan":
            engines.torchtitan_layout(options, reading, f"{_ACTOR}torchtitan.")
        else:
            engines.fsdp_layout(options, reading, _ACTOR)
        engines.optimizer(options, reading, f"{_ACTOR}optim.")
    table = "fsdp_config" if engine == "fsdp" else engine
    _between_phases(options, reading, f"{_ACTOR}{table}.")
    engines.model_switches(options, reading, "actor_rollout_ref.model.")
    _verl_adapters(options, reading, "actor_rollout_ref.model.")
    engines.beside_training(options, reading)
    engines.critic(options, reading)
    apart = options.flag(f"{_ACTOR}use_kl_loss") or options.flag("algorithm.use_kl_in_reward")
    moved = options.flag(f"actor_rollout_ref.ref.{table}.param_offload")
    adapted = "finetune" in reading.job  # the policy without its adapters is its own reference
    reading.reference = apart and not moved and not adapted
    name = "actor_rollout_ref.model.use_remove_padding"
    if not options.has(name):
        reading.guess(name, "is not set: on in today's verl (off in releases of 2025); on is taken")
    if options.flag(name, default=True):
        reading.job["document_masking"] = True


def _verl_adapters(options: Options, reading: Reading, where: str) -> None:
    """The adapters that the model's own table, `where`, asks for."""
    rank = options.whole(f"{where}lora_rank") or options.whole(f"{where}lora.rank")
    if not rank:
        return
    adapters(
        reading, method="dora" if options.word(f"{where}lora.type") == "dora" else "lora", rank=rank,
        alpha=options.number(f"{where}lora_alpha", f"{where}lora.alpha", default=16.0),
        targets=options.raw(f"{where}target_modules", f"{where}lora.target_modules"),
        dropout=options.number(f"{where}lora.dropout"), option=f"{where}target_modules",
    )  # fmt: skip


def _verl_batch(options: Options, reading: Reading, engine: str, program: str) -> None:
    samples = options.whole("actor_rollout_ref.rollout.n", default=1) or 1
    mini = options.whole(f"{_ACTOR}ppo_mini_batch_size", default=256)
    # Forks whose trainer repeats the prompts itself, for an agent's runs.
    repeated = options.whole("agent_grpo.n", "actor_rollout_ref.rollout.n_agent", default=1) or 1
    prompts = options.whole("data.train_batch_size") * repeated
    turns = options.has(
        "env.rollout.n"
    )  # each of an agent's turns is a sample: how many there are is not said
    fewer = 0 < prompts < mini and not turns and options.has(f"{_ACTOR}ppo_mini_batch_size")
    theirs = program.startswith(("verl.", "recipe.")) or _ENTRIES.search(program.removesuffix(".py"))  # fmt: skip
    if fewer and program and not theirs:
        # verl's own trainer would refuse that; one that stands on it gathers more samples a step.
        reading.guess(f"{_ACTOR}ppo_mini_batch_size", f"is more than the {prompts} prompts of data.train_batch_size; {program[-60:]} is no program of verl's, and may gather that many: {mini} are taken")  # fmt: skip
    elif fewer:
        reading.note(f"is more than the {prompts} prompts of data.train_batch_size, which one step trains on", f"{_ACTOR}ppo_mini_batch_size")  # fmt: skip
        mini = prompts
    reading.global_batch = mini * samples
    micro = options.whole(f"{_ACTOR}ppo_micro_batch_size_per_gpu")
    whole = options.whole(f"{_ACTOR}ppo_micro_batch_size")
    tokens = options.whole(f"{_ACTOR}ppo_max_token_len_per_gpu", default=16384)
    dynamic = options.flag(f"{_ACTOR}use_dynamic_bsz")
    shared = engines.sharing(options, *(f"{_ACTOR}{name}" for name in _SHARED[engine]))
    replicas = reading.hosts * reading.per_host // shared
    share = reading.global_batch // replicas if replicas and engine in ("fsdp", "veomni") else 0
    if whole and not micro:
        micro = max(1, whole // max(1, reading.hosts * reading.per_host))
        if samples > 1:
            reading.note(
                f"is spread over all devices; verl before 0.2 multiplies it by rollout.n = {samples}",
                f"{_ACTOR}ppo_micro_batch_size",
            )
    if not micro and not dynamic and options.has(f"{_ACTOR}use_dynamic_bsz"):
        micro = 1
        reading.guess("--micro-batch", "no micro-batch is set, nor are they filled by tokens; 1 is taken")  # fmt: skip
    elif dynamic or not micro:
        # The bound holds per device; the ranks that share a sequence hold its tokens together.
        micro = max(1, tokens * max(1, shared) // reading.seq_len)
        if share:
            micro = min(micro, share)  # no more than a replica's share
        reading.guess(
            "--micro-batch",
            f"micro-batches are filled to {tokens} tokens; {micro} sequences are taken",
        )
    if share and micro > share:
        reading.guess("--micro-batch", f"a replica's share of a step is {share} sequences, fewer than the {micro} of a micro-batch; {share} are taken")  # fmt: skip
        micro = share
    even = share * replicas == reading.global_batch
    if even and share % micro:
        # verl's last micro-batch of a replica holds what is left.
        fitting = largest_divisor(share, micro)
        reading.guess("--micro-batch", f"a replica's {share} sequences are no multiple of {micro}; {fitting} are taken")  # fmt: skip
        micro = fitting
    reading.micro_batch = micro


def _between_phases(options: Options, reading: Reading, where: str) -> None:
    """Note what moves to the host for the time in which answers are generated."""
    for name, what in (("param_offload", "parameters"), ("optimizer_offload", "optimizer")):
        if options.flag(f"{where}{name}"):
            reading.note(
                f"{what} leave the device between phases, not during the step", f"{where}{name}"
            )
