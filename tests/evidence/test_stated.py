"""What rows say in frameworks' words reaches the run: losses, offloading, kernels, sharding, adapters, sizes."""

import pytest

from meshwright.costs.frameworks import behaviour
from meshwright.costs.parameters import count_parameters
from meshwright.evidence.import_rows import import_row
from meshwright.evidence.machines import SkipRow
from meshwright.evidence.named import named_framework
from meshwright.evidence.optimizers import optimizer_of
from meshwright.evidence.rows import Row
from meshwright.evidence.software import rule_for, zero_of
from meshwright.evidence.stated import says


def row(**cells):
    base = {
        "id": "x", "source": "someone's blog", "gpu": "H100", "gpus": "8", "model": "Llama 3.1 8B",
        "seq_len": "8192", "micro_batch": "1", "global_batch": "64", "precision": "bf16",
    }  # fmt: skip
    return Row("mine", {**base, **{k: str(v) for k, v in cells.items()}})


@pytest.mark.parametrize(
    ("setup", "loss"),
    [
        ("DeepSpeed ZeRO-3, transformers, Liger kernels", "liger"),
        ("trl; fused linear cross-entropy", "liger"),
        ("axolotl with Cut Cross Entropy", "cut"),
        ("Unsloth, QLoRA r=32", "cut"),
        ("prime-rl RL trainer, PyTorch FSDP2", "liger"),
        ("prime-rl SFT trainer, PyTorch FSDP2", "framework"),
        ("torchtune, chunked cross entropy", "chunked"),
        ("MaxText, vocab tiling 16", "chunked"),
        ("TRL SFTTrainer, chunked_nll", "chunked"),
        ("torchtitan, eight loss chunks", "chunked"),
        ("trl without Liger", "framework"),
        ("llama-factory, enable_liger_kernel: false", "framework"),
        ("Megatron-LM", "framework"),
    ],
)
def test_losses_by_their_names(setup, loss):
    assert import_row(row(setup=setup)).job.loss == loss


@pytest.mark.parametrize(
    ("setup", "offload"),
    [
        ("DeepSpeed, optimizer CPU offload", ("optimizer",)),
        ("DeepSpeed, offload_optimizer: cpu, offload_param: cpu", ("optimizer", "parameters")),
        ("DeepSpeedCPUAdam", ("optimizer",)),
        ("ZeRO-Offload", ("optimizer",)),
        ("torchtune, enable_activation_offloading: True", ("activations",)),
        ("activation offloading", ("activations",)),
        ("DeepSpeed, offload_optimizer: none", ()),
        ("no activation offloading", ()),
        ("Megatron-Bridge; expert_fc1 activations offloaded", ()),
        ("act_cpu_offload=False", ()),
    ],
)
def test_what_lives_in_the_host_is_read(setup, offload):
    assert import_row(row(setup=setup, zero_or_fsdp="ZeRO-3")).layout.offload == offload


def test_compiled_and_fused_kernels_are_read_and_taken_back():
    options = import_row(row(setup="transformers, torch.compile")).job.framework_options
    assert options["fused_norm"] and options["fused_rotary"] and options["kernels_per_layer"] == 14
    taken = import_row(row(setup="transformers, torch.compile=False")).job.framework_options
    assert set(taken) == {"optimizer_fused"}
    fused = import_row(row(setup="lit-gpt, fused cross entropy loss, fused swiglu"))
    assert fused.job.framework_options["logits_bytes"] == 4.0
    assert fused.job.framework_options["fused_activation"]


def test_ligers_and_unsloths_kernels_write_over_what_they_kept():
    for text in ("TRL, Liger kernels", "Unsloth, QLoRA 4-bit r=16"):
        told = behaviour(import_row(row(setup=text, gpus=1)).job)
        assert told.fused_norm and told.fused_activation and told.activation_in_place
    compiled = behaviour(import_row(row(setup="transformers, torch.compile", gpus=1)).job)
    assert compiled.fused_activation and not compiled.activation_in_place


