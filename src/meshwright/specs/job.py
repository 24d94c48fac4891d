"""What one optimizer step must do: tokens, precision, optimizer, kernels, software."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from meshwright.specs.base import Spec
from meshwright.specs.finetune import Finetune
from meshwright.specs.frameworks import find_framework
from meshwright.specs.routing import Routing

AttentionKernel = Literal["flash", "unfused", "memory-efficient"]
Framework = Literal[
    "any", "megatron", "megatron-fsdp", "nemo", "primus", "megatron-2021", "megatron-2022",
    "megatron-deepspeed", "megatron-deepspeed-2021", "deepspeed", "accelerate", "fsdp", "lightning",
    "llm-foundry", "torchtitan", "torchtitan-2024", "nanotron", "maxtext", "trainer", "trl",
    "axolotl", "llama-factory", "torchtune", "verl", "litgpt", "xtuner", "hai-llm", "meshwright",
]  # fmt: skip
"""Names of presets/frameworks.toml; its aliases (megatron-bridge: nemo) are accepted and resolved."""
Loss = Literal["framework", "full", "chunked", "liger", "cut"]


class PrecisionRecipe(Spec):
    """Bytes that training keeps per parameter, by component.

    ZeRO shards the components, so a bare sum ("16 bytes per parameter") is never enough.
    """

    name: str = "bf16"
    compute: str = Field("bf16", description="precision of the matrix products")
    parameter_bytes: float = Field(2, ge=0, le=16)
    gradient_bytes: float = Field(2, ge=0, le=16)
    master_bytes: float = Field(4, ge=0, le=16, description="the optimizer's own copy of weights")
    gradient_reduce_bytes: float = Field(2, gt=0, le=16, description="a gradient on the wire")
    activation_bytes: float = Field(2, gt=0, le=8)


class OptimizerRecipe(Spec):
    """State that the optimizer keeps per parameter, beyond the master copy."""

    name: str = "adamw"
    state_bytes: float = Field(8, ge=0, le=32, description="moments, momentum…")
    factored: bool = Field(False, description="Adafactor: row and column statistics only")
    low_rank: int = Field(
        0,
        ge=0,
        description="GaLore, APOLLO: moments of layers' matrices are of gradients projected to this rank",
    )
    paged: bool = Field(
        False, description="states live in unified memory and leave the device when it is full"
    )
    flops_per_parameter: float = Field(
        15, ge=0, description="of one update; Muon's orthogonalisation adds matrix products"
    )


class Job(Spec):
    """One optimizer step."""

    seq_len: int = Field(4096, ge=1, le=100_000_000)
    global_batch: int = Field(512, ge=1, le=100_000_000, description="sequences per step")
    precision: PrecisionRecipe = PrecisionRecipe()
    optimizer: OptimizerRecipe = OptimizerRecipe()
    attention_kernel: AttentionKernel = "flash"
    framework: Framework = Field(
        "any", description="whose kernels, buffers and overlaps to assume; any: a current stack"
    )
    framework_options: dict[str, bool | int | float | str] = Field(
        default_factory=dict,
        description="deviations from the framework's documented behaviour, by the field's name",
    )
    finetune: Finetune | None = Field(
        None, description="which weights train; absent: all of them, from scratch or on"
    )
    loss: Loss = Field(
        "framework",
        description="logits whole, in chunks computed again in backward, as Liger's fused linear "
        "cross-entropy, or never in memory (Cut cross-entropy); framework: its own default",
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="chance that a number added to the residual stream is dropped (not attention)",
    )
    document_masking: bool = Field(
        False, description="attention, positions and loss stay inside each packed document"
    )
    images: float | None = Field(
        None,
        ge=0,
        le=100_000,
        description="images (or sounds) in a sequence, in the mean, for a model with an encoder; 0: text alone; "
        "absent: one, where the sequence has room for it",
    )
    image_patches: int | None = Field(
        None,
        ge=1,
        le=100_000_000,
        description="patches of an image; absent: the model's usual size",
    )
    token_budget: float = Field(0.0, ge=0, description="tokens of the whole run; 0: not asked")
    routing: Routing = Field(
        default_factory=Routing, description="how unevenly tokens go to experts"
    )

    @field_validator("framework", mode="before")
    @classmethod
    def _own_name(cls, value: object) -> object:
        return find_framework(value) if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _former_names(cls, data: Any) -> Any:
        """Plans written before fine-tuning was a noun hold `lora_rank`, on attention only."""
        if not isinstance(data, dict) or "lora_rank" not in data:
            return data
        fields = {**data}
        rank = fields.pop("lora_rank")
        if rank and not fields.get("finetune"):
            fields["finetune"] = attention_lora(rank)
        return fields

    @property
    def frozen(self) -> bool:
        """Whether the base weights get no gradients."""
        return self.finetune is not None and self.finetune.adapts

    @property
    def tokens(self) -> int:
        """Tokens in one step."""
        return self.seq_len * self.global_batch

    @property
    def state_bytes(self) -> float:
        """Bytes per parameter of all model states, unsharded (16 for bf16 with AdamW)."""
        return (
            self.precision.parameter_bytes
            + self.precision.gradient_bytes
            + self.precision.master_bytes
            + self.optimizer.state_bytes
        )


def attention_lora(rank: int) -> Finetune:
    """Adapters on the attention projections as the MLPerf fine-tuning rules have them."""
    return Finetune(method="lora", rank=rank, targets=("q", "k", "v", "o"), adapter_bytes=0)


RECIPES: dict[str, PrecisionRecipe] = {
    # The lessons' two decompositions of "16 bytes" differ; both are here, by name.
    "fp32": PrecisionRecipe(
        name="fp32", compute="fp32", parameter_bytes=4, gradient_bytes=4, master_bytes=0,
        gradient_reduce_bytes=4, activation_bytes=4,
    ),
    "tf32": PrecisionRecipe(
        name="tf32", compute="tf32", parameter_bytes=4, gradient_bytes=4, master_bytes=0,
        gradient_reduce_bytes=4, activation_bytes=4,
    ),
    "bf16": PrecisionRecipe(),
    "fp16": PrecisionRecipe(name="fp16", compute="fp16"),
    "bf16-fp32-grads": PrecisionRecipe(
        name="bf16-fp32-grads", gradient_bytes=4, gradient_reduce_bytes=4
    ),
    "fp8": PrecisionRecipe(
        name="fp8", compute="fp8", gradient_bytes=4, gradient_reduce_bytes=4
    ),
    "pure-bf16": PrecisionRecipe(name="pure-bf16", master_bytes=0),
}  # fmt: skip
"""Precision recipes by name. `bf16` is 2+2+4 (+8 of AdamW); `bf16-fp32-grads` is Megatron's 18."""

