"""Run as a program: the config parsers of packages that import CUDA kernels, on a machine without.

    python cuda_only_parsers.py nanotron|megatron-bridge|megatron-bridge-recipe|maxtext|trl|axolotl|llama-factory|torchtune FOLDER FILE...

Packages that only training needs are stood in for; the configuration code is the package's own.
Prints a JSON list with what it understood of each file, or {"error": …}.
"""

import importlib.abc
import importlib.machinery
import json
import sys
import types
import typing
from pathlib import Path
from unittest.mock import MagicMock

NEEDED_TO_TRAIN = {
    "nanotron": ("datasets", "flash_attn", "lighteval", "triton"),
    "megatron-bridge": (
        "causal_conv1d", "datasets", "fla", "flash_attn", "mamba_ssm", "megatron.core.inference",
        "mlflow", "nltk", "nvidia_resiliency_ext", "open_clip", "qwen_vl_utils", "sentencepiece",
        "six", "tiktoken", "timm", "transformer_engine", "wandb",
    ),
    "megatron-bridge-recipe": (
        "causal_conv1d", "comet_ml", "datasets", "diffusers", "emerging_optimizers", "fast_hadamard_transform", "fla",
        "flash_attn", "mamba_ssm", "megatron.energon", "mlflow", "modelopt", "nltk", "nvidia_resiliency_ext", "open_clip",
        "qwen_vl_utils", "sentencepiece", "tiktoken", "timm", "transformer_engine", "transformer_engine_torch", "triton", "wandb",
    ),
    "maxtext": ("pathwaysutils",),
    "trl": (), "axolotl": ("axolotl.integrations", "bitsandbytes", "fla"), "llama-factory": ("trl",),
    "torchtune": ("blobfile", "kagglehub", "sentencepiece", "tiktoken", "torchao", "torchvision"),
}  # fmt: skip

BESIDE = {
    # Folders of `make validate-more` with what a package's configuration imports beside itself.
    "maxtext": ("maxtext-needs",), "megatron-bridge": ("megatron-core-0.16.1", "triton-3.6.0"),
    "megatron-bridge-recipe": ("megatron-bridge-0.3.1",), "trl": ("torchtitan-needs",), "torchtune": ("torchtitan-needs", "tuning-needs"),
    "axolotl": ("tuning-needs",), "llama-factory": ("torchtitan-needs", "tuning-needs"),
}  # fmt: skip


class StandIn(types.ModuleType):
    """A package of which every name exists and does nothing."""

    __path__ = ()
    __version__ = "2.8.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if not name[:1].isupper() or name.isupper():  # a function, a module or a constant
            return MagicMock(name=name)
        # Others build classes on it, of several such parents perhaps: each name is one class.
        setattr(self, name, type(name, (), {"__init__": lambda self, *args, **words: None}))
        return self.__dict__[name]


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for the named packages and all inside them."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if any(name == known or name.startswith(f"{known}.") for known in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def nanotron(text):
    """`run_train.py --config-file`: the YAML through its dataclasses."""
    import yaml
    from nanotron.config import Config, get_config_from_dict

    read = get_config_from_dict(yaml.safe_load(text), config_class=Config)
    split, tokens = read.parallelism, read.tokens
    return {
        "dp": split.dp, "tp": split.tp, "pp": split.pp, "zero": read.optimizer.zero_stage,
        "sequence_parallel": split.tp_mode.name == "REDUCE_SCATTER",
        "full_recompute": split.recompute_layer, "engine": type(split.pp_engine).__name__,
        "global_batch": tokens.micro_batch_size * tokens.batch_accumulation_per_replica * split.dp,
        "layers": read.model.model_config.num_hidden_layers,
    }  # fmt: skip