def test_words_taken_back_are_not_said():
    assert says("liger", "with Liger kernels")
    assert not says("liger", "no Liger")
    assert not says("liger", "use_liger=false")
    assert says("liger", "no flash attention, liger")


def test_a_newer_flash_attention_is_the_newest_generation():
    for text in ("flash attention 3", "flash_attention_3", "flash-attn-4", "FA3"):
        assert import_row(row(setup=text)).job.framework_options["flash_generation"] == 3


def test_dualpipe_hides_its_all_to_alls():
    run = import_row(
        row(model="DeepSeek-V3", gpus=2048, pp=16, ep=64, schedule="DualPipe", global_batch=15360)
    )
    assert run.job.framework_options["expert_overlapped"] is True


@pytest.mark.parametrize(
    ("text", "zero"),
    [("FSDP (ZeRO-2)", 2), ("FSDP2, reshard_after_forward=False", 2), ("FSDP", 3), ("ZeRO-1", 1)],
)
def test_a_stage_beside_fsdp_is_the_stage(text, zero):
    cells = row(zero_or_fsdp=text)
    assert zero_of(cells, rule_for(cells), [])[0] == zero


@pytest.mark.parametrize(
    ("cells", "framework"),
    [
        ({"setup": "Accelerate FSDP2, transformers"}, "huggingface"),
        ({"setup": "FSDP2"}, "torchtitan"),
        ({"setup": "OLMo-core"}, "torchtitan"),
        ({"zero_or_fsdp": "FSDP", "tp": 8, "pp": 16, "gpus": 1024}, "torchtitan"),
        ({"zero_or_fsdp": "FSDP"}, "fsdp"),
        ({"setup": "Fast-LLM"}, "megatron"),
    ],
)
def test_programs_before_the_parts_that_many_share(cells, framework):
    assert named_framework(row(**cells)) == framework


def test_deepspeed_gathers_modules_and_fsdp_layers():
    deepspeed = row(setup="transformers", zero_or_fsdp="ZeRO-3")
    assert import_row(deepspeed).job.framework_options["zero3_gathers"] == "modules"
    fsdp = import_row(row(setup="transformers", zero_or_fsdp="FSDP"))
    assert "zero3_gathers" not in fsdp.job.framework_options


def test_a_rows_own_adapters_come_before_its_sources():
    run = import_row(
        row(source="litgpt config hub", setup="LitGPT LoRA r=32 on q_proj, k_proj", gpus=1)
    )
    assert run.job.finetune.rank == 32
    assert set(run.job.finetune.targets) == {"q", "k"}


def test_states_are_in_16_bits_where_the_framework_holds_them_so():
    whole = import_row(row(setup="torchtune, full fine-tuning")).job
    assert whole.precision.master_bytes == 0 and whole.optimizer.name == "adamw-bf16"
    stated = import_row(row(setup="LitGPT", precision="bf16-true")).job
    assert stated.precision.master_bytes == 0
    loaded = import_row(row(setup="ms-swift, full-parameter fine-tuning")).job
    assert loaded.precision.master_bytes == 0
    megatron = import_row(row(setup="ms-swift, Megatron-LM, full-parameter fine-tuning")).job
    assert megatron.precision.master_bytes == 4
    mixed = import_row(row(setup="transformers, full fine-tuning", zero_or_fsdp="ZeRO-2")).job
    assert mixed.precision.master_bytes == 4


def test_optimizers_by_name():
    assert import_row(row(setup="transformers, Lion")).job.optimizer.name == "lion"
    assert import_row(row(setup="paged_adamw_8bit")).job.optimizer.name == "paged-adam8bit"


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("falcon-7b", 7.2), ("falcon-40b", 41.8), ("tiny-llama", 1.1), ("Qwen-7B-Chat", 7.7),
        ("Qwen-72B", 72.3), ("Nemotron-22B", 21.3), ("Nemotron-340B", 341), ("INTELLECT-3", 107),
        ("Llama 3.1 (8B)", 8.0), ("Mixtral [8x7B]", 46.7),
        ("DeepSeekMoE-16B", 16.4), ("OLMoE-1B-7B", 6.9), ("stablelm-base-alpha-3b", 3.0), ("Llama-like 13b", 13.0),
    ],
)  # fmt: skip
def test_models_have_about_the_size_that_their_names_say(name, billions):
    model = import_row(row(model=name)).model
    assert count_parameters(model).total == pytest.approx(billions * 1e9, rel=0.06)