FP4 = RECIPES["fp8"].but(name="fp4", compute="fp4")
"""Products in 4 bits (NVFP4) where device and framework have them; all else as under fp8."""

OPTIMIZERS: dict[str, OptimizerRecipe] = {
    "adamw": OptimizerRecipe(),
    "sgd": OptimizerRecipe(name="sgd", state_bytes=0, flops_per_parameter=2),
    "sgd-momentum": OptimizerRecipe(name="sgd-momentum", state_bytes=4, flops_per_parameter=4),
    "adafactor": OptimizerRecipe(
        name="adafactor", state_bytes=0, factored=True, flops_per_parameter=15
    ),
    "adam8bit": OptimizerRecipe(name="adam8bit", state_bytes=2, flops_per_parameter=20),
    "paged-adamw": OptimizerRecipe(name="paged-adamw", paged=True),
    "paged-adam8bit": OptimizerRecipe(
        name="paged-adam8bit", state_bytes=2, paged=True, flops_per_parameter=20
    ),
    "adamw-bf16": OptimizerRecipe(name="adamw-bf16", state_bytes=4),
    "lion": OptimizerRecipe(name="lion", state_bytes=4, flops_per_parameter=8),
    "lion8bit": OptimizerRecipe(name="lion8bit", state_bytes=1, flops_per_parameter=12),
    "muon": OptimizerRecipe(name="muon", state_bytes=4, flops_per_parameter=30),
}
"""Optimizers by name; `state_bytes` is beyond the master copy of the precision recipe."""

OTHER_OPTIMIZERS: dict[str, OptimizerRecipe] = {
    # Two moments but where it says otherwise.
    "lamb": OptimizerRecipe(name="lamb", state_bytes=8, flops_per_parameter=20),
    "ademamix": OptimizerRecipe(name="ademamix", state_bytes=12, flops_per_parameter=20),
    "adagrad": OptimizerRecipe(name="adagrad", state_bytes=4, flops_per_parameter=6),
    "rmsprop": OptimizerRecipe(name="rmsprop", state_bytes=4, flops_per_parameter=6),
    # One second moment for each head's or neuron's weights (arXiv 2406.16793).
    "adam-mini": OptimizerRecipe(name="adam-mini", state_bytes=4, flops_per_parameter=12),
    "adam4bit": OptimizerRecipe(name="adam4bit", state_bytes=1, flops_per_parameter=25),
    # transformers' default dtypes of it: the first moment in 32 bits, the second in 16.
    "adamw-anyprecision": OptimizerRecipe(name="adamw-anyprecision", state_bytes=6),
    "ademamix8bit": OptimizerRecipe(name="ademamix8bit", state_bytes=3, flops_per_parameter=25),
    "paged-ademamix": OptimizerRecipe(name="paged-ademamix", state_bytes=12, paged=True, flops_per_parameter=20),
    "paged-ademamix8bit": OptimizerRecipe(name="paged-ademamix8bit", state_bytes=3, paged=True, flops_per_parameter=25),
    "paged-lion": OptimizerRecipe(name="paged-lion", state_bytes=4, paged=True, flops_per_parameter=8),
    "paged-lion8bit": OptimizerRecipe(name="paged-lion8bit", state_bytes=1, paged=True, flops_per_parameter=12),
    "rmsprop8bit": OptimizerRecipe(name="rmsprop8bit", state_bytes=1, flops_per_parameter=10),
    # Beside two moments a mean of gradients that is amplified.
    "grokadamw": OptimizerRecipe(name="grokadamw", state_bytes=12, flops_per_parameter=20),
    # arXiv 2403.03507 and 2412.05270, at transformers' default rank; other parameters have AdamW's moments.
    "galore": OptimizerRecipe(name="galore", low_rank=128, flops_per_parameter=20),
    "galore8bit": OptimizerRecipe(name="galore8bit", state_bytes=2, low_rank=128, flops_per_parameter=25),
    "galore-adafactor": OptimizerRecipe(name="galore-adafactor", state_bytes=0, factored=True, low_rank=128, flops_per_parameter=20),
    "apollo": OptimizerRecipe(name="apollo", low_rank=128, flops_per_parameter=20),
    # arXiv 2306.09782 and 2310.10195: gradients go as they are used.
    "lomo": OptimizerRecipe(name="lomo", state_bytes=0, flops_per_parameter=2),
    "adalomo": OptimizerRecipe(name="adalomo", state_bytes=0, factored=True, flops_per_parameter=15),
}  # fmt: skip
"""Optimizers that people's runs have and no plan proposes."""
UPDATED_IN_BACKWARD = ("lomo", "adalomo")
"""Optimizers that take each gradient as the backward makes it."""
