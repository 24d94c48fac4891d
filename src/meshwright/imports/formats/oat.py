"""Oat's commands (online alignment and reinforcement on OpenRLHF's words): what its learners train.

Defaults are those of `OATArgs` (oat/args.py); how devices are shared is `get_program`'s (oat/interface.py).
"""

from __future__ import annotations

from meshwright.imports.formats import openrlhf
from meshwright.imports.options import Options, flags_of
from meshwright.imports.reading import Given, Reading
from meshwright.imports.tasks import name_task
from meshwright.specs.errors import SpecError
from meshwright.specs.job import RECIPES

_OWN = frozenset({
    "rollout-batch-size-per-device", "pi-buffer-maxlen-per-device", "num-gpus-per-actor", "sync-params-every", "collocate",
})  # fmt: skip
_PAIRS = frozenset({"dpo", "ipo", "simpo", "slic"})


def is_command(program: str, words: list[str]) -> bool:
    """Whether a command is oat's: one of its modules, or a program of one's own that takes its words."""
    flags = {name.replace("_", "-") for name in flags_of(words)}
    theirs = {"pretrain", "train-batch-size-per-device"} <= flags
    return program.startswith("oat.") or (theirs and bool(flags & _OWN))


def read_words(program: str, words: list[str], given: Given) -> Reading:
    """Return what the learners of a command train.

    Raises:
        SpecError: a value cannot be.
    """
    flat = {name.replace("-", "_"): value for name, value in flags_of(words).items()}
    options = Options(flat, "--", absent=("none",))
    reading = Reading("oat command", options={"micro_batch": "--train_batch_size_per_device", "zero": "--zero_stage"})  # fmt: skip
    reading.model, reading.model_name = given.model, options.loose("pretrain")
    _devices(program, options, reading)
    stage = options.whole("zero_stage", default=2)
    if stage > 3:
        raise SpecError("--zero_stage", stage, "a stage from 0 to 3 is expected")
    reading.layout = {
        "zero": stage, "recompute": "full" if options.flag("gradient_checkpointing") else "none",
    }  # fmt: skip
    for switch, kind in (("adam_offload", "optimizer"), ("model_offload", "parameters"), ("activation_offloading", "activations")):  # fmt: skip
        if options.flag(switch):
            reading.offload.add(kind)
    reading.micro_batch = options.whole("train_batch_size_per_device", default=1)
    reading.global_batch = options.whole("train_batch_size", default=128)
    reading.seq_len = options.whole("prompt_max_length", default=1024) + options.whole("generate_max_length", default=512)  # fmt: skip
    reading.guess("--seq", f"sequences have at most {reading.seq_len} tokens; that is taken for all")  # fmt: skip
    _job(options, reading)
    _task(program, options, reading)
    options.finish(reading, "oat", "openrlhf", "rl", "common", "hf", strict=given.strict)
    return reading


def _devices(program: str, options: Options, reading: Reading) -> None:
    """The learners' devices: all where they share them with the actors, else half of a group's."""
    gpus = options.whole("gpus", default=8) or 1
    if "offline" in program:  # no actors: its launcher starts the learners
        reading.devices = gpus
        options.raw("collocate")
        return
    reading.hosts = options.whole("num_groups", default=1) or 1
    reading.per_host = gpus if options.flag("collocate") else max(1, gpus - gpus // 2)
    reading.counts_itself = True
    if not options.has("gpus"):
        reading.guess("--gpus", "not set: oat takes 8 devices")


def _job(options: Options, reading: Reading) -> None:
    """Precision, optimizer and adapters; weights are loaded in the precision of the run, ZeRO keeps the wide ones."""
    half = "fp16" if options.flag("fp16") else "bf16" if options.flag("bf16", default=True) else ""
    reading.job = {"framework": "deepspeed", "precision": RECIPES[half or "fp32"].model_dump()}
    if options.word("grad_accum_dtype") == "fp32" and half:
        reading.job["precision"] |= {"gradient_bytes": 4.0}
    if not options.flag("flash_attn", default=True):
        reading.job["attention_kernel"] = "unfused"
    openrlhf.read_adapters(options, reading)


def _task(program: str, options: Options, reading: Reading) -> None:
    """What trains: pairs of two answers, one that a critic or its group scores, or supervised rows."""
    algorithm = options.word("algo", default="dpo").lower().replace("_", "-")
    rewarded = options.has("critic_type", "num_ppo_epochs") or "ppo" in program or "math" in program
    if rewarded or algorithm == "ppo":
        critic = options.word("critic_type", default="drgrpo")
        reading.note("the learner's training is priced, not rollouts, reference or critic")
        if critic == "ppo":
            reading.unmodelled("--critic_type", "a critic trains, too; the policy is priced")
    elif algorithm.removeprefix("lr-") in _PAIRS:
        name_task(reading, "simpo" if algorithm == "slic" else algorithm.removeprefix("lr-"))
