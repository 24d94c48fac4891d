"""SkyRL commands: the policy's training of a reinforcement-learning run, and supervised ones."""

from __future__ import annotations

import re

from meshwright.imports.interpolate import words_to_table
from meshwright.imports.names import PLANNED, refuse_other
from meshwright.imports.options import Options, flattened
from meshwright.imports.reading import Given, Reading
from meshwright.imports.tuning import adapters
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

EDITS = {"micro_batch": "micro_train_batch_size_per_gpu"}


def is_command(program: str, words: list[str]) -> bool:
    """Whether a command trains with SkyRL, its own entry points or one that takes its fields."""
    own = {"placement.num_gpus_per_node", "micro_train_batch_size_per_gpu", "optimizer_config.lr"}
    if len(own & {word.lstrip("+").partition("=")[0] for word in words}) > 1:
        return True  # its supervised trainer, started by a program of somebody's own
    return program.startswith(("skyrl.", "skyrl_train.")) or any(
        word.lstrip("+").startswith(("trainer.policy.model.path=", "trainer.policy_mini_batch_size=")) for word in words
    )  # fmt: skip


def read_words(program: str, words: list[str], given: Given) -> Reading:
    """Return what a SkyRL command trains.

    Raises:
        SpecError: it does not train a decoder of text, or a value cannot be.
    """
    if re.search(r"inference|(?:^|[._])serve|generate$|tinker", program):
        raise SpecError("program", program, "serves; it does not train")
    options = Options(flattened(words_to_table(words)), absent=("auto", "null"))
    options.guessing = given.guess
    supervised = "sft" in program or not any(n.startswith("trainer.") for n in options.values)
    reading = Reading("SkyRL command", options=dict(EDITS))
    if options.flag("generator.vision_language_generator"):
        raise SpecError("generator.vision_language_generator", True, f"trains a vision-language model: {PLANNED}")  # fmt: skip
    reading.model = given.model
    at = "" if supervised else "trainer.policy."
    reading.model_name = options.loose(f"{at}model.path", "trainer.policy.model.path")
    if reading.model is None:
        refuse_other(reading.model_name)
    place = "placement." if supervised else "trainer.placement.policy_"
    reading.hosts = options.whole(f"{place}num_nodes", default=1) or 1
    reading.per_host = options.whole(f"{place}num_gpus_per_node", default=4 if supervised else 1)
    reading.counts_itself = options.has(f"{place}num_gpus_per_node")
    top = "" if supervised else "trainer."
    usual = 2 if supervised else 1
    reading.micro_batch = (
        options.whole(f"{top}micro_train_batch_size_per_gpu", default=usual) or usual
    )
    if supervised:
        reading.global_batch = options.whole("batch_size", default=4)
        reading.seq_len = options.whole("max_length")
    else:
        samples = options.whole("generator.n_samples_per_prompt", default=5) or 1
        reading.global_batch = (
            options.whole("trainer.policy_mini_batch_size", default=256) * samples
        )
        reading.seq_len = options.whole(
            "generator.max_input_length", "trainer.max_prompt_length", default=512
        ) + options.whole("generator.sampling_params.max_generate_length", default=1024)
        reading.guess(
            "--seq", f"sequences have at most {reading.seq_len} tokens; that is taken for all"
        )
        reading.note("the policy's training is priced, not rollouts, reference or critic")
    if "step_wise" in program:
        reading.unmodelled("program", "each of an agent's turns is a sample: how many there are is not said; a batch of whole answers is priced")  # fmt: skip
    _layout(options, reading, at, top)
    rank = options.whole(f"{at}model.lora.rank")
    if rank:
        adapters(
            reading,
            rank=rank,
            alpha=options.number(f"{at}model.lora.alpha", default=16),
            targets=options.raw(f"{at}model.lora.target_modules"),
            dropout=options.number(f"{at}model.lora.dropout"),
            option=f"{at}model.lora.target_modules",
        )
    # Both trainers take the padding out unless they are told to keep it.
    if options.flag(f"{top}use_sample_packing", f"{top}remove_microbatch_padding", default=True):
        reading.job["document_masking"] = True
    options.flag("use_sequence_packing")
    options.within = (f"{at}megatron_config.transformer_config_kwargs.",)
    options.finish(reading, "skyrl", "megatron", "common", strict=given.strict)
    return reading