def megatron_bridge(text):
    """`run_recipe.py`: the overrides, as JSON list, onto the defaults that vanilla_gpt takes."""
    from megatron.bridge.models import GPTModelProvider
    from megatron.bridge.models.mla_provider import MLAModelProvider
    from megatron.bridge.training import config as bridge
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    given = json.loads(text)
    latent = any("kv_lora_rank" in one for one in given)
    recipe = bridge.ConfigContainer(
        model=(MLAModelProvider if latent else GPTModelProvider)(),
        train=bridge.TrainingConfig(train_iters=1, global_batch_size=32, micro_batch_size=2),
        optimizer=bridge.OptimizerConfig(optimizer="adam", lr=3e-4),
        scheduler=bridge.SchedulerConfig(lr_decay_style="cosine"),
        ddp=bridge.DistributedDataParallelConfig(),
        dataset=bridge.GPTDatasetConfig(
            random_seed=1, seq_length=1024, blend=None, blend_per_split=None, split="9999,8,2",
            dataloader_type="single", reset_position_ids=False, reset_attention_mask=False,
            eod_mask_loss=False,
        ),
        logger=bridge.LoggerConfig(),
        tokenizer=bridge.TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=1000),
        checkpoint=bridge.CheckpointConfig(ckpt_format="torch_dist"),
        rng=bridge.RNGConfig(), dist=bridge.DistributedInitConfig(), mixed_precision="bf16_mixed",
    )  # fmt: skip
    read = process_config_with_overrides(recipe, cli_overrides=given)
    model = read.model
    return {
        "tp": model.tensor_model_parallel_size, "pp": model.pipeline_model_parallel_size,
        "cp": model.context_parallel_size, "ep": model.expert_model_parallel_size,
        "sequence_parallel": model.sequence_parallel, "recompute": model.recompute_granularity,
        "virtual": model.virtual_pipeline_model_parallel_size, "layers": model.num_layers,
        "distributed_optimizer": read.ddp.use_distributed_optimizer,
        "micro_batch": read.train.micro_batch_size, "global_batch": read.train.global_batch_size,
    }  # fmt: skip


def megatron_bridge_recipe(text):
    """`scripts/training/run_recipe.py` up to where it trains: the recipe is made, overridden, finalised and validated.

    The text is a JSON object: the words after the program's name and how many ranks there are. The recipe of
    DeepSeek-V3 asks the hub for its model's shape: transformers' own default is that shape.
    """
    import os

    import torch

    # It asks the device for its kind, as an H100 would answer.
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0)
    import run_recipe as program
    from megatron.bridge import AutoBridge
    from megatron.bridge.training.config import runtime_config_update
    from transformers import DeepseekV3Config

    def of_the_hub(name, **_):
        if name != "deepseek-ai/DeepSeek-V3":
            raise ValueError(f"no recipe of ours reads {name}")
        shape = DeepseekV3Config(architectures=["DeepseekV3ForCausalLM"], torch_dtype="bfloat16")
        return AutoBridge.from_hf_config(shape)

    AutoBridge.from_hf_pretrained = staticmethod(of_the_hub)
    asked = json.loads(text)
    os.environ |= {"WORLD_SIZE": str(asked["world"]), "RANK": "0"}
    arguments, given = program.parse_args(asked["words"])
    read = program._load_selected_recipe(arguments)
    read = program._apply_dataset(read, arguments)
    read = program.apply_cli_overrides(read, given)
    read = program.sync_model_pipeline_layout(read, cli_overrides=given)
    read = program.apply_runtime_environment(read)
    read = program.sync_model_dataset_sequence_length(read)
    runtime_config_update(read)
    model, ddp = read.model, read.ddp
    layout = model.pipeline_model_parallel_layout
    return {
        "dp": read.data_parallel_size, "tp": model.tensor_model_parallel_size, "pp": model.pipeline_model_parallel_size,
        "cp": model.context_parallel_size, "ep": model.expert_model_parallel_size,
        "sequence_parallel": model.sequence_parallel, "recompute": model.recompute_granularity,
        "virtual": model.virtual_pipeline_model_parallel_size, "layers": model.num_layers,
        "uneven": layout is not None, "vocab": model.vocab_size, "tokenizer_vocab": read.tokenizer.vocab_size,
        "distributed_optimizer": ddp.use_distributed_optimizer, "sharding": ddp.data_parallel_sharding_strategy,
        "overlaps": [ddp.overlap_grad_reduce, ddp.overlap_param_gather],
        "micro_batch": read.train.micro_batch_size, "global_batch": read.train.global_batch_size,
        "seq_len": [model.seq_length, read.dataset.seq_length], "mask": read.dataset.create_attention_mask,
        "fused": [model.bias_activation_fusion, model.bias_dropout_fusion, model.apply_rope_fusion],
        "graphs": model.cuda_graph_impl, "further": model.mtp_num_layers,
        "precise": read.optimizer.use_precision_aware_optimizer, "linear_scaling": model.seq_len_interpolation_factor,
        "yarn": model.yarn_rotary_scaling_factor if model.position_embedding_type == "yarn" else None,
    }  # fmt: skip


def maxtext(text):
    """`maxtext.trainers.pre_train.train FILE`: its YAML over base.yml, through its own checks.

    The first line says for how many devices; nothing here has a TPU.
    """
    import contextlib
    import io
    import tempfile

    from maxtext.configs import pyconfig

    count, text = text.split("\n", 1)
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        file.write(text)
        file.flush()
        with contextlib.redirect_stdout(io.StringIO()):
            read = pyconfig.initialize_pydantic(
                ["", file.name, "internal_compile=True", f"internal_compile_num_devices={count}"]
            )
    degrees = dict(zip(read.mesh_axes, read.ici_parallelism, strict=True))
    return {
        "axes": {axis: degrees[axis] for axis in ("data", "fsdp", "tensor", "context", "expert")},
        "others": sorted({size for axis, size in degrees.items() if axis not in (
            "data", "fsdp", "tensor", "context", "expert")}),
        "global_batch": read.global_batch_size_to_train_on,
        "micro_batches": read.micro_batch_size_to_train_on and
        read.global_batch_size_to_train_on // read.micro_batch_size_to_train_on,
        "zero1": read.shard_optimizer_over_data, "layers": read.num_decoder_layers,
        "hidden": read.emb_dim, "seq_len": read.max_target_length,
    }  # fmt: skip


