"""Run an exported Megatron-LM command for a few steps under Megatron-Core, and write what it reports.

    torchrun … benchmarks/export_megatron_run.py REPORT.json LOSSES.json STEPS     (started by export_runs.py)

The words are those of `run.sh` in this folder. Megatron's own parser and validation read them, its
`core_transformer_config_from_args` makes the model's configuration, and its layers, groups, schedules,
reductions and optimizer run. What stands in, as in prove_megatron_run.py: the CPU for a device, Megatron's
own layers without Transformer Engine, random tokens instead of its data loaders and training loop.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import prove_megatron_run as stand_ins

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/exports/validators"))
import megatron_arguments

LOCAL = (
    "--transformer-impl local --no-persist-layer-norm --no-masked-softmax-fusion --no-bias-swiglu-fusion "
    "--no-bias-dropout-fusion --no-rope-fusion --no-gradient-accumulation-fusion --use-cpu-initialization "
    "--distributed-backend gloo --attention-backend unfused"
)
"""What a machine without CUDA kernels says beside the exported words; none of it is of the layout."""


def words_of(script: str) -> list[str]:
    """The words after the program that an exported `run.sh` starts, less the choice of a CUDA attention."""
    told = script.replace("exec torchrun", "printf '%s\\n'")
    environment = {**os.environ, "DATA": "mock", "MASTER_ADDR": "localhost", "NODE_RANK": "0"}
    words = subprocess.check_output(["bash", "-c", told], env=environment, text=True).splitlines()
    after = next(i for i, word in enumerate(words) if word.endswith("pretrain_gpt.py"))
    text = " ".join(shlex.quote(word) for word in words[after + 1 :])
    return shlex.split(re.sub(r"--attention-backend \w+", "", text))


def arguments() -> Any:
    """Megatron's own reading of the exported words."""
    from megatron.training.arguments import parse_args, validate_args

    sys.argv = ["pretrain_gpt.py", *words_of(Path("run.sh").read_text()), *LOCAL.split()]
    read = parse_args()
    validate_args(read)
    read.padded_vocab_size = read.vocab_size
    return read


def groups(read: Any) -> None:
    """Megatron's process groups, in the order and of the sizes that it was told."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator

    parallel_state.initialize_model_parallel(
        read.tensor_model_parallel_size, read.pipeline_model_parallel_size,
        read.virtual_pipeline_model_parallel_size, context_parallel_size=read.context_parallel_size,
        expert_model_parallel_size=read.expert_model_parallel_size,
        order="tp-cp-ep-pp-dp" if read.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
    )  # fmt: skip
    tensor_parallel.random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    tensor_parallel.model_parallel_cuda_manual_seed(read.seed)
    init_num_microbatches_calculator(
        read.rank,
        None,
        read.global_batch_size,
        read.micro_batch_size,
        read.data_parallel_size,
        False,
    )


def chunks(read: Any) -> tuple[list[Any], Any]:
    """The model's chunks of this rank, wrapped in Megatron's DDP as its `get_model` wraps them."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import gpt_model
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.training.arguments import core_transformer_config_from_args
    from megatron.training.training import get_megatron_ddp_config, wrap_model_chunks_with_ddp

    config = core_transformer_config_from_args(read)
    spec = get_gpt_layer_local_spec(normalization="LayerNorm")

    def norm(*, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> torch.nn.Module:
        kinds = {"RMSNorm": torch.nn.RMSNorm, "LayerNorm": torch.nn.LayerNorm}
        made = kinds[config.normalization](hidden_size, eps)
        for parameter in made.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return made

    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = norm
    sys.modules["megatron.core.transformer.transformer_block"].LayerNormImpl = norm
    made = []
    for stage in range(read.virtual_pipeline_model_parallel_size or 1):
        part = stage if read.virtual_pipeline_model_parallel_size else None
        model = gpt_model.GPTModel(
            config=config, transformer_layer_spec=spec, vocab_size=read.padded_vocab_size,
            max_sequence_length=read.max_position_embeddings,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=part),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=part),
            share_embeddings_and_output_weights=not read.untie_embeddings_and_output_weights,
            position_embedding_type=read.position_embedding_type, rotary_base=read.rotary_base, vp_stage=part,
        )  # fmt: skip
        made.append(model)
    reducing = get_megatron_ddp_config(read)
    return wrap_model_chunks_with_ddp(
        made, config, reducing, bucket_sizes=[reducing.bucket_size] * len(made),
        disable_bucketing_per_chunk=[number > 0 for number in range(len(made))],
    ), config  # fmt: skip