def test_a_model_known_by_its_size_alone_is_gated_unless_it_is_a_gpt():
    assert import_row(row(model="custom 6B")).model.gated
    assert not import_row(row(model="GPT 6B")).model.gated


def test_a_blank_precision_of_mlperf_is_fp8_where_the_device_has_it():
    cells = {"model": "Llama 3.1 8B (MLPerf pretraining)", "precision": ""}
    assert import_row(row(**cells), as_user=True).job.precision.compute == "fp8"
    assert import_row(row(gpu="A100", **cells), as_user=True).job.precision.compute == "bf16"


@pytest.mark.parametrize("name", ["SomeMoE-7B", "LLaMA-MoE-3.5B", "Sunlight-16B-A3B"])
def test_unknown_mixtures_are_never_priced_as_dense(name):
    with pytest.raises(SkipRow, match="not known"):
        import_row(row(model=name))


def test_a_larger_sibling_is_not_its_namesake():
    with pytest.raises(SkipRow, match="nor a known architecture"):
        import_row(row(model="Command R+"))
    assert import_row(row(model="Command R")).model.layers == 40


@pytest.mark.parametrize(
    ("setup", "upcast"),
    [
        ("TRL SFTTrainer, QLoRA 4-bit r=16 on all linear layers", True),
        ("axolotl, load_in_4bit, r=32", False),
        ("TRL, QLoRA int4 (AutoGPTQ), r=16", False),
        ("Unsloth, QLoRA 4-bit r=16", False),
        ("LLaMA-Factory, QLoRA 4-bit r=16", False),
        ("TRL, QLoRA 4-bit r=16, accelerate FSDP", False),
        ("LitGPT QLoRA bnb.nf4 r=16", False),
    ],
)
def test_peft_casts_what_bitsandbytes_left_in_16_bits(setup, upcast):
    assert import_row(row(setup=setup, gpus=1)).job.finetune.upcast is upcast


@pytest.mark.parametrize(
    ("setup", "storage"),
    [
        ("axolotl LoRA with load_in_8bit, rank 32, optimizer adamw_bnb_8bit", "int8"),
        ("TRL LoRA r=16 in 8-bit", "int8"),
        ("TRL LoRA r=16, optimizer adamw_bnb_8bit", "16-bit"),
        ("TRL LoRA r=16, 8-bit paged AdamW", "16-bit"),
        ("TRL LoRA r=16, AdamW 4-bit", "16-bit"),
        ("TRL LoRA r=16, load_in_8bit: false", "16-bit"),
        ("TRL QLoRA r=16, adamw_8bit", "nf4"),
    ],
)
def test_bits_of_weights_are_not_those_of_an_optimizer(setup, storage):
    assert import_row(row(setup=setup, gpus=1)).job.finetune.storage == storage


@pytest.mark.parametrize(
    ("setup", "twice"),
    [
        ("axolotl QLoRA r=16", True),
        ("axolotl QLoRA r=16, quantize_moe_experts", True),
        ("Unsloth, QLoRA 4-bit r=32", True),
        ("LLaMA-Factory QLoRA r=8, double_quantization=false", False),
        ("TRL QLoRA r=16", False),
        ("TRL QLoRA r=16, bnb_4bit_use_double_quant", True),
    ],
)
def test_scales_of_4_bit_weights_are_quantised_where_a_program_does_so(setup, twice):
    assert import_row(row(setup=setup, gpus=1)).job.finetune.double_quantization is twice


