"""Run an exported fine-tuning file for a few steps by its own tool, and write what the tool reports.

    torchrun … benchmarks/export_tuning_run.py TARGET REPORT.json LOSSES.json STEPS [words of the script…]

Started by export_runs.py in the export's folder. The words are those of the exported run.sh. What
stands in: a two-layer checkpoint with random weights and 256 byte tokens under the model's name, a
hundred rows under the data set's name, the CPU for the device and PyTorch's attention for
FlashAttention. Batches, sharding, adapters and recomputation are the files', read from the tool's
own trainer while it runs.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import runpy
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import export_probe
import export_verl_run

FOUND = export_probe.FOUND
LOSSES: list[float] = []
TEXT = "every plan that is exported trains what was priced "


def checkpoint(folder: Path, target: str) -> None:
    """A two-layer model of the file's name with a byte-level tokenizer beside it.

    torchtune builds the named model's whole vocabulary. Elsewhere the words are the tokenizer's: TRL's loss
    goes over tiles of the vocabulary in PyTorch where there is no Triton, minutes a step at 151,936 words.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate(alphabet)}
    plain = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = "{% for one in messages %}<|im_start|>{{ one['role'] }}\n{{ one['content'] }}<|im_end|>\n{% endfor %}"
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=151936 if target == "torchtune" else 320, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n")


DATA = {
    "trl": "roneneldan/TinyStories", "axolotl": "tatsu-lab/alpaca", "llama-factory": "tatsu-lab/alpaca",
    "torchtune": "yahma/alpaca-cleaned", "verl": "train.parquet",
}  # fmt: skip
"""What whoever launches fills in for each tool: a folder of made-up rows by the name of a data set."""


def rows(folder: Path) -> None:
    """A hundred short rows in the columns that each tool's example data has."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.jsonl").open("w") as file:
        for number in range(100):
            answer = TEXT * 4 + str(number)
            row = {"instruction": "why?", "input": "", "output": answer}
            if "Stories" in str(folder):
                row = {"text": answer}
            file.write(json.dumps(row) + "\n")


def prepare(folder: Path, target: str, model: str) -> None:
    """The checkpoint and the data sets that an exported file names, where its tool looks first."""
    checkpoint(folder / model, target)
    if target == "verl":
        export_verl_run.conversations(folder / DATA[target], TEXT)
    else:
        rows(folder / DATA[target])


def watch_transformers() -> None:
    """What a Trainer of transformers, or one built on it, says of itself when it starts to train."""
    import transformers

    export_probe._shard_on_cpu()
    if Path("deepspeed.json").is_file():
        # Told a CPU, transformers starts PyTorch's processes and leaves DeepSpeed's to themselves.
        import deepspeed

        deepspeed.init_distributed("gloo")
    real = transformers.Trainer.train

    def train(trainer: Any, *args: Any, **words: Any) -> Any:
        made = real(trainer, *args, **words)
        engine = getattr(trainer, "deepspeed", None)
        plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
        model = trainer.accelerator.unwrap_model(trainer.model)
        adapters = getattr(model, "peft_config", None)
        stage = 0 if plugin is None else 3 if plugin.reshard_after_forward else 2
        FOUND.update(
            dp=trainer.accelerator.num_processes,
            micro_batch=trainer.args.train_batch_size,
            accumulation=trainer.args.gradient_accumulation_steps,
            zero=engine.zero_optimization_stage() if engine is not None else stage,
            recompute="full" if model.is_gradient_checkpointing else "none",
            rank=next(iter(adapters.values())).r if adapters else 0,
        )
        LOSSES.extend(one["loss"] for one in trainer.state.log_history if "loss" in one)
        return made

    transformers.Trainer.train = train


def watch_axolotl() -> None:
    """As every Trainer; and a rank's device has no number, by which axolotl names it, on a CPU."""
    watch_transformers()
    import torch
    from axolotl import train
    from axolotl.loaders.model import ModelLoader

    torch.cuda.set_device = lambda device: None
    # Told a CPU, transformers takes shards for whole weights when it saves the last ones.
    train.save_trained_model = lambda *_: None

    real = ModelLoader._set_device_map_config

    def placed(loader: Any) -> None:
        loader.cfg.device_map = None
        real(loader)

    ModelLoader._set_device_map_config = placed


UNUSED = {"llama-factory": "torchaudio", "axolotl": "wandb"}
"""What a tool imports at its top, to read sound or to report a run elsewhere, and no run here needs."""


def without_unused(target: str) -> None:
    """A stand-in for such a module, where it is not installed."""
    name = UNUSED.get(target)
    if name is not None and importlib.util.find_spec(name) is None:
        unused = types.ModuleType(name)
        unused.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = unused


