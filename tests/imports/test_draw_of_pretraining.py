"""Faults of a draw of pretraining files, each as the kind that it stands for."""

import pytest
import yaml
from folders import put

from meshwright.imports.files import import_text
from meshwright.imports.interpolate import resolved
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError

GIVEN = Given(cluster=load_cluster("h100:1x8"), guess=True)
SHAPE = (
    "--num-layers 16 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 "
    "--tokenizer-type NullTokenizer --micro-batch-size 1 --global-batch-size 16 --bf16 "
)  # fmt: skip


def remarks(found: Imported, kind: str) -> str:
    return " ".join(one.option for one in found.remarks if one.kind == kind)


def test_references_within_a_table_are_followed():
    data = {"model": {"hidden_size": 8, "ffn": "${multiply:4, ${.hidden_size}}", "inner": {"a": "${..hidden_size}"}}, "b": "${model.hidden_size}"}  # fmt: skip
    found = resolved(data)
    assert found["model"]["ffn"] == 32 and found["model"]["inner"]["a"] == 8 and found["b"] == 8


def test_the_vocabulary_of_a_neox_file_is_the_one_that_its_paths_name():
    data = {"num_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "seq_length": 1024, "precision": "bfloat16", "pipe_parallel_size": 0,
            "train_micro_batch_size_per_gpu": 1, "vocab_file": "converted/llama3-8b-instruct/tokenizer/tokenizer.json", "tokenizer_type": "HFTokenizer"}  # fmt: skip
    assert import_text(yaml.safe_dump(data), "x.yml", GIVEN).model.vocab == 128_256


def test_msrun_says_how_many_devices_there_are(tmp_path):
    found = put(tmp_path, f"N=8\nmsrun --worker_num $((N*2)) --local_worker_num $N --join=True pretrain_gpt.py {SHAPE}--ai-framework mindspore")  # fmt: skip
    assert (found.cluster.nodes, found.cluster.gpus) == (2, 16)


def test_what_deepspeeds_configuration_says_beside_the_stage_is_named(tmp_path):
    config = '{"train_batch_size": 16, "zero_optimization": {"stage": 1}, "curriculum_learning": {"enabled": true}}'
    command = f"cat > ds.json <<EOF\n{config}\nEOF\ndeepspeed --num_gpus 8 pretrain_gpt.py {SHAPE}--deepspeed --deepspeed_config ds.json"
    found = put(tmp_path, command)
    assert found.layout.zero == 1 and "curriculum_learning" in remarks(found, "unmodelled")


def test_filters_of_a_printed_text_are_followed(tmp_path):
    words = "A=\"\n  --tensor-model-parallel-size 2 \n\"\nB=$(echo \"$A\" | tr '\\n' ' ' | sed 's/  \\+/ /g')\n"
    found = put(tmp_path, f"{words}torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE} $B")
    assert found.layout.tp == 2


def test_a_text_that_nobody_states_contains_nothing(tmp_path):
    command = f'if [[ $ARGS == *"Hybrid"* ]]; then EXE=pretrain_hybrid.py; else EXE=pretrain_gpt.py; fi\ntorchrun --nproc_per_node 8 $EXE {SHAPE}$ARGS'
    assert put(tmp_path, command).model.layers == 16


def test_overrides_beside_a_performance_recipe_count():
    words = "torchrun --nproc_per_node 8 scripts/performance/run_script.py --model_family_name llama --model_recipe_name llama3_8b --gpu h100 --num_gpus 8 -mb 1 -gb 8 -tp 1"
    plain = import_text(f"#!/bin/bash\n{words}\n", "x.sh", GIVEN)
    wide = import_text(f"#!/bin/bash\n{words} ddp.grad_reduce_in_fp32=true\n", "x.sh", GIVEN)
    assert plain.job.precision.gradient_bytes == 2 and wide.job.precision.gradient_bytes == 4


