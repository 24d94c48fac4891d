"""Rows as other people write them: devices, precisions, schedules, software, models, networks.

The rows here are made up in the styles of tables seen elsewhere; none was measured.
"""

import pytest

from meshwright.evidence.import_rows import import_row
from meshwright.evidence.machines import SkipRow, device_key, stated_network_bytes_s
from meshwright.evidence.named import named_framework
from meshwright.evidence.predict import predict
from meshwright.evidence.rows import Row
from meshwright.evidence.software import precision_of, recipe_of, recompute_of, rule_for, zero_of
from meshwright.specs.devices import device_names, load_device


def row(**cells):
    base = {
        "id": "x", "source": "someone's blog", "gpu": "H100", "gpus": "8", "model": "Llama 3.1 8B",
        "seq_len": "8192", "micro_batch": "1", "global_batch": "64",
    }  # fmt: skip
    return Row("mine", {**base, **{k: str(v) for k, v in cells.items()}})


@pytest.mark.parametrize(
    ("printed", "preset"),
    [
        ("NVIDIA GH200 480GB", "gh200"), ("Grace Hopper 96GB", "gh200"), ("NVIDIA H200", "h200"),
        ("H200 SXM5 141GB", "h200"), ("NVIDIA H20", "h20"), ("NVIDIA H100 80GB HBM3", "h100"),
        ("H100 PCIe", "h100-pcie"), ("NVIDIA H100 NVL", "h100-nvl"), ("H800", "h800"),
        ("A800-SXM4-80GB", "a800"), ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("A100 (80G)", "a100-80g"), ("8xA100", "a100-80g"),
        ("Tesla V100-SXM2-16GB", "v100-16g"), ("V100 32GB", "v100-32g"), ("NVIDIA L40S", "l40s"),
        ("NVIDIA A10G", "a10g"), ("NVIDIA A10", "a10"), ("Tesla T4", "t4"), ("A40", "a40"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"), ("RTX 3090 Ti", "rtx3090"), ("RTX5090", "rtx5090"), ("RTX 3060 12GB", "rtx3060"), ("GeForce RTX 5080", "rtx5080"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"), ("RTX A6000 48GB", "a6000"),
        ("AMD Instinct MI300X OAM", "mi300x"), ("MI325X", "mi325x"), ("MI355X", "mi355x"),
        ("MI250", "mi250x"), ("NVIDIA GB200 NVL72", "gb200"), ("NVIDIA B200", "b200"),
        ("GB300 NVL72", "gb300"), ("B300 SXM6", "b300"), ("Cloud TPU v5e", "tpu-v5e"),
        ("v5p", "tpu-v5p"), ("TPU v5 lite", "tpu-v5e"), ("TPU v6e-256", "tpu-v6e"),
        ("trn1.32xlarge", "trainium1"), ("AWS Trainium2", "trainium2"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40g"), ("A100 80GB PCIe", "a100-pcie-80g"),
        ("NVIDIA L40 48GB", "l40"), ("AMD Instinct MI350X", "mi350x"), ("MI300A APU", "mi300a"),
        ("GH200 144GB HBM3e", "gh200-144g"), ("TPU v7x (Ironwood) chip", "tpu-v7"),
    ],
)  # fmt: skip
def test_devices_by_their_usual_spellings(printed, preset):
    assert device_key(row(gpu=printed)) == preset


@pytest.mark.parametrize("name", [n for n in device_names() if n != "cpu"])
def test_every_preset_is_found_by_its_own_names(name):
    assert device_key(row(gpu=name)) == name
    assert device_key(row(gpu=load_device(name).name)) == name


def test_a_printed_memory_size_makes_a_variant():
    run = import_row(row(gpu="H100 96GB HBM2e 2.4TB/s"))
    assert run.cluster.device.memory_bytes == 96 * 2**30
    assert run.cluster.device.memory_bandwidth_bytes_s == 2.4e12
    with pytest.raises(SkipRow, match="Cerebras"):
        device_key(row(gpu="Cerebras WSE-3"))
    slower = import_row(row(gpu="H100 94GB HBM2e low-TDP")).cluster.device
    assert slower.memory_bandwidth_bytes_s == 2.4e12
    assert slower.peak_flops["bf16"] == pytest.approx(989e12 * (500 / 700) ** (1 / 3))


def test_chips_of_a_pod_come_in_its_own_hosts():
    run = import_row(row(gpu="TPU v7x (Ironwood) chip", gpus=128, global_batch=128))
    assert run.cluster.gpus == 128 and "gpus_per_node=4" in run.assumed


@pytest.mark.parametrize(
    ("printed", "compute"),
    [
        ("float8", "fp8"), ("FP8-CS", "fp8"), ("MXFP8", "fp8"), ("fp8 (delayed scaling)", "fp8"),
        ("NVFP4", "fp4"), ("mxfp4", "fp4"), ("BF16", "bf16"), ("bfloat16", "bf16"),
        ("bf16-mixed", "bf16"), ("bf16-true", "bf16"), ("16-mixed", "fp16"), ("AMP O2", "fp16"),
        ("mixed precision (fp16)", "fp16"), ("fp32", "fp32"), ("TF32", "tf32"), ("float32", "fp32"),
    ],
)  # fmt: skip
def test_precisions_by_their_usual_spellings(printed, compute):
    assert recipe_of(printed).compute == compute


def test_an_fp32_gradient_sum_is_kept_in_fp32():
    table, assumed = row(precision="bf16 (fp32 grad accumulation)", setup="DeepSpeed"), []
    from meshwright.costs.frameworks import framework

    recipe = precision_of(table, rule_for(table), framework("deepspeed"), assumed)
    assert recipe.compute == "bf16" and recipe.gradient_bytes == 4


@pytest.mark.parametrize(
    ("texts", "framework"),
    [
        ({"setup": "torchtitan, FSDP2"}, "torchtitan"), ({"setup": "FSDP1 FULL_SHARD"}, "fsdp"),
        ({"setup": "Hugging Face TRL + PEFT, DeepSpeed ZeRO-3"}, "huggingface"),
        ({"setup": "axolotl"}, "huggingface"), ({"setup": "LLaMA-Factory"}, "huggingface"),
        ({"setup": "Megatron-Core 0.9, TE"}, "megatron"), ({"source": "NVIDIA/NeMo docs"}, "nemo"),
        ({"setup": "Megatron-DeepSpeed"}, "megatron-deepspeed"), ({"setup": "MaxText"}, "maxtext"),
        ({"setup": "DeepSpeed ZeRO-2"}, "deepspeed"), ({"zero_or_fsdp": "FSDP2"}, "torchtitan"),
        ({"setup": "nanotron"}, "nanotron"), ({"setup": "litgpt finetune"}, "litgpt"),
        ({"setup": "torchtune lora_finetune"}, "torchtune"), ({"setup": "MindSpeed"}, "megatron"),
    ],
)  # fmt: skip
def test_software_by_what_texts_call_it(texts, framework):
    assert named_framework(row(**texts)) == framework
    assert rule_for(row(**texts)).framework == framework


@pytest.mark.parametrize(
    ("printed", "schedule", "vpp"),
    [
        ("1F1B", "1f1b", 1), ("Interleaved1F1B", "interleaved", 2), ("interleaved_1f1b", "interleaved", 2),
        ("ZBVZeroBubble", "zb-v", 2), ("zero-bubble", "zb-h1", 1), ("ZB-H2", "zb-h2", 1),
        ("GPipe", "gpipe", 1), ("ScheduleGPipe", "gpipe", 1), ("DualPipeV", "dualpipe-v", 2),
        ("v-half", "v-half", 2), ("1f1b-interleaved-vpp3", "interleaved", ""),
    ],
)  # fmt: skip
def test_schedules_as_frameworks_print_them(printed, schedule, vpp):
    run = import_row(
        row(
            model="Llama 3.1 70B",
            gpus=16,
            pp=4,
            tp=4,
            vpp=vpp,
            schedule=printed,
            setup="Megatron-LM",
        )
    )
    assert run.layout.schedule == schedule
    if vpp == "":
        assert run.layout.virtual_stages == 3


@pytest.mark.parametrize(
    ("setup", "batch", "accumulation"),
    [
        ("grad_accum=4", "", 4), ("gradient accumulation steps: 8", "", 8), ("GA=2", "", 2),
        ("GAS 16", "", 16), ("gradient_accumulation_steps=4", "", 4), ("accum_steps=2", "", 2),
        ("micro_num (grad accum)=4", "", 4),
    ],
)  # fmt: skip
def test_accumulation_steps_give_the_batch(setup, batch, accumulation):
    run = import_row(row(setup=setup, global_batch=batch))
    assert run.job.global_batch == 8 * accumulation
    assert run.layout.micro_batches(run.job.global_batch) == accumulation


def test_a_batch_in_tokens_is_read():
    run = import_row(row(global_batch="", setup="global batch tokens=4M", seq_len=4096))
    assert run.job.global_batch == 1024


@pytest.mark.parametrize(
    ("printed", "zero"),
    [
        ("ZeRO-3", 3), ("zero2", 2), ("DeepSpeed stage 1", 1), ("FULL_SHARD", 3), ("DDP", 0),
        ("SHARD_GRAD_OP", 2), ("distributed optimizer", 1), ("FSDP", 3), ("none", 0), ("NO_SHARD", 0),
    ],
)  # fmt: skip
def test_sharding_by_its_usual_names(printed, zero):
    one = row(zero_or_fsdp=printed)
    assert zero_of(one, rule_for(one), [])[0] == zero


@pytest.mark.parametrize(
    ("printed", "mode"),
    [
        ("full", "full"), ("yes", "full"), ("True", "full"), ("gradient checkpointing", "full"),
        ("none", "none"), ("no", "none"), ("off", "none"), ("selective (per op)", "selective"),
        ("core_attn", "selective"), ("minimal", "selective"), ("uniform", "full"),
    ],
)  # fmt: skip
def test_recomputation_by_its_usual_names(printed, mode):
    one = row(recompute=printed)
    assert recompute_of(one, rule_for(one), []) == mode


@pytest.mark.parametrize(
    ("printed", "gbit"),
    [
        ("8x 400 Gb/s InfiniBand", 400), ("InfiniBand NDR 400Gb/s", 400), ("400 Gb/s RDMA per GPU", 400),
        ("NVLink 900 GB/s; 3200 Gb/s EFA per node", 400), ("4x HDR 200Gb/s", 100),
        ("Compute: 8x CX-7 400Gb/s, Storage: 2x 200Gb/s, Management: 100Gb/s Ethernet", 400),
        ("RoCE 8x200Gbps", 200), ("NVSwitch; ConnectX-6 25Gb/s Ethernet", None), ("NVLink", None),
        ("800Gbps", 100), ("intra 300 GB/s, inter 800 Gbps/node", 100), ("", None),
    ],
)  # fmt: skip
def test_the_compute_network_is_read_not_the_hosts_card(printed, gbit):
    found = stated_network_bytes_s(printed, 8, 8)
    assert (None if found is None else round(found * 8 / 1e9)) == gbit


def test_known_architectures_fill_blanks_where_the_printed_dimensions_agree():
    run = import_row(
        row(model="Qwen3-235B-A22B", gpus=64, ep=8, layers=94, hidden=4096, heads=64, experts=128,
            topk=8, ffn=1536)
    )  # fmt: skip
    assert run.model.head_dim == 128 and run.model.kv_heads == 4
    assert run.model.experts.ffn == 1536 and run.model.experts.top_k == 8
    other = import_row(row(model="Llama 3.1 8B", layers=32, hidden=2048, heads=16, params_b=2))
    assert other.model.hidden == 2048 and other.model.vocab != 128256


def test_versions_without_their_dot_and_active_sizes_are_known_models():
    small = import_row(row(model="Llama31-8B")).model
    assert (small.layers, small.hidden, small.heads, small.vocab) == (32, 4096, 32, 128256)
    scout = import_row(row(model="Llama4-Scout-17B-16E-Instruct")).model
    assert scout.experts is not None and scout.experts.experts == 16
    with pytest.raises(SkipRow, match="not known"):
        import_row(row(model="Ours-9B-12E"))


@pytest.mark.parametrize("size", [0.35, 1.3, 7, 13, 23, 46, 70, 130, 530])
def test_shapes_from_parameter_counts_divide_and_hold_that_many(size):
    model = import_row(row(model=f"GPT {size}B", gpus=8)).model
    assert model.heads * 128 == model.hidden and model.layers % 4 == 0
    if model.hidden >= 4096:
        assert model.heads % 8 == 0
    held = 12 * model.layers * model.hidden**2 + model.vocab * model.hidden
    assert held / (size * 1e9) == pytest.approx(1, abs=0.05)


def test_fewer_sequences_than_replicas_share_them():
    long = {"gpus": 256, "seq_len": 131072, "global_batch": 64, "micro_batch": 1}
    run = import_row(row(source="torchtitan", **long))
    assert (run.layout.dp, run.layout.cp) == (64, 4) and "cp=4" in run.assumed
    assert run.job.global_batch == 64
    stated = import_row(row(source="torchtitan", dp=256, **long))
    assert stated.layout.cp == 1


def test_blackwell_in_the_later_rounds_trains_in_four_bits_where_a_row_leaves_it_open():
    rounds = {"gpu": "NVIDIA Blackwell GPU (B200-SXM-180GB)", "model": "Llama 3.1 8B (MLPerf)"}
    later = import_row(row(source="mlcommons/training_results_v5.1 X/results/y", **rounds))
    earlier = import_row(row(source="mlcommons/training_results_v5.0 X/results/y", **rounds))
    stated = import_row(row(source="mlcommons/training_results_v5.1", precision="fp8", **rounds))
    found = [run.job.precision.compute for run in (later, earlier, stated)]
    assert found == ["fp4", "fp8", "fp8"]


def test_memory_in_whole_gigabytes_of_a_monitor_is_the_processs():
    monitored = import_row(row(source="megatron", setup="GPU Memory (GB) as printed"))
    counted = import_row(row(source="megatron", setup="max_memory_allocated"))
    assert (monitored.memory_convention, counted.memory_convention) == ("device", "allocated")


def test_layers_that_a_source_recomputes_are_counted():
    lora = {"source": "mlcommons/training_results_v5.0", "model": "Llama 2 70B LoRA (MLPerf)"}
    some = import_row(row(gpu="AMD Instinct MI300X", **lora)).layout
    none = import_row(row(gpu="AMD Instinct MI325X", **lora)).layout
    assert (some.recompute, some.recompute_layers) == ("full", 21)
    assert (none.recompute, none.recompute_layers) == ("none", 0)


def test_a_house_with_several_programs_is_read_by_the_program():
    for path, framework in (
        ("gpu-recipes training/a4 maxtext-pretraining-gke", "maxtext"),
        ("gpu-recipes training/a4/custom", "nemo"),
        ("tpu-recipes training/ironwood", "maxtext"),
    ):
        one = row(source=f"AI-Hypercomputer/{path}", setup="" if "tpu" in path else "NeMo 24")
        assert rule_for(one).framework == framework


def test_a_stated_sliding_window_bounds_attention():
    seen = row(model="Mistral-7B", setup="Megatron; sliding-window 4096", seq_len=32768)
    assert import_row(seen).model.window == 4096
    assert import_row(row(model="Mistral-7B", seq_len=32768)).model.window == 0


def test_families_follow_the_name_or_the_parameter_count():
    shape = {"layers": 24, "hidden": 2048, "heads": 16, "vocab": 50304, "ffn": 8192}
    assert not import_row(row(model="GPT 1.3B", **shape)).model.gated
    assert import_row(
        row(model="my-llama", ffn=5504, **{k: v for k, v in shape.items() if k != "ffn"})
    ).model.gated
    # 24 layers of 4 + 8 and of 4 + 12 hidden² a layer: 1.4 and 1.8 billion with two embeddings.
    assert not import_row(row(model="ours", params_b=1.41, **shape)).model.gated
    assert import_row(row(model="ours", params_b=1.82, **shape)).model.gated


def test_unknown_sparse_models_are_skipped_never_priced_as_dense():
    for name in ("Frontier-30B-A3B", "Our-MoE 20B", "Foo-8x3B"):
        with pytest.raises(SkipRow, match="not known"):
            import_row(row(model=name))
    assert import_row(row(model="Qwen3-30B-A3B", ep=8)).model.experts is not None


def test_adapters_are_read_from_name_and_setup():
    run = import_row(row(model="Llama 2 7B QLoRA", setup="peft r=64 on q_proj, v_proj; nf4"))
    tuned = run.job.finetune
    assert tuned.method == "qlora" and tuned.rank == 64 and tuned.storage == "nf4"
    assert tuned.targets == ("q", "v")
    plain = import_row(row(model="Llama 2 7B", setup="LoRA rank 16 on all linear layers, trl"))
    assert plain.job.finetune.method == "lora" and plain.job.finetune.rank == 16
    assert {"gate", "up", "down"} <= set(plain.job.finetune.targets)
    full = import_row(row(model="Llama 2 7B full finetune")).job.finetune
    assert full is not None and full.method == "full"  # its kind, and no adapters


def test_what_was_assumed_is_listed_and_a_user_gets_no_source_rules():
    one = row(source="vTrain", model="GPT 3.6B", layers=30, hidden=3072, heads=32, gpu="A100 80GB")
    known, told = predict([one])[0], predict([one], as_user=True)[0]
    assert known.run.job.framework == told.run.job.framework == "megatron-deepspeed"
    assert "zero=0" in known.run.assumed and told.run.assumed
    assert known.run.model.vocab == told.run.model.vocab == 50257


def test_a_row_that_names_the_debugging_mode_pays_for_checked_collectives():
    run = import_row(row(setup="torchtitan, TORCH_DISTRIBUTED_DEBUG=DETAIL", tp="8"))
    assert run.job.framework_options["collectives_checked"] is True
    plain = import_row(row(setup="torchtitan, TORCH_DISTRIBUTED_DEBUG=INFO", tp="8"))
    assert "collectives_checked" not in plain.job.framework_options


def test_links_a_pair_make_islands_of_the_devices_that_they_join():
    hosts = {"gpu": "A100 80GB", "gpus": "16", "gpus_per_node": "8"}
    run = import_row(
        row(**hosts, interconnect="NVLink 4 inter-GPU; 4x Omni-Path 100 Gb/s per node")
    )
    near, between, network = run.cluster.levels
    # Twelve lanes of an A100, four to each peer: three peers.
    assert (near.domain, near.kind, near.p2p_bytes_s) == (4, "nvlink", 100e9)
    assert (between.domain, between.kind) == (8, "pcie")
    assert network.bandwidth_bytes_s == pytest.approx(4 * 12.5e9 / 8)
    switched = import_row(row(**hosts, interconnect="NVLink; 4x Omni-Path 100 Gb/s per node"))
    assert switched.cluster.levels[0].domain == 8
    whole = import_row(row(**hosts, interconnect="NVLink 1 inter-GPU; InfiniBand 200 Gb/s"))
    assert len(whole.cluster.levels) == 2
