"""Options of pretraining formats: what is new in a table that trains is named, what is known is priced or named."""

import copy

import pytest
import yaml

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)
GPU = Given(cluster=load_cluster("h100:2x8"), guess=True)
NANOTRON = {
    "general": {"project": "x", "run": "y"},
    "model": {"dtype": "bfloat16", "init_method": {"std": 0.02}, "model_config": {
        "is_llama_config": True, "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 16,
        "intermediate_size": 4096, "vocab_size": 32000, "tie_word_embeddings": False}},
    "parallelism": {"dp": 16, "tp": 1, "pp": 1, "pp_engine": "1f1b"},
    "tokens": {"micro_batch_size": 1, "sequence_length": 2048, "batch_accumulation_per_replica": 1, "train_steps": 10},
    "optimizer": {"zero_stage": 1, "optimizer_factory": {"name": "adamW", "torch_adam_is_fused": True}},
    "data_stages": [{"name": "a", "start_training_step": 1, "sequence_length": 8192, "data": {"seed": 1}}],
}  # fmt: skip
NEMO = {
    "name": "megatron_gpt", "trainer": {"devices": 8, "num_nodes": 2, "precision": "bf16", "accumulate_grad_batches": 1},
    "exp_manager": {"name": "x"},
    "model": {"mcore_gpt": True, "megatron_amp_O2": True, "micro_batch_size": 1, "global_batch_size": 32, "encoder_seq_length": 2048,
              "num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "ffn_hidden_size": 4096, "hidden_dropout": 0.0, "attention_dropout": 0.0,
              "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "max_position_embeddings": 2048,
              "optim": {"name": "distributed_fused_adam", "lr": 1e-4, "overlap_param_sync": True}, "data": {"data_impl": "mmap"}},
}  # fmt: skip
NEURON = {
    "trainer": {"devices": 32, "num_nodes": 2}, "data": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
    "distributed_strategy": {"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 1, "zero1": True},
    "model": {"model_config": "config.json", "optim": {"name": "adamw_fp32OptState"}}, "precision": {"type": "mixed_precision"},
}  # fmt: skip
MINDFORMERS = {
    "run_mode": "train", "runner_config": {"batch_size": 1, "epochs": 1}, "optimizer": {"type": "AdamW"},
    "parallel_config": {"data_parallel": 16, "model_parallel": 1, "pipeline_stage": 1}, "parallel": {"enable_parallel_optimizer": True},
    "recompute_config": {"recompute": False}, "context": {"mode": 0},
    "model": {"model_config": {"type": "LlamaConfig", "num_layers": 8, "hidden_size": 1024, "num_heads": 16, "vocab_size": 32000, "seq_length": 2048}},
}  # fmt: skip
NEOX = {
    "pipe_parallel_size": 1, "model_parallel_size": 1, "num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 2048,
    "precision": "bfloat16", "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "zero_optimization": {"stage": 1},
}  # fmt: skip
NAMED = {
    "nanotron": NANOTRON,
    "nemo": NEMO,
    "neuron": NEURON,
    "mindformers": MINDFORMERS,
    "neox": NEOX,
}


def read(name: str, **changes: object) -> Imported:
    """A format's table with fields of dotted names (`__` a point) set."""
    data = copy.deepcopy(NAMED[name])
    for dotted, value in changes.items():
        table = data
        *outer, last = dotted.split("__")
        for part in outer:
            table = table.setdefault(part, {})
        table[last] = value
    given = GPU
    if name == "neuron":
        given = Given(
            cluster=load_cluster("trainium1:2x16"), model=load_model("llama3-8b"), guess=True
        )
    return import_text(yaml.safe_dump(data), "x.yaml", given)


def options(found: Imported, *kinds: str) -> str:
    return " ".join(one.option for one in found.remarks if one.kind in kinds)


@pytest.mark.parametrize(
    ("name", "table"),
    [("nanotron", t) for t in ("model", "model__model_config", "parallelism", "tokens", "optimizer", "optimizer__optimizer_factory")]
    + [("nemo", t) for t in ("model", "model__optim", "trainer")]
    + [("neuron", t) for t in ("trainer", "data", "distributed_strategy", "model", "model__optim", "precision")]
    + [("mindformers", t) for t in ("runner_config", "optimizer", "parallel_config", "parallel", "recompute_config", "context", "model__model_config")]
    + [("neox", "zero_optimization")],
)  # fmt: skip
def test_an_option_that_nobody_knows_is_named_in_every_table_that_trains(name: str, table: str):
    found = read(name, **{f"{table}__sparkle_depth": 7})
    assert "sparkle" in options(found, "unread")
    assert "sparkle" not in options(read(name), "unread")


@pytest.mark.parametrize(
    ("name", "option", "value", "what"),
    [
        ("nanotron", "model__make_vocab_size_divisible_by", 1024, ("vocab_multiple", 1024)),
        ("nanotron", "model__ddp_bucket_cap_mb", 100, ("bucket_parameters", 100 * 2**20 / 2)),
        ("nanotron", "optimizer__optimizer_factory__torch_adam_is_fused", False, ("optimizer_fused", False)),
        ("nemo", "model__optim__overlap_param_sync", False, ("gather_overlapped", False)),
        ("nemo", "model__optim__overlap_grad_sync", False, ("reduce_overlapped", False)),
        ("nemo", "model__ub_tp_comm_overlap", False, ("tensor_overlapped", False)),
    ],
)  # fmt: skip
def test_what_deviates_from_the_frameworks_way_is_priced(
    name: str, option: str, value: object, what: tuple[str, object]
):
    field, wanted = what
    assert read(name, **{option: value}).job.framework_options[field] == wanted


def test_what_nemo_switches_reaches_the_run():
    assert read("nemo").job.precision.master_bytes == 4
    whole = read("nemo", model__megatron_amp_O2=False).job.precision
    assert (whole.parameter_bytes, whole.master_bytes, whole.compute) == (4, 0, "bf16")
    assert read("nemo").job.attention_kernel == "flash"
    assert read("nemo", model__mcore_gpt=False).job.attention_kernel == "unfused"
    assert read("nemo", model__fsdp=True).layout.zero == 3
    assert read("nemo", model__data__reset_attention_mask=True).job.document_masking
    tuned = read("nemo", model__peft={"peft_scheme": "lora", "lora_tuning": {"adapter_dim": 16}})
    assert tuned.job.finetune is not None and tuned.job.finetune.rank == 16
    with pytest.raises(SpecError, match="frozen model"):
        read("nemo", model__peft={"peft_scheme": "ptuning"})
    assert "drop_layers" in options(read("nemo", model__drop_layers=[1, 2]), "unmodelled")


def test_stages_of_other_lengths_and_tasks_are_named():
    assert "data_stages" in options(read("nanotron"), "unmodelled")
    found = read("neox", train_impl="dpo")
    assert found.task == "dpo" and found.reference
    assert not read("neox", train_impl="dpo", dpo_reference_free=True).reference


def test_neuron_cores_are_parts_of_chips():
    found = read("neuron")
    assert found.cluster.gpus == 64 and found.layout.dp == 8
    assert found.cluster.device.memory_bytes == pytest.approx(16 * 2**30)
    many = Given(
        cluster=load_cluster("trainium2:2x16"), model=load_model("llama3-8b"), guess=True
    )  # logical cores of two
    found = import_text(
        yaml.safe_dump({**NEURON, "trainer": {"devices": 64, "num_nodes": 2}}), "x.yaml", many
    )
    assert found.cluster.gpus == 128 and found.cluster.device.card_processes == 4
    alone = Given(model=load_model("llama3-8b"), guess=True)
    found = import_text(yaml.safe_dump(NEURON), "x.yaml", alone)
    assert (found.cluster.nodes, found.cluster.gpus) == (2, 64)


BRIDGE = (
    "#!/bin/bash\ntorchrun --nproc_per_node 8 --nnodes 2 scripts/training/run_recipe.py --recipe qwen3_30b_a3b_pretrain_config "
    "mixed_precision=bf16_mixed model.tensor_model_parallel_size=2 model.expert_model_parallel_size=4 train.global_batch_size=64 "
    "train.micro_batch_size=1 model.seq_length=4096 "
)


@pytest.mark.parametrize(
    ("word", "field", "value"),
    [
        ("model.num_attention_heads=64", "heads", 64),
        ("model.kv_channels=64", "head_dim", 64),
        ("model.num_query_groups=8", "kv_heads", 8),
        ("model.qk_layernorm=false", "qk_norm", "none"),
        ("model.moe_router_topk=4", "experts.top_k", 4),
        ("model.moe_ffn_hidden_size=512", "experts.ffn", 512),
    ],
)
def test_overrides_change_a_recipes_model(word: str, field: str, value: object):
    found: object = import_text(f"{BRIDGE}{word}\n", "x.sh", GPU).model
    for part in field.split("."):
        found = getattr(found, part)
    assert found == value


@pytest.mark.parametrize(
    "word",
    [
        "model.experimental_attention_variant=dsa",
        "model.position_embedding_type=none",
        "model.heterogeneous_layers_config_path=x.json",
        "model.sparkle_depth=7",
        "train.sparkle_depth=7",
        "ddp.sparkle_depth=7",
        "optimizer.sparkle_depth=7",
        "dist.sparkle_depth=7",
        "comm_overlap.sparkle_depth=7",
        "mixed_precision.sparkle_depth=7",
        "dataset.sparkle_depth=7",
    ],
)
def test_overrides_of_another_kind_are_named(word: str):
    name = word.partition("=")[0].rpartition(".")[2].replace("_", "-")
    found = import_text(f"{BRIDGE}{word}\n", "x.sh", GPU)
    assert any(name in one.option.replace("_", "-") for one in found.remarks)


RATE = "\nlr0: 1.0e-4\nbatch_size: 4\nmax_length: 2048\n"


def test_a_table_of_text_without_a_model_asks_for_it():
    text = RATE.replace("max_length", "tokenizer_json: t.json\nmax_length")
    with pytest.raises(SpecError, match="--model"):
        import_text(text, "c.yaml", GUESS)
    with pytest.raises(SpecError, match="names no model in words"):
        import_text("learning_rate: 0.1\nbatch_size: 4\n", "c.yaml", GUESS)


def test_a_family_and_its_size_stand_apart():
    found = import_text("model: llama2\nmodel_size: 13b" + RATE, "c.yaml", GUESS)
    assert found.model.name == "llama2-13b"


def test_a_model_is_described_in_short_words():
    text = "model: {vocab_size: 259, context: 64, width: 128, heads: 4, layers: 4}\ntraining: {batch_size: 32, learning_rate: 0.1}\n"
    found = import_text(text, "c.yaml", GUESS)
    assert (found.model.layers, found.model.hidden, found.model.heads) == (4, 128, 4)
    assert (found.job.seq_len, [one for one in found.remarks if one.kind == "unread"]) == (64, [])


def test_what_stands_under_a_switched_off_fsdp_says_nothing():
    text = "model: llama2-7b\nfsdp_train: {}\nfsdp_hyperparameters: {{cpu_offload: true}}\ndevice: [0, 1]"
    on = import_text(text.format("true") + RATE, "c.yaml", GUESS)
    assert (on.layout.zero, bool(on.offload), on.layout.world) == (3, True, 2)
    off = import_text(text.format("false") + RATE, "c.yaml", GUESS)
    assert (off.layout.zero, bool(off.offload)) == (0, False)


def test_weights_in_four_bits_train_through_adapters():
    found = import_text("model: llama2-7b\nbit: 4" + RATE, "c.yaml", GUESS)
    assert found.job.finetune is not None
    assert found.job.finetune.label().startswith("qlora rank 8")


def test_a_shape_in_words_that_others_write_too_is_no_neox():
    shape = "num_layers: 8\nhidden_size: 512\nnum_attention_heads: 8\nvocab_size: 16000\n"
    with pytest.raises(SpecError, match="describes no training run"):
        import_text(shape, "model.yaml", GUESS)
    assert import_text(shape + "pos_emb: rotary\n", "m.yaml", GUESS).format.startswith("GPT-NeoX")


def test_a_network_without_attention_is_refused():
    text = "model: {kind: mlp, hidden_size: 128, num_layers: 4}\noptimizer: {learning_rate: 0.1}\ndata: {micro_batch_size: 4}\ntopology: {sequence_parallel_size: 1}\n"
    with pytest.raises(SpecError, match="without attention"):
        import_text(text, "c.yaml", GUESS)


def test_the_length_of_a_nested_table_of_training_arguments_is_in_its_data():
    text = "model: {base_model_id: Qwen/Qwen3-0.6B}\ndataset: {max_seq_length: 640}\ntraining: {per_device_train_batch_size: 2, learning_rate: 0.1, bf16: true}\nlora: {r: 4, bias: none}\n"
    found = import_text(text, "c.yaml", GUESS)
    assert (found.model.name, found.job.seq_len) == ("qwen3-0.6b", 640)
    assert [one for one in found.remarks if one.kind == "unread"] == []


def test_a_micro_batch_says_more_than_a_batch_beside_it():
    text = "model: {path: Qwen/Qwen3-0.6B}\ndata: {train_batch_size: 64, micro_batch_size_per_gpu: 4, max_length: 2048}\nengine: {strategy: fsdp2}\noptim: {lr: 0.1}\n"
    found = import_text(text, "c.yaml", GUESS)
    assert (found.layout.micro_batch, found.job.global_batch, found.layout.zero) == (4, 64, 3)


def test_a_tower_that_is_not_frozen_is_no_vision_model():
    text = "model_name: Qwen/Qwen3-0.6B\nbatch_size: 4\nlearning_rate: 0.1\nmax_length: 512\nfreeze_vision_tower: {}\n"
    assert import_text(text.format("false"), "c.yaml", GUESS).model.name == "qwen3-0.6b"
    with pytest.raises(SpecError, match="vision"):
        import_text(text.format("true"), "c.yaml", GUESS)


def test_a_shape_that_speaks_of_no_text_is_no_language_model():
    text = "architecture: transformer\nhidden_dim: 256\nnum_layers: 4\nnum_heads: 8\nlearning_rate: 0.1\nbatch_size: 256\nexploration_constant: 1.4\n"
    with pytest.raises(SpecError, match="no training run of a language model"):
        import_text(text, "c.yaml", GUESS)
    with pytest.raises(SpecError, match="without attention"):
        import_text("model: {rnn_type: lstm, hidden_dim: 8, n_layers: 2}\ntraining: {batch_size: 4, learning_rate: 0.1}\ndataset: {vocab_size: 100}\n", "c.yaml", GUESS)  # fmt: skip


def test_tables_of_tokens_are_tied_as_it_says():
    text = "model: {n_layer: 8, n_head: 8, n_embd: 512, block_size: 512, vocab_size: 50257, tie_weights: true}\ntrain: {batch_size: 2, learning_rate: 0.1}\n"
    assert import_text(text, "c.yaml", GUESS).model.tied_embeddings