def rows(read: Any) -> Any:
    """Micro-batches of random tokens for this data-parallel rank."""
    from megatron.core import parallel_state

    generator = torch.Generator().manual_seed(5 + parallel_state.get_data_parallel_rank())
    while True:
        shape = (read.micro_batch_size, read.seq_length + 1)
        ids = torch.randint(0, read.vocab_size, shape, generator=generator)
        yield ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def train(read: Any, report: Path, losses: Path, steps: int) -> None:
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.num_microbatches_calculator import get_num_microbatches
    from megatron.core.optimizer import get_megatron_optimizer
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.training.training import get_megatron_optimizer_config

    groups(read)
    model, config = chunks(read)
    settings, overrides = get_megatron_optimizer_config(read)
    optimizer = get_megatron_optimizer(settings, model, config_overrides=overrides)
    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = [one.no_sync for one in model] if len(model) > 1 else model[0].no_sync

    def forward(batches: Any, part: Any) -> Any:
        ids, targets = next(batches)
        positions = torch.arange(ids.shape[1]).expand(len(ids), -1)
        mask = torch.ones((1, 1, ids.shape[1], ids.shape[1]), dtype=torch.bool).triu(1)
        output = part(ids, positions, mask, labels=targets)
        return output, lambda found: (found.mean(), {"loss": found.mean().detach()})

    kept, run = [], get_forward_backward_func()
    batches = [rows(read) for _ in model]
    for _ in range(steps):
        for one in model:
            one.zero_grad_buffer()
        optimizer.zero_grad()
        found = run(
            forward_step_func=forward, data_iterator=batches if len(model) > 1 else batches[0], model=model,
            num_microbatches=get_num_microbatches(), seq_length=read.seq_length,
            micro_batch_size=read.micro_batch_size, forward_only=False,
        )  # fmt: skip
        done, norm, _ = optimizer.step()
        if not done:
            raise SystemExit("Megatron's optimizer skipped the step")
        kept.append(float(found[0]["loss"]) if found else float(norm))
    if torch.distributed.get_rank() == 0:
        report.write_text(json.dumps(reported(config, optimizer, get_num_microbatches())))
        losses.write_text(json.dumps(kept))


def reported(config: Any, optimizer: Any, count: int) -> dict[str, Any]:
    """Sizes of Megatron's groups, and of what class its optimizer is."""
    from megatron.core import parallel_state

    inner = getattr(optimizer, "chained_optimizers", [optimizer])
    return {
        "tp": parallel_state.get_tensor_model_parallel_world_size(),
        "pp": parallel_state.get_pipeline_model_parallel_world_size(),
        "dp": parallel_state.get_data_parallel_world_size(),
        "virtual_stages": parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1,
        "sequence_parallel": config.sequence_parallel,
        "zero": int(any(type(one).__name__ == "DistributedOptimizer" for one in inner)),
        "recompute": config.recompute_granularity or "none",
        "accumulation": count,
    }


def main() -> None:
    report, losses, steps = sys.argv[1:]
    megatron_arguments._prepare(os.environ["MEGATRON_CORE"])
    stand_ins.stand_in_for_the_device()
    # `run.sh` sets it on NVIDIA's devices; on others Megatron's validation asks for it all the same.
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    with stand_ins.CudaMeansCpu():
        train(arguments(), Path(report), Path(losses), int(steps))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
