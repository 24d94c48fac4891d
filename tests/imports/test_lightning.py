"""Trainers of Lightning in programs: their words are no TrainingArguments."""

import pytest

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster

PROGRAM = """
import lightning as L
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from transformers import AutoModelForCausalLM

class Tuned(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-5)

loader = torch.utils.data.DataLoader(data, batch_size=4)
max_length = 2048
trainer = L.Trainer(accelerator="gpu", devices=8, num_nodes=2, precision="PRECISION", strategy=STRATEGY, accumulate_grad_batches=4)
trainer.fit(Tuned(), loader)
"""


def trained(strategy: str, precision: str = "bf16-true") -> Imported:
    text = PROGRAM.replace("STRATEGY", strategy).replace("PRECISION", precision)
    return import_text(text, "train.py", Given(cluster=load_cluster("h100:2x8"), guess=True))


@pytest.mark.parametrize(
    ("strategy", "stage", "moved", "recompute"),
    [
        ('"ddp"', 0, (), "none"),
        ('"fsdp"', 3, (), "none"),
        ('"deepspeed_stage_2"', 2, (), "none"),
        ('"deepspeed_stage_2_offload"', 2, ("optimizer",), "none"),
        ('"deepspeed_stage_3_offload"', 3, ("optimizer", "parameters"), "none"),
        ("DeepSpeedStrategy(stage=3, offload_optimizer=True)", 3, ("optimizer",), "none"),
        ('FSDPStrategy(sharding_strategy="SHARD_GRAD_OP", activation_checkpointing_policy={Block})', 2, (), "full"),
        ("FSDPStrategy(cpu_offload=True)", 3, ("optimizer", "parameters"), "none"),
    ],
)  # fmt: skip
def test_strategies(strategy, stage, moved, recompute):
    back = trained(strategy)
    assert (back.layout.world, back.layout.micro_batch, back.job.global_batch) == (16, 4, 256)
    assert (back.layout.zero, tuple(sorted(back.offload)), back.layout.recompute) == (
        stage,
        moved,
        recompute,
    )
    assert not any(one.kind == "not understood" for one in back.remarks)


@pytest.mark.parametrize(
    ("precision", "recipe"),
    [("bf16-true", "bf16"), ("bf16-mixed", "bf16"), ("16-mixed", "fp16"), ("32-true", "fp32")],
)
def test_precisions(precision, recipe):
    # DeepSpeed keeps 32-bit copies whatever the weights are loaded in; FSDP does not.
    assert trained('"deepspeed_stage_2"', precision).job.precision.name == recipe
    assert trained('"fsdp"').job.precision.name == "pure-bf16"


def test_a_precision_that_is_not_priced_is_named():
    back = trained('"fsdp"', "transformer-engine")
    assert any(one.option == "precision" for one in back.remarks)


@pytest.mark.parametrize(
    "strategy", ["strategy_of(args)", "strategy", "DDPStrategy(static_graph=True)"]
)
def test_a_strategy_that_is_not_followed_is_named(strategy):
    named = [one for one in trained(strategy).remarks if one.option == "strategy"]
    assert bool(named) == ("DDP" not in strategy)