def trl(text):
    """`trl sft --config FILE`: its parser over the script's, SFTConfig's and the model's arguments."""
    import tempfile

    from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser

    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        # No device here: neither its 16-bit arithmetic nor the launcher's shards can be asked for.
        here = ["--use_cpu", "true", "--bf16", "false", "--deepspeed", ""]
        _, read, model = TrlParser((ScriptArguments, SFTConfig, ModelConfig)).parse_args_and_config(
            ["--config", file.name, *here]
        )
    return {
        "micro_batch": read.per_device_train_batch_size, "accumulation": read.gradient_accumulation_steps,
        "seq_len": read.max_length, "rank": model.lora_r if model.use_peft else 0,
        "recompute": bool(read.gradient_checkpointing), "masked": read.padding_free,
    }  # fmt: skip


def axolotl(text):
    """`axolotl train FILE`: its input configuration, which keeps what it does not know in silence."""
    import yaml
    from axolotl.utils.schemas.config import AxolotlInputConfig

    data = yaml.safe_load(text)
    if strange := sorted(set(data) - set(AxolotlInputConfig.model_fields)):
        raise ValueError(f"no field of axolotl: {', '.join(strange)}")
    read = AxolotlInputConfig(**data)
    return {
        "micro_batch": read.micro_batch_size, "accumulation": read.gradient_accumulation_steps,
        "seq_len": read.sequence_len, "rank": read.lora_r if read.adapter else 0,
        "recompute": bool(read.gradient_checkpointing), "masked": read.sample_packing,
    }  # fmt: skip


def llama_factory(text):
    """`llamafactory-cli train FILE`: its five tables of arguments, with its own checks."""
    import os

    import yaml

    os.environ["DISABLE_VERSION_CHECK"] = "1"  # of transformers newer than it names
    from llamafactory.hparams import get_train_args

    data = yaml.safe_load(text) | {"bf16": False, "use_cpu": True}
    data.pop("deepspeed", None)
    model, rows, read, tune, _ = get_train_args(data)
    return {
        "micro_batch": read.per_device_train_batch_size, "accumulation": read.gradient_accumulation_steps,
        # It cuts packed rows one token shorter and pads them back.
        "seq_len": rows.cutoff_len + bool(rows.packing),
        "rank": tune.lora_rank if tune.finetuning_type == "lora" else 0,
        "recompute": not model.disable_gradient_checkpointing, "masked": rows.neat_packing,
    }  # fmt: skip


def torchtune(text):
    """`tune validate FILE`: every component exists and takes its arguments."""
    from omegaconf import OmegaConf
    from torchtune.config._validate import validate

    read = OmegaConf.create(text)
    validate(read)
    return {
        "micro_batch": read.batch_size, "accumulation": read.gradient_accumulation_steps,
        "seq_len": read.tokenizer.max_seq_len, "rank": read.model.get("lora_rank", 0),
        "recompute": read.enable_activation_checkpointing, "masked": read.dataset.packed,
    }  # fmt: skip


def main():
    which, packages, *files = sys.argv[1:]
    sys.meta_path.insert(0, StandIns(NEEDED_TO_TRAIN[which]))
    if which == "megatron-bridge-recipe":
        inside = ("src", "scripts/training", "scripts/common", "3rdparty/Megatron-LM")
        sys.path[:0] = [f"{packages}/{name}" for name in inside]
        if not hasattr(typing, "override"):  # as Python 3.12, which it asks for, has it
            typing.override = lambda function: function
    sys.path.insert(0, packages)
    sys.path += [f"{Path(packages).parent}/{name}" for name in BESIDE.get(which, ())]
    parse = {
        "nanotron": nanotron, "megatron-bridge": megatron_bridge,
        "megatron-bridge-recipe": megatron_bridge_recipe, "maxtext": maxtext, "trl": trl,
        "axolotl": axolotl, "llama-factory": llama_factory, "torchtune": torchtune,
    }[which]  # fmt: skip
    answers = []
    for file in files:
        try:
            answers.append(parse(Path(file).read_text()))
        except Exception as error:
            answers.append({"error": f"{type(error).__name__}: {error}"})
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
