"""One training run of torchtitan's debug Llama by its own Trainer, recorded with `meshwright.probe`.

    torchrun … benchmarks/prove_titan_run.py [BUG]     (started by prove_frameworks.py)

torchtitan has no CPU device. What stands in: the device's name and memory counters, its tokenizer and
data (random tokens, the same global batch in every layout), the attention of its own tests (FlexAttention
has no backward on CPUs). Model, sharding, pipeline, loss, clipping, optimizer and step are torchtitan's.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

BATCH, LENGTH, STEPS, VOCAB = 8, 32, 3, 2048


def stand_in_for_the_device() -> None:
    """Before torchtitan is imported: it asks torch for an accelerator, and the device for counters."""
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.get_device_name = lambda *_: "cpu"
    torch.cpu.get_device_properties = lambda *_: SimpleNamespace(total_memory=1 << 34)
    torch.cpu.memory_stats = lambda *_: {}
    torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda *_: None
    torch.cpu.device_count = lambda: int(os.environ["LOCAL_WORLD_SIZE"])


def configuration(degrees: dict[str, int], uneven: bool) -> Any:
    """torchtitan's debug model, in fp32, under the degrees."""
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel_ce_loss

    class NoTokens(BaseTokenizer):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):
            pass

        def __init__(self, config: Any, **_: Any) -> None:
            super().__init__()

        def encode(self, *_: Any) -> list[int]:
            return []

        def decode(self, *_: Any) -> str:
            return ""

        def get_vocab_size(self) -> int:
            return VOCAB

    class Tokens(BaseDataLoader):
        """The same global batch in every layout: data parallel ranks take consecutive shares."""

        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            pass

        def __init__(self, config: Any, **given: Any) -> None:
            self.rank, self.world = given["dp_rank"], given["dp_world_size"]
            self.rows = given["local_batch_size"]

        def __iter__(self) -> Any:
            generator = torch.Generator().manual_seed(5)
            share = BATCH // self.world
            while True:
                ids = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=generator)
                labels = ids[:, 1:].clone()
                if uneven:
                    labels[: BATCH // 2, LENGTH // 4 :] = -100
                here = slice(self.rank * share, (self.rank + 1) * share)
                parts = (ids[here, :-1].split(self.rows), labels[here].split(self.rows))
                for rows, wanted in zip(*parts, strict=True):
                    # One document a row; torchtitan cuts these with the rows where sequences are split.
                    places = torch.arange(LENGTH).expand(len(rows), LENGTH).contiguous()
                    yield {"input": rows.contiguous(), "positions": places}, wanted.contiguous()

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    config = llama3_debugmodel_ce_loss()
    config.tokenizer, config.dataloader = NoTokens.Config(), Tokens.Config()
    config.dump_folder = tempfile.mkdtemp()
    config.checkpoint.enable = config.validator.enable = False
    config.optimizer.implementation = "for-loop"
    pieces = degrees.get("dp", 1) * degrees.get("replicate", 1)
    pp = degrees.get("pp", 1)
    config.training = replace(
        config.training, local_batch_size=BATCH // pieces if pp > 1 else 1, global_batch_size=BATCH,
        seq_len=LENGTH, steps=STEPS, disable_cuda_graphs=True, mixed_precision_param="float32",
    )  # fmt: skip
    config.parallelism = replace(
        config.parallelism, data_parallel_shard_degree=degrees.get("dp", 1),
        data_parallel_replicate_degree=degrees.get("replicate", 1),
        tensor_parallel_degree=degrees.get("tp", 1), pipeline_parallel_degree=pp,
        context_parallel_degree=degrees.get("cp", 1), pipeline_parallel_microbatch_size=1,
        pipeline_parallel_schedule="1F1B",
        # The default, spmd_types, needs a nightly torch: fully_shard refuses its plain parameters.
        spmd_backend="partial_dtensor",
    )  # fmt: skip
    config.activation_checkpoint = None
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return config


def same_weights(model_parts: list[Any]) -> None:
    """Every parameter drawn from its name, whichever rank or stage holds which part of it."""
    from torch.distributed.tensor import distribute_tensor

    with torch.no_grad():
        for part in model_parts:
            for name, parameter in part.named_parameters():
                generator = torch.Generator().manual_seed(sum(name.encode()))
                whole = torch.randn(parameter.shape, generator=generator) * 0.03
                whole += float(len(whole.shape) == 1)
                if hasattr(parameter, "placements"):
                    whole = distribute_tensor(
                        whole, parameter.device_mesh, parameter.placements, src_data_rank=None
                    )
                parameter.copy_(whole)


def fit_to_this_torch(trainer: Any) -> None:
    """What gloo lacks, and what torchtitan expects of a nightly torch."""
    for part in trainer.model_parts:
        for module in part.modules():
            if hasattr(module, "set_force_sum_reduction_for_comms"):  # gloo has no PREMUL_SUM
                module.set_force_sum_reduction_for_comms(True)
    if not trainer.parallel_dims.pp_enabled:
        return
    schedule = trainer.pp_schedule

    def step(*, losses: Any, loss_kwargs: Any, return_outputs: bool, **mbs: Any) -> None:
        """`schedule.step` on micro-batches that are split already."""
        for stage in getattr(schedule, "_stages", None) or [schedule._stage]:
            stage.has_backward = True
            stage.clear_runtime_states()
        split = (mbs["arg_mbs"], mbs["kwarg_mbs"], mbs["target_mbs"])
        schedule._step_microbatches(*split, losses, return_outputs, loss_kwargs=loss_kwargs)

    schedule.step = step


def inject(trainer: Any, bug: str) -> None:
    """A mistake in torchtitan's own functions, as it once was."""
    from torchtitan.distributed import utils

    if bug == "norm-per-stage":
        clip = utils.clip_grad_norm_
        utils.clip_grad_norm_ = lambda *a, **k: clip(*a, **{**k, "pp_mesh": None})
    elif bug == "pipeline-loss-undivided":
        step = trainer.pp_schedule.step

        def undivided(*, losses: Any, loss_kwargs: Any, **given: Any) -> None:
            tokens = loss_kwargs["global_valid_tokens"]
            step(losses=losses, loss_kwargs={"global_valid_tokens": torch.tensor(1)}, **given)
            if losses:
                losses[:] = [loss / tokens for loss in losses]

        trainer.pp_schedule.step = undivided
    elif bug == "uneven-mean-of-means":
        utils.dist_sum_tensor = lambda tokens, mesh: tokens * mesh.size()
    elif bug == "divided-by-fsdp-too":
        for module in trainer.model_parts[0].modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(trainer.parallel_dims.dp_shard)


def main() -> None:
    stand_in_for_the_device()
    torch.set_num_threads(1)
    from torchtitan.distributed import utils
    from torchtitan.trainer import Trainer

    utils.set_pg_timeouts = lambda *_, **__: None  # a barrier on numbered devices; gloo has none
    from meshwright import probe

    bug = sys.argv[1] if len(sys.argv) > 1 else ""
    trainer = Trainer(configuration(probe.layout(), "uneven" in bug))
    fit_to_this_torch(trainer)
    same_weights(trainer.model_parts)
    inject(trainer, bug)
    probe.attach(trainer)
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
