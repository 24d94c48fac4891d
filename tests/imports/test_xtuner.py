"""XTuner's Python configurations and the commands that name them."""

from pathlib import Path

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)
OLD = """
from mmengine.optim import AmpOptimWrapper
pretrained_model_name_or_path = "Qwen/Qwen2.5-7B-Instruct"
max_length = 4096
pack_to_max_length = True
sequence_parallel_size = {sp}
batch_size = 2
accumulative_counts = 4
accumulative_counts *= sequence_parallel_size
optim_type = AdamW
model = dict(
    type={kind}, use_varlen_attn=True,
    llm=dict(
        type=AutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path=pretrained_model_name_or_path,
        quantization_config=dict(type=BitsAndBytesConfig, load_in_4bit=True, load_in_8bit=False, bnb_4bit_use_double_quant=True),
    ),
    lora=dict(type=LoraConfig, r=64, lora_alpha=16, lora_dropout=0.1),
)
train_dataloader = dict(batch_size=batch_size, sampler=dict(type=DefaultSampler))
optim_wrapper = dict(
    type=AmpOptimWrapper, optimizer=dict(type=optim_type, lr=2e-4), accumulative_counts=accumulative_counts, dtype="float16"
)
"""


def old(sp: int = 1, kind: str = "SupervisedFinetune") -> str:
    return OLD.format(sp=sp, kind=kind)


def test_a_configuration_says_batch_length_adapters_and_width():
    found = import_text(old(), "qwen_qlora.py", GUESS)
    assert (found.format, found.model.name, found.job.seq_len) == ("XTuner configuration", "qwen2.5-7b", 4096)  # fmt: skip
    assert (found.layout.micro_batch, found.layout.recompute) == (2, "full")
    assert found.job.global_batch == 2 * 4 * found.layout.dp
    tuned = found.job.finetune
    assert (tuned.storage, tuned.rank, tuned.alpha, tuned.double_quantization) == ("nf4", 64, 16, True)  # fmt: skip
    assert (found.job.precision.name, found.job.document_masking) == ("fp16", True)
    assert any("--deepspeed" in one and "a guess" in one for one in found.notes)


def test_split_sequences_keep_the_step_as_it_was():
    found = import_text(old(sp=4), "qwen_qlora.py", GUESS)
    assert (found.layout.cp, found.layout.cp_method) == (4, "ulysses")
    assert found.job.global_batch == 2 * 4 * 4 * found.layout.dp


def test_the_command_brings_deepspeed_in_bf16(tmp_path: Path):
    (tmp_path / "conf.py").write_text(old())
    (tmp_path / "run.sh").write_text(
        "NPROC_PER_NODE=4 xtuner train conf.py --deepspeed deepspeed_zero3_offload\n"
    )
    found = import_file(tmp_path / "run.sh", GUESS)
    assert (found.cluster.gpus, found.layout.zero, found.job.framework) == (4, 3, "deepspeed")
    assert (found.offload, found.job.precision.name) == ({"optimizer", "parameters"}, "bf16")
    assert not any("--deepspeed" in one for one in found.notes)


def test_a_command_whose_configuration_is_xtuners_own_asks_for_it():
    with pytest.raises(SpecError, match="copy-cfg"):
        import_text("#!/bin/bash\nxtuner train qwen_7b_qlora_e3 --deepspeed deepspeed_zero2\n", "a.sh", GUESS)  # fmt: skip


@pytest.mark.parametrize("kind", ["LLaVAModel", "InternVL_V1_5"])
def test_what_sees_images_is_refused(kind: str):
    with pytest.raises(SpecError, match="vision-language"):
        import_text(old(kind=kind), "a.py", GUESS)


NEW = """
import os
from xtuner.v1.config import AdamWConfig, FSDPConfig
from xtuner.v1.train import TrainerConfig
model_cfg = {model}()
fsdp_cfg = FSDPConfig(ep_size=int(os.environ.get("EP_SIZE", "4")), cpu_offload=False)
dataloader_config = DataloaderConfig(dataset_config_list=[], pack_max_length=16 * 1024)
trainer = TrainerConfig(
    model_cfg=model_cfg, fsdp_cfg=fsdp_cfg, optim_cfg=AdamWConfig(lr=1e-4), dataloader_cfg=dataloader_config,
    loss_cfg=CELossConfig(mode="chunk"), global_batch_size=32, sp_size=2,
)
"""


def test_version_1_packs_rows_over_fsdp():
    found = import_text(NEW.format(model="Qwen3MoE30BA3Config"), "sft.py", GUESS)
    assert (found.model.name, found.job.seq_len, found.job.global_batch) == ("qwen3-30b-a3b", 16384, 32)  # fmt: skip
    assert (found.layout.zero, found.layout.ep, found.layout.cp, found.layout.recompute) == (3, 4, 2, "full")  # fmt: skip
    assert (found.job.loss, found.job.precision.gradient_bytes) == ("liger", 4)
    dense = import_text(NEW.format(model="Qwen3Dense0P6BConfig").replace("EP_SIZE", "X").replace('"4"', '"1"'), "sft.py", GUESS)  # fmt: skip
    assert dense.model.name == "qwen3-0.6b"