def test_blocks_of_a_pipeline_and_the_norm_of_yuan(tmp_path):
    found = put(tmp_path, f"torchrun --nproc_per_node 8 pretrain_yuan.py {SHAPE}--pipeline-model-parallel-size 4 --norm-dtype RMSNorm "
                "--pipeline-model-parallel-method block --pipeline-model-parallel-blocks 3,4,4,5")  # fmt: skip
    assert found.layout.stage_layers == (3, 4, 4, 5) and found.model.norm == "rmsnorm"


def test_adam_mini_holds_one_moment():
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 4096\n[optimizer]\nname = "adam_mini"\n[job]\n'
    assert import_text(text, "x.toml", GIVEN).job.optimizer.state_bytes == 4


def test_gradients_of_nemo_rl_are_as_wide_as_its_table_says():
    ddp = {"grad_reduce_in_fp32": False, "overlap_grad_reduce": False}
    table = {
        "enabled": True,
        "tensor_model_parallel_size": 1,
        "distributed_data_parallel_config": ddp,
    }
    data = {"policy": {"model_name": "Qwen/Qwen3-8B", "precision": "bfloat16", "train_global_batch_size": 8, "train_micro_batch_size": 1,
                       "max_total_sequence_length": 4096, "megatron_cfg": table}, "cluster": {"num_nodes": 1, "gpus_per_node": 8}}  # fmt: skip
    found = import_text(yaml.safe_dump(data), "x.yaml", Given(cluster=GIVEN.cluster, model=load_model("qwen3-8b"), guess=True))  # fmt: skip
    assert found.job.precision.gradient_bytes == 2
    assert found.job.framework_options == {"reduce_overlapped": False}


REGISTRY = """
from torchtitan.models.{family} import model_registry
from torchtitan.trainer import Trainer

def run() -> {trainer}.Config:
    return {trainer}.Config(
        {more}
        model_spec=model_registry("{flavor}"),
        training=TrainingConfig(local_batch_size=1, seq_len=4096),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        debug=DebugConfig(sparkle_depth=3),
    )
"""


def registry(family: str, flavor: str, more: str = "", trainer: str = "Trainer") -> Imported:
    text = REGISTRY.format(family=family, flavor=flavor, more=more, trainer=trainer)
    return import_text(text, "config_registry.py", GIVEN)


def test_what_a_registry_says_outside_of_the_layout_is_not_dropped():
    found = registry("llama3", "8B", "loss=ChunkedLossWrapper.Config(),")
    assert found.job.loss == "chunked" and "sparkle_depth" in remarks(found, "unread")
    assert registry("transformers_modeling_backend", "full", 'hf_model="Qwen/Qwen3-4B",').model.name == "qwen3-4b"  # fmt: skip


def test_a_loop_of_reinforcement_learning_is_no_pretraining():
    with pytest.raises(SpecError, match="reinforcement"):
        registry("qwen3", "4B", trainer="Controller")


def test_starcoder_of_nanotron_has_biases():
    data = {"model": {"model_config": {"is_starcoder2_config": True, "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
            "num_kv_heads": 2, "vocab_size": 49152}}, "parallelism": {"dp": 8, "tp": 1, "pp": 1}, "optimizer": {"zero_stage": 0, "adam_eps": 1e-8, "torch_adam_is_fused": False},
            "tokens": {"micro_batch_size": 1, "sequence_length": 1024, "train_steps": 10}}  # fmt: skip
    found = import_text(yaml.safe_dump(data), "x.yaml", GIVEN)
    assert found.model.qkv_bias and found.model.ffn_bias and not remarks(found, "unread")
    assert found.job.framework_options["optimizer_fused"] is False


DEFAULTS = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "expert_model_parallel_size": 1, "use_distributed_optimizer": True,
            "recompute_granularity": None, "ckpt_format": "torch", "tokenizer_type": "NullTokenizer", "micro_batch_size": 2, "global_batch_size": 128,
            "seq_length": 4096, "bf16": True, "data_path": None, "vocab_file": None}  # fmt: skip


def test_a_table_of_megatrons_defaults_asks_for_the_model_and_is_no_neox():
    with pytest.raises(SpecError, match="Megatron-LM needs"):
        import_text(yaml.safe_dump(DEFAULTS), "trainer_base.yaml", GIVEN)
    given = Given(cluster=GIVEN.cluster, model=load_model("llama3-8b"), guess=True)
    assert import_text(yaml.safe_dump(DEFAULTS), "trainer_base.yaml", given).layout.zero == 1


