"""torchtitan: a plan as a recipe function (its TOML files are gone since February 2026).

Follows torchtitan 0.3.0: `torchtitan/config/configs.py` and the config registries of its models.
The recipe starts from a registered model; `torchtitan_read` reads one back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.exports.bundle import comment, learning_rate, steps, warmup
from meshwright.exports.canonical import canonical, even_split
from meshwright.exports.inputs import SAVED_EVERY, TEXTS
from meshwright.exports.limit_rules import Problem
from meshwright.exports.limits import Limits
from meshwright.exports.model_names import repository
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.job_words import without_master
from meshwright.specs.model import Model
from meshwright.specs.models import load_model
from meshwright.specs.plan import Plan

SCHEDULES = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS", "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV",
}  # fmt: skip
LOOPED = ("interleaved", "looped-bfs", "zb-v", "dualpipe-v")
FLAVORS: dict[tuple[int, int, int], tuple[str, str, str]] = {
    # (layers, hidden, vocabulary) → module, flavor, our preset. From each model's registry.
    (16, 2048, 128256): ("llama3", "1B", "llama3.2-1b"),
    (28, 3072, 128256): ("llama3", "3B", "llama3.2-3b"),
    (32, 4096, 128256): ("llama3", "8B", "llama3.1-8b"),
    (80, 8192, 128256): ("llama3", "70B", "llama3.1-70b"),
    (126, 16384, 128256): ("llama3", "405B", "llama3.1-405b"),
    (28, 1024, 151936): ("qwen3", "0.6B", "qwen3-0.6b"),
    (28, 2048, 151936): ("qwen3", "1.7B", "qwen3-1.7b"),
    (36, 2560, 151936): ("qwen3", "4B", "qwen3-4b"),
    (36, 4096, 151936): ("qwen3", "8B", "qwen3-8b"),
    (40, 5120, 151936): ("qwen3", "14B", "qwen3-14b"),
    (64, 5120, 151936): ("qwen3", "32B", "qwen3-32b"),
    (48, 2048, 151936): ("qwen3", "30B-A3B", "qwen3-30b-a3b"),
    (94, 4096, 151936): ("qwen3", "235B-A22B", "qwen3-235b-a22b"),
    (27, 2048, 102400): ("deepseek_v3", "16B", "deepseek-v2-lite"),
    (60, 5120, 102400): ("deepseek_v3", "236B", "deepseek-v2"),
    (61, 7168, 129280): ("deepseek_v3", "671B", "deepseek-v3"),
    (24, 2880, 201088): ("gpt_oss", "20b", "gpt-oss-20b"),
    (36, 2880, 201088): ("gpt_oss", "120b", "gpt-oss-120b"),
}


def flavor(model: Model) -> tuple[str, str] | None:
    """The registered (module, flavor) with a model's shape, if any."""
    found = FLAVORS.get((model.layers, model.hidden, model.vocab))
    return found[:2] if found else None


_NOT_ARCHITECTURE = frozenset(
    {"name", "source", "family", "numerics", "counted_parameters", "max_positions"}
)


def _problems(model: Model) -> Iterator[Problem]:
    """A model that is not registered, or whose shape is but not the rest of its architecture."""
    found = FLAVORS.get((model.layers, model.hidden, model.vocab))
    if found is None:
        names = ", ".join(f"{m} {f}" for m, f, _ in FLAVORS.values())
        yield Problem("model", model.name, f"has the registered models {names}")
        return
    registered = load_model(found[2])
    for name in type(model).model_fields:
        mine, theirs = getattr(model, name), getattr(registered, name)
        if name not in _NOT_ARCHITECTURE and mine != theirs:
            yield Problem(f"model.{name}", mine, f"registers {found[2]} with {name} {theirs!r}")
            return


_REACH = {"llama3": 131_072, "qwen3": 40_960, "deepseek_v3": 16_384, "gpt_oss": 131_072}
"""Tokens that the rotary tables of a registered family reach (`max_seq_len` in models/*/__init__.py)."""


def _asked(model: Model, job: Job, cluster: Cluster) -> Iterator[Problem]:
    found = FLAVORS.get((model.layers, model.hidden, model.vocab))
    reach = _REACH[found[0]] if found is not None else job.seq_len
    if job.seq_len > reach:
        yield Problem("job.seq_len", job.seq_len, f"registers this model for {reach:,} tokens")
    compute = job.precision.compute
    if found is not None and found[0] == "gpt_oss" and compute in ("fp32", "tf32"):
        # models/gpt_oss/moe.py: experts' weights are cast for their products, their sums with a bias are not.
        yield Problem("job.precision", compute, "multiplies this model's experts in bf16 alone")