def watch_torchtune() -> None:
    """The recipe's own attributes, and its models' builders at the width of the checkpoint."""
    import torch
    import torch.distributed as dist
    from torchtune import training
    from torchtune.models.qwen2_5 import _model_builders as builders
    from torchtune.modules.peft import get_adapter_params
    from torchtune.training import metric_logging

    torch.cpu.empty_cache = torch.cpu.reset_peak_memory_stats = lambda: None
    training.get_memory_stats = lambda device: {}  # it refuses to count a CPU's
    training.log_memory_stats = lambda stats: None
    narrow = {
        "num_layers": 2, "embed_dim": 64, "intermediate_dim": 96, "num_heads": 8,
        "num_kv_heads": 4, "tie_word_embeddings": True,
    }  # fmt: skip
    for name in ("qwen2", "lora_qwen2"):
        real = getattr(builders, name)
        setattr(builders, name, lambda *a, _real=real, **w: _real(*a, **{**w, **narrow}))
    logged = metric_logging.StdoutLogger.log_dict

    def log(self: Any, payload: Any, step: int) -> None:
        LOSSES.append(float(payload["loss"]))
        logged(self, payload, step)

    metric_logging.StdoutLogger.log_dict = log

    def done(module: dict[str, Any]) -> None:
        # The LoRA recipe asks for NCCL beside gloo, whatever its device is.
        module["init_process_group"] = lambda *_: dist.init_process_group("gloo")
        kind = next(one for name, one in module.items() if name.endswith("RecipeDistributed"))
        real = kind.train

        def train(recipe: Any) -> None:
            real(recipe)
            adapters = get_adapter_params(recipe._model)
            lora = [one for name, one in adapters.items() if name.endswith("lora_a.weight")]
            FOUND.update(
                dp=getattr(recipe, "dp_degree", None) or recipe.world_size,
                micro_batch=recipe._dataloader.batch_size,
                accumulation=recipe._gradient_accumulation_steps,
                zero=3 if any(hasattr(p, "placements") for p in recipe._model.parameters()) else 0,
                recompute="full" if recipe._enable_activation_checkpointing else "none",
                rank=lora[0].shape[0] if lora else 0,
            )

        kind.train = train

    FOUND["_after_import"] = done


def run_as_file(path: str) -> None:
    """A recipe that is a file: its classes are watched once it has defined them."""
    spec = importlib.util.spec_from_file_location("recipe_of_torchtune", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["recipe_of_torchtune"] = module
    spec.loader.exec_module(module)
    FOUND.pop("_after_import")(vars(module))
    sys.exit(module.recipe_main())


HERE: dict[str, Callable[[int], list[str]]] = {
    "trl": lambda steps: [
        "--use_cpu", "true", "--max_steps", str(steps), "--save_strategy", "no", "--logging_steps", "1",
        "--report_to", "none", "--attn_implementation", "eager",
    ],
    "axolotl": lambda steps: [
        f"--max-steps={steps}", "--bf16=false", "--attn-implementation=sdpa", "--logging-steps=1",
    ],
    "llama-factory": lambda steps: [
        "use_cpu=true", f"max_steps={steps}", "save_strategy='no'", "logging_steps=1", "report_to=none",
        "flash_attn=sdpa", "bf16=false",
    ],
    "torchtune": lambda steps: [
        "device=cpu", "dtype=fp32", f"max_steps_per_epoch={steps}", "log_peak_memory_stats=false",
        "checkpointer.checkpoint_dir=Qwen/Qwen2.5-0.5B", "tokenizer.path=Qwen/Qwen2.5-0.5B/vocab.json",
        "tokenizer.merges_file=Qwen/Qwen2.5-0.5B/merges.txt",
    ],
    "verl": lambda steps: [f"trainer.total_training_steps={steps}", *export_verl_run.WORDS],
}  # fmt: skip
"""Each tool's own words for the CPU and a short run; they follow the script's, as a user's would."""
WATCHES = {
    "trl": watch_transformers, "axolotl": watch_axolotl, "llama-factory": watch_transformers,
    "torchtune": watch_torchtune, "verl": lambda: export_verl_run.watch(LOSSES),
}  # fmt: skip


def main() -> None:
    """Watch, run the tool as the script does, write what was seen."""
    target, report, losses, steps, *words = sys.argv[1:]
    without_unused(target)
    WATCHES[target]()
    words += HERE[target](int(steps))
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            run_as_file(words[0])
    except SystemExit as end:
        if end.code:
            raise
    if os.environ.get("RANK", "0") == "0":
        FOUND["world"] = int(os.environ.get("WORLD_SIZE", "1"))
        Path(report).write_text(json.dumps(FOUND))
        Path(losses).write_text(json.dumps(LOSSES))


if __name__ == "__main__":
    main()