def test_positions_that_nothing_states_are_a_guess(tmp_path):
    found = put(tmp_path, "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --vocab-size 1000 "
                "--seq-length $SEQ --micro-batch-size 2 --gradient-accumulation-steps 4 --enable-gradient-checkpointing --bf16")  # fmt: skip
    assert "max-position" in remarks(found, "guess")
    assert found.job.global_batch == 64 and found.layout.recompute == "full"


@pytest.mark.parametrize(("said", "named"), [("", True), (" --moe-token-dispatcher-type allgather", True), (" --moe-token-dispatcher-type alltoall", False)])  # fmt: skip
def test_experts_whose_tokens_are_all_gathered_are_named(said, named):
    text = ("torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --vocab-size 1000 --seq-length 512 "
            "--max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 64 --bf16 --num-experts 8 --expert-model-parallel-size 8 --moe-grouped-gemm")  # fmt: skip
    assert ("token-dispatcher" in remarks(import_text(text + said, "x.sh", GIVEN), "unmodelled")) == named  # fmt: skip


def test_what_asks_for_a_container_is_no_part_of_a_performance_recipe(tmp_path):
    found = put(tmp_path, "python setup_experiment.py --model_family_name llama --model_recipe_name llama3_8b --gpu h100 --container_image /x/nemo.sqsh --num_gpus 8 "
                "--gpus_per_node 8 --offline -tp 2 -pp 1 -cp 1 -mb 1 -gb 64 --custom_mounts=/x --compute_dtype bf16 --enable_vboost false --time_limit 1 --packager none")  # fmt: skip
    assert not remarks(found, "unread") and "image" not in remarks(found, "unmodelled")
    assert found.layout.tp == 2


@pytest.mark.parametrize("between", ["=", " "])
def test_titans_file_of_a_command_in_a_variable(tmp_path, between):
    (tmp_path / "run.toml").write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 4096\n[parallelism]\ntensor_parallel_degree = 2\n[job]\ndescription = "x"\n'
    )
    text = f'export HERE=$PWD\nCMD="\\\ncd /a; \\\nexport A=1;\npython -m torchtitan.train \\\n--job.config_file{between}$HERE/run.toml \\\n--training.local_batch_size=3"\nsrun bash -c "$CMD"\n'
    found = put(tmp_path, text)
    assert (found.layout.tp, found.layout.micro_batch, found.job.seq_len) == (2, 3, 4096)


@pytest.mark.parametrize(("layers", "named"), [(4, True), ("${LAYERS}", False)])
def test_a_table_that_a_launcher_fills_in_leaves_the_dispatcher_to_it(layers, named):
    arguments = {"--num-layers": 4, "--hidden-size": 512, "--num-attention-heads": 8, "--vocab-size": 1000, "--seq-length": 512, "--max-position-embeddings": 512,
                 "--micro-batch-size": 1, "--global-batch-size": 64, "--bf16": True, "--num-experts": 8, "--expert-model-parallel-size": 8, "--moe-grouped-gemm": True,
                 "--wandb-project": str(layers)}  # fmt: skip
    found = import_text(yaml.safe_dump({"MODEL_ARGS": arguments}), "model.yaml", GIVEN)
    assert ("token-dispatcher" in remarks(found, "unmodelled")) == named


@pytest.mark.parametrize(("recipe", "length"), [("llama3_8b", 8192), ("llama31_405b", 8192), ("qwen3_30b_a3b", 4096)])  # fmt: skip
def test_a_performance_recipe_has_its_familys_length(tmp_path, recipe, length):
    found = put(tmp_path, f"python setup_experiment.py -mr {recipe} -g h100 -ng 8 -gn 8 -tp 2 -pp 1 -cp 1 -mb 1 -gb 64")  # fmt: skip
    assert found.job.seq_len == length and "--seq" in remarks(found, "guess")