LIMITS = Limits("torchtitan", "torchtitan", _problems, asked=_asked)
VERSION = LIMITS.can.checked


def parallelism(plan: Plan) -> dict[str, Any]:
    """Keyword arguments of `ParallelismConfig`."""
    layout, model = canonical(plan.layout, plan.model), plan.model
    degree = layout.shard_degree
    fields: dict[str, Any] = {
        "data_parallel_replicate_degree": layout.dp * layout.cp // degree,
        "data_parallel_shard_degree": max(1, degree // layout.cp),
        "tensor_parallel_degree": layout.tp,
        "enable_sequence_parallel": layout.sequence_parallel,
        "pipeline_parallel_degree": layout.pp,
        "context_parallel_degree": layout.cp,
        "expert_parallel_degree": layout.ep,
        # torchtitan's default, spmd_types, needs a nightly torch: fully_shard of a release refuses its
        # plain parameters. This one is in 0.3.0 and in its successor.
        "spmd_backend": "partial_dtensor",
    }
    if layout.zero == 0:
        fields["data_parallel_replicate_degree"] = layout.dp
        fields["data_parallel_shard_degree"] = 1
    else:
        fields["fsdp_reshard_after_forward"] = "always" if layout.zero == 3 else "never"
    if layout.pp > 1:
        fields["pipeline_parallel_schedule"] = SCHEDULES[layout.schedule]
        fields["pipeline_parallel_microbatch_size"] = layout.micro_batch
        stages = layout.pp * layout.virtual_stages
        if layout.stage_layers is None and model.layers % stages == 0:
            fields["pipeline_parallel_first_stage_less_layers"] = 0
            fields["pipeline_parallel_last_stage_less_layers"] = 0
            fields["pipeline_parallel_layers_per_stage"] = model.layers // stages
        else:
            split = layout.stage_layers or even_split(
                model.layers, layout.pp, layout.virtual_stages
            )
            fields["module_fqns_per_model_part"] = stage_modules(split)
    return fields


def stage_modules(split: tuple[int, ...]) -> list[list[str]]:
    """Names of the modules of each stage."""
    stages, start = [], 0
    for layers in split:
        stages.append([f"layers.{index}" for index in range(start, start + layers)])
        start += layers
    stages[0].insert(0, "tok_embeddings")
    stages[-1] += ["norm", "lm_head"]
    return stages


def training(plan: Plan) -> dict[str, Any]:
    """Keyword arguments of `TrainingConfig`."""
    layout, job = canonical(plan.layout, plan.model), plan.job
    local = job.global_batch // layout.dp if layout.pp > 1 else layout.micro_batch
    fields: dict[str, Any] = {
        "local_batch_size": local,
        "global_batch_size": job.global_batch,
        "seq_len": job.seq_len,
        "steps": steps(job),
        # All of them in 16 bits: weights, gradients and moments.
        **({"dtype": "bfloat16"} if without_master(job) else {}),
        "mixed_precision_param": "float32" if job.precision.compute == "fp32" else "bfloat16",
        "mixed_precision_reduce": "float32",
    }
    if "parameters" in layout.offload:
        fields["enable_cpu_offload"] = True
    if layout.pp > 1 or layout.ep > 1:
        # Its own validation: no CUDA graphs with a pipeline, nor with token dispatchers that wait
        # for the host.
        fields["disable_cuda_graphs"] = True
    return fields


def notes(plan: Plan) -> tuple[str, ...]:
    """What torchtitan does otherwise than the plan priced, without changing the layout."""
    precision = plan.job.precision
    # Its own reader numbers positions inside each document, by which its attention is masked.
    told = (
        "attention stays inside each document: less work than the plan priced where they are "
        "shorter than a sequence",
    )
    if precision.compute == "fp32" or precision.gradient_reduce_bytes >= 4:
        return told
    return (
        *told,
        f"torchtitan reduces gradients in fp32, 4 bytes each; the plan priced "
        f"{precision.gradient_reduce_bytes:g} (plan with --framework torchtitan)",
    )


_RECIPE = '''"""A torchtitan recipe: python -m torchtitan.train --module recipe --config recipe"""

{stamp}

import os
import random

from datasets import Dataset, load_dataset
from huggingface_hub import snapshot_download
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
{imports}from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.{module} import model_registry
from torchtitan.trainer import Trainer


def tokenizer() -> str:
    """The folder of tokenizer.json: HF_ASSETS_PATH, else the model's own (a gated one asks for HF_TOKEN)."""
    folder = os.environ.get("HF_ASSETS_PATH")
    return folder or snapshot_download({repository!r}, allow_patterns=["tokenizer*"])


def texts(data):
    """Documents with a text each: of a data set of the hub (NAME, or NAME:CONFIGURATION), of JSON lines, or made up."""
    if data == "mock":
        numbers = random.Random(0)
        rows = [" ".join(str(numbers.randrange(10**6)) for _ in range(1000)) for _ in range(4096)]
        return Dataset.from_dict({{"text": rows}})
    if data.endswith((".json", ".jsonl", ".gz", ".zst")):
        return load_dataset("json", data_files=data.split(), split="train", streaming=True)
    name, _, configuration = data.partition(":")
    return load_dataset(name, configuration or None, split="train", streaming=True)


def dataloader() -> HuggingFaceTextDataLoader.Config:
    """What DATA names, by torchtitan's own reader, which goes on where a checkpoint was made."""
    data = os.environ.get("DATA")
    if not data:
        raise SystemExit("DATA: is not set: {asked}, or mock")
    DATASETS["data"] = DatasetConfig(path=data, loader=texts, sample_processor=lambda row: row["text"])
    return HuggingFaceTextDataLoader.Config(dataset="data")


def checkpoint() -> CheckpointManager.Config:
    """Every {saved} steps into CHECKPOINTS, whose newest one is read first."""
    folder = os.environ.get("CHECKPOINTS", "none")
    if folder in ("", "none"):
        return CheckpointManager.Config(enable=False)
    return CheckpointManager.Config(
        enable=True, folder=folder, interval={saved}, keep_latest_k=2, last_save_model_only=False
    )


def recipe() -> Trainer.Config:
    """The plan as torchtitan's configuration."""
    model_spec = model_registry({registered})
    return Trainer.Config(
        loss={loss},
        model_spec=model_spec,
        hf_assets_path=tokenizer(),
        optimizer=default_adamw(lr={rate}),
        lr_scheduler=LRSchedulersContainer.Config(
            warmup_steps={warmup}, decay_type="cosine", min_lr_factor=0.1
        ),
        dataloader=dataloader(),
        checkpoint=checkpoint(),
        training=TrainingConfig(
{training}
        ),
        parallelism=ParallelismConfig(
{parallelism}
        ),
        activation_checkpoint={checkpoint},
        compile=CompileConfig({compile}),
    )
'''
_LOSS_FN = "CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))"
_LOSS = "ChunkedLossWrapper.Config({})"
_CHECKPOINT = {"full": "FullAC.Config()", "selective": "SelectiveAC.Config()", "none": "None"}


def _compiled(model: Model, fp8: bool) -> str:
    """Plans are priced with compiled blocks and a compiled loss, which never holds logits in fp32.

    Of mixtures only the loss, as torchtitan's own recipe of DeepSeek-V3 has it; float8 needs the blocks.
    """
    return "enable=True" if fp8 or not model.experts else 'enable=True, components=["loss"]'


def _published(model: Model) -> str:
    """Where the tokenizer of a registered model lies: the model's own place, else that of our preset."""
    preset = FLAVORS[model.layers, model.hidden, model.vocab][2]
    return repository(model) or repository(load_model(preset)) or preset


def files(plan: Plan, command: str) -> dict[str, str]:
    """`recipe.py`, found when torchtitan starts in its folder."""
    layout = canonical(plan.layout, plan.model)
    registered = flavor(plan.model)
    if registered is None:
        raise SpecError(
            "model", plan.model.name, "torchtitan has no registered model of this shape"
        )
    fp8 = plan.job.precision.compute == "fp8"
    call = f'"{registered[1]}"'
    if registered[0] == "gpt_oss" and layout.cp > 1:
        # Its default, attention of variable length, is not split over ranks (distributed/context_parallel/api.py).
        call += ', attn_backend="flex"'
    if fp8:
        call += (
            ',\n        converters=[Float8LinearConverter.Config(filter_fqns=["lm_head"], '
            "model_compile_enabled=True)],\n    "
        )

    def arguments(fields: dict[str, Any]) -> str:
        return "\n".join(f"            {name}={value!r}," for name, value in fields.items())

    text = _RECIPE.format(
        stamp=comment(plan, command, f"torchtitan {VERSION}").rstrip(),
        imports="from torchtitan.components.quantization import Float8LinearConverter\n"
        if fp8
        else "",
        module=registered[0],
        rate=learning_rate(plan.job),
        warmup=warmup(plan.job),
        asked=TEXTS,
        saved=SAVED_EVERY,
        registered=call,
        repository=_published(plan.model),
        training=arguments(training(plan)),
        parallelism=arguments(parallelism(plan)),
        checkpoint=_CHECKPOINT[layout.recompute],
        compile=_compiled(plan.model, fp8),
        loss=_LOSS.format(f"\n            loss_fn={_LOSS_FN},\n        ")
        if plan.job.loss == "chunked"
        else _LOSS_FN,
    )
    return {"recipe.py": text}