@pytest.mark.parametrize(
    ("setup", "optimizer"),
    [
        ("trl, paged_adamw_32bit", "paged-adamw"),
        ("trl, paged_adamw_8bit", "paged-adam8bit"),
        ("trl, adamw_bnb_8bit", "adam8bit"),
        ("axolotl, adamw_torch_4bit", "adam4bit"),
        ("torchtune, torchao AdamW 4-bit", "adam4bit"),
        ("trl, lion_8bit", "lion8bit"),
        ("trl, AdamW", "adamw"),
    ],
)
def test_optimizers_by_the_width_of_their_states(setup, optimizer):
    cells = row(setup=setup, gpus=1)
    assert optimizer_of(cells, rule_for(cells), []).name == optimizer


def test_torchs_layers_are_compiled_where_a_row_says_so():
    """torchtitan's compile.enable is off unless it is asked for; its float8 comes with it."""
    eager = import_row(row(setup="torchtitan, FSDP2")).job.framework_options
    assert eager["fused_norm"] is False and eager["logits_bytes"] == 12.0
    for text in (
        "torchtitan, torch.compile",
        "torchtitan; compile per block",
        "torchtitan compiled",
    ):
        assert "fused_norm" not in import_row(row(setup=text)).job.framework_options or (
            import_row(row(setup=text)).job.framework_options["fused_norm"] is True
        )
    assert (
        "logits_bytes"
        not in import_row(
            row(setup="torchtitan, FSDP2", precision="float8 rowwise")
        ).job.framework_options
    )
    told = import_row(row(setup="torchtitan, torch.compile=False")).job.framework_options
    assert told["kernels_per_layer"] == 36


def test_a_training_loop_of_its_own_on_fsdp2_is_no_torchtitan():
    own = import_row(row(setup="PyTorch FSDP2 + DTensor TP, torch.compile")).job.framework_options
    assert own["logits_sharded"] is False and own["accumulates_whole"] is True
    each = import_row(row(setup="PyTorch FSDP2, gradients reduced at every micro-step"))
    assert each.job.framework_options["accumulates_whole"] is False
    adapters = import_row(row(setup="PyTorch FSDP2, LoRA r=16 on all linear layers"))
    assert adapters.job.framework_options["frozen_bytes"] == 4.0
    assert {"frozen weights in fp32", "layers not compiled"} <= set(adapters.assumed)
    titan = import_row(row(setup="torchtitan, FSDP2, torch.compile")).job.framework_options
    assert "accumulates_whole" not in titan and "logits_sharded" not in titan


@pytest.mark.parametrize(
    ("zero", "setup", "whole"),
    [
        ("FSDP", "TRL SFTTrainer, full-parameter fine-tuning", True),
        ("FSDP full_shard", "axolotl full fine-tune", True),
        ("FSDP", "TRL full fine-tuning, sync_each_batch: true", False),
        ("FSDP2", "axolotl full fine-tune", False),
        ("ZeRO-3", "TRL full fine-tuning, DeepSpeed", False),
    ],
)
def test_accelerates_fsdp_sums_whole_gradients_while_it_accumulates(zero, setup, whole):
    options = import_row(row(zero_or_fsdp=zero, setup=setup)).job.framework_options
    assert options.get("accumulates_whole", False) is whole


@pytest.mark.parametrize(
    ("setup", "fused"),
    [
        ("TRL full fine-tuning, torch 2.1", False),
        ("TRL full fine-tuning, optim adamw_torch", False),
        ("TRL full fine-tuning", False),
        ("TRL full fine-tuning, adamw_torch_fused", True),
        ("TRL full fine-tuning, torch 2.9", True),
        ("TRL full fine-tuning, transformers 5.1", True),
        ("TRL full fine-tuning, DeepSpeed ZeRO-2", True),
        ("torchtune full finetune", True),
    ],
)
def test_transformers_asks_for_a_fused_adam_from_torch_2_8_on(setup, fused):
    run = import_row(row(setup=setup, gpus=1))
    assert behaviour(run.job).optimizer_fused is fused


