"""Configurations that a tracker of runs has kept, every value in a table of its own."""

from meshwright.imports.files import import_text
from meshwright.imports.logged_tables import unwrapped
from meshwright.imports.reading import Given

ARGUMENTS = {
    "num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "ffn_hidden_size": 4096, "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 1, "use_distributed_optimizer": True, "tokenizer_type": "NullTokenizer", "vocab_size": 32000,
    "transformer_impl": "local", "micro_batch_size": 2, "global_batch_size": 32, "seq_length": 2048, "bf16": True, "world_size": 16,
    "num_query_groups": 4, "group_query_attention": True, "lora_r": 16, "lora_target_modules": [], "no_shared_storage": True,
}  # fmt: skip


def test_a_tracker_s_table_is_read_as_the_arguments_it_holds():
    lines = ["wandb_version: 1", "_wandb:\n    value: {cli_version: 0.1}"]
    lines += [f"{name}:\n    desc: null\n    value: {str(value).lower() if isinstance(value, bool) else value}" for name, value in ARGUMENTS.items()]  # fmt: skip
    found = import_text("\n".join(lines), "config.yaml", Given(guess=True))
    assert (found.model.layers, found.model.kv_heads, found.model.vocab) == (8, 4, 32000)
    assert (found.layout.tp, found.layout.dp, found.layout.micro_batch) == (2, 8, 2)
    assert found.job.finetune is None


def test_other_tables_stay_as_they_are():
    for table in (
        {"a": {"value": 1}, "b": 2},
        {f"k{i}": {"value": 1, "more": 2} for i in range(9)},
    ):
        assert unwrapped(table) is table


def test_a_trainer_s_table_with_its_model_s_configuration_among_it():
    said = {
        "model_type": "qwen3_moe", "hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 9000,
        "intermediate_size": 3072, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "head_dim": 64, "max_position_embeddings": 4096,
        "per_device_train_batch_size": 4, "learning_rate": 1e-6, "output_dir": "out", "max_length": 2048, "bf16": True, "num_beams": 1, "typical_p": 1,
        "past_index": -1, "rope_theta": 10000, "label2id": {"LABEL_0": 0},
    }  # fmt: skip
    lines = [f"{name}:\n    value: {str(value).lower() if isinstance(value, bool) else value}" for name, value in said.items()]  # fmt: skip
    found = import_text("\n".join(lines), "config.yaml", Given(guess=True))
    assert (found.model.layers, found.model.kv_heads, found.model.vocab) == (6, 4, 9000)
    assert found.model.experts is not None and found.model.experts.experts == 8
    assert (found.layout.micro_batch, found.job.seq_len) == (4, 2048)
    assert not [one for one in found.remarks if one.kind == "unread"]