def _layout(options: Options, reading: Reading, at: str, top: str) -> None:
    again = options.flag(f"{top}gradient_checkpointing", default=True)
    strategy = options.word(f"{top}strategy", default="megatron" if top == "" else "fsdp")
    if strategy == "megatron":
        get = f"{at}megatron_config."
        tp = options.whole(f"{get}tensor_model_parallel_size", default=1) or 1
        recompute = options.word(
            f"{get}transformer_config_kwargs.recompute_granularity", default="full"
        )
        reading.layout = {
            "tp": tp,
            "pp": options.whole(f"{get}pipeline_model_parallel_size", default=1) or 1,
            "cp": options.whole(f"{get}context_parallel_size", default=1) or 1,
            "ep": options.whole(f"{get}expert_model_parallel_size", default=1) or 1,
            "etp": options.whole(f"{get}expert_tensor_parallel_size", default=tp) or 1,
            "sequence_parallel": tp > 1,
            "zero": 1,
            "recompute": recompute if again and recompute in ("full", "selective") else "none",
        }
        summed = options.flag(f"{get}ddp_config.grad_reduce_in_fp32", default=True)
        reading.job = {
            "framework": "megatron",
            "precision": RECIPES["bf16-fp32-grads" if summed else "bf16"].model_dump(),
        }
        if options.flag(f"{get}optimizer_config_kwargs.optimizer_cpu_offload"):
            reading.offload.add("optimizer")
        kwargs = f"{get}transformer_config_kwargs."
        options.raw(f"{kwargs}recompute_method", f"{kwargs}recompute_num_layers")
        modules = options.raw(f"{kwargs}recompute_modules")
        if reading.layout["recompute"] == "selective" and isinstance(modules, list):
            reading.layout["recompute_modules"] = [str(one) for one in modules]
        return
    sp = options.whole(f"{at}sequence_parallel_size", default=1) or 1
    reading.layout = {"zero": 3, "cp": sp, "recompute": "full" if again else "none"}
    if sp > 1:
        reading.layout["cp_method"] = "ulysses"
    reading.shard = max(0, int(options.number(f"{at}fsdp_config.fsdp_size", default=-1)))
    if options.raw(f"{at}fsdp_config.reshard_after_forward") is False:
        reading.layout["zero"] = 2
    if options.flag(f"{at}fsdp_config.cpu_offload"):
        reading.offload |= {"optimizer", "parameters"}
    # Weights are held in 32 bits, cast to compute, and gradients summed in 32 bits unless said.
    mixed = f"{at}fsdp_config.mixed_precision."
    compute = options.word(f"{mixed}param_dtype", default="bf16")
    sent = 2 if options.word(f"{mixed}reduce_dtype", default="fp32").startswith("b") else 4
    recipe = RECIPES["bf16" if compute.startswith("b") else "fp32"]
    recipe = recipe.but(gradient_bytes=4, gradient_reduce_bytes=sent)
    reading.job = {"framework": "verl", "precision": recipe.model_dump()}
    if strategy == "deepspeed":
        _deepspeed(options, reading, f"{at}deepspeed_config.zero_optimization.")
    if not options.flag(f"{top}bf16", default=True):
        reading.unmodelled(f"{top}bf16", "what the reference and Megatron compute in; bf16 is priced")  # fmt: skip


def _deepspeed(options: Options, reading: Reading, get: str) -> None:
    """The strategy of releases up to 2025 on DeepSpeed, whose own table stands under `get`."""
    stage = options.whole(f"{get}stage", default=3)
    if stage > 3:
        raise SpecError(f"{get}stage", stage, "a stage from 0 to 3 is expected")
    reading.layout["zero"] = stage
    reading.job = {
        "framework": "deepspeed",
        "precision": RECIPES["bf16"].but(gradient_reduce_bytes=2).model_dump(),
    }
    for part, what in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        if options.word(f"{get}{part}.device") not in ("", "none"):
            reading.offload.add(what)