@pytest.mark.parametrize(
    ("setup", "vary"),
    [
        ("ms-swift, LoRA r=8; samples of many lengths up to the maximum", True),
        ("TRL, LoRA r=8, dynamic padding", True),
        ("axolotl, LoRA r=8, sample packing", False),
        ("TRL, LoRA r=8, padded to 2048", False),
        ("TRL, LoRA r=8", False),
    ],
)
def test_samples_with_lengths_of_their_own(setup, vary):
    run = import_row(row(setup=setup, gpus=1))
    assert behaviour(run.job).lengths_vary is vary


@pytest.mark.parametrize(
    "text", ["transformers, eager attention", "trl, attn_implementation: eager"]
)
def test_eager_attention_makes_its_scores(text):
    assert behaviour(import_row(row(setup=text)).job).attention_kernel == "unfused"


def test_mixed_layers_are_refused_where_nobody_knows_them_and_priced_where_a_preset_does():
    assert import_row(row(model="Qwen3-Next-80B-A3B", micro_batch=1)).model.mixer is not None
    with pytest.raises(SkipRow, match="not all layers"):
        import_row(row(model="Zamba2-7B mamba hybrid"))


@pytest.mark.parametrize(
    "name", ["Devstral-Small-2507", "Magistral-Small-2506", "Mistral-Small-3.1-24B"]
)
def test_models_that_share_an_architecture(name):
    model = import_row(row(model=name)).model
    assert (model.layers, model.hidden, model.ffn) == (40, 5120, 32768)


def test_a_dispatcher_between_ranks_means_several_ranks_of_experts():
    mixtral = row(model="Mixtral 8x7B", setup="NeMo Automodel, FSDP2, DeepEP", ep="")
    assert import_row(mixtral).layout.ep == 8
    assert import_row(row(model="Mixtral 8x7B", setup="NeMo Automodel, FSDP2")).layout.ep == 1
    stated = row(model="Mixtral 8x7B", setup="NeMo Automodel, FSDP2, DeepEP", ep=4)
    assert import_row(stated).layout.ep == 4


@pytest.mark.parametrize(("framework", "vpp"), [("NeMo 24.07", 4), ("Megatron-LM", 1)])
def test_a_pipeline_of_nemos_interleaves_unless_its_row_says_otherwise(framework, vpp):
    piped = {"gpus": 64, "tp": 2, "pp": 4, "setup": framework}
    assert import_row(row(**piped)).layout.virtual_stages == vpp  # 32 layers on 4 stages
    assert import_row(row(**piped, vpp=1)).layout.virtual_stages == 1


def test_a_device_with_less_power_than_its_sheet_runs_at_a_lower_clock():
    whole = import_row(row(gpu="H100 SXM 80GB")).cluster.device
    capped = import_row(row(gpu="H100 96GB HBM2e 2.4TB/s 500W")).cluster.device
    # Power goes with the cube of the clock: (5 / 7) ** (1 / 3).
    assert capped.peak("bf16") / whole.peak("bf16") == pytest.approx(0.894, abs=0.001)
    assert import_row(row(gpu="H100 SXM 700W")).cluster.device.peak("bf16") == whole.peak("bf16")


@pytest.mark.parametrize(
    ("cells", "bytes_"),
    [
        ({"setup": "Megatron-Bridge"}, 2.0),
        ({"setup": "Megatron-Bridge; fp32 grad"}, 4.0),
        ({"setup": "Megatron-Bridge; gradients reduced in fp32"}, 4.0),
        ({"setup": "Megatron-Bridge; grad_reduce_in_fp32=False"}, 2.0),
        ({"setup": "Megatron-DeepSpeed", "precision": "bf16 (fp32 grad accumulation)"}, 4.0),
    ],
)
def test_gradients_in_fp32_are_read_wherever_a_row_says_so(cells, bytes_):
    precision = import_row(row(**cells)).job.precision
    assert (precision.gradient_bytes, precision.gradient_reduce_bytes) == (bytes_, bytes_)


@pytest.mark.parametrize("words", ["first and last layers in bf16", "first/last bf16"])
def test_first_and_last_layers_in_16_bits_are_two(words):
    run = import_row(row(setup=f"Megatron-Bridge; {words}", precision="fp8"))
    assert run.job.framework_options["layers_16bit"] == 2
