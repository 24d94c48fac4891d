"""What a draw of pretraining files of small repositories showed, by kind."""

from pathlib import Path

import pytest
from folders import GUESS, put

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_model
from meshwright.specs.errors import SpecError


def notes(found: Imported) -> str:
    return "\n".join(found.notes)


POD = """
apiVersion: batch/v1
kind: Job
spec:
  parallelism: 1
  template:
    spec:
      nodeSelector:
        cloud.google.com/gke-tpu-accelerator: "tpu-v6e-slice"
        cloud.google.com/gke-tpu-topology: "2x4"
      containers:
      - command: ["/bin/bash", "-c"]
        args:
        - |
          set -ex
          python3 -m MaxText.train ${CONFIG_PATH} model_name=${MODEL_NAME} per_device_batch_size=8 max_target_length=1024
        env:
        - name: MODEL_NAME
          value: "gemma2-2b"
        resources:
          limits:
            google.com/tpu: "8"
"""


def test_a_container_s_variables_and_slice_count():
    found = import_text(POD, "job.yaml", Given())
    assert (found.model.name, found.layout.world) == ("gemma2-2b", 8)
    assert "v6e" in found.cluster.device.name


def test_a_job_of_vertex_ai_hands_its_command_on_in_a_variable():
    text = """{"jobSpec": {"workerPoolSpecs": [
      {"machineSpec": {"machineType": "a3-highgpu-8g", "acceleratorType": "NVIDIA_H100_80GB", "acceleratorCount": 8},
       "replicaCount": 1, "containerSpec": {"command": ["bash", "-c", "bash gpu_multi_process_run.sh"], "env": [
         {"name": "COMMAND", "value": "torchrun --nproc_per_node 8 train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --max_seq_length 2048 --learning_rate 1e-5 --bf16 True"}]}},
      {"machineSpec": {"acceleratorType": "NVIDIA_H100_80GB", "acceleratorCount": 8}, "replicaCount": 3, "containerSpec": {}}]}}"""
    found = import_text(text, "job.json", GUESS)
    assert (found.model.name, found.job.seq_len) == ("qwen2.5-7b", 2048)
    assert "H100" in found.cluster.device.name.upper()


def test_maxtext_with_pictures_is_no_decoder_of_text():
    text = "python3 -m MaxText.train MaxText/configs/sft-vision-chartqa.yml model_name=gemma3-4b use_multimodal=true\n"
    with pytest.raises(SpecError, match="vision-language"):
        import_text(text, "run.sh", GUESS)


FMS = "torchrun --nproc_per_node=8 main_training.py --fsdp_activation_checkpointing={on} --selective_checkpointing={share} --report_interval=200 {rest}\n"


def test_fms_fsdp_s_own_defaults_stand_behind_its_command():
    found = import_text(FMS.format(on=False, share=1, rest=""), "train.sh", GUESS)
    assert found.format == "FMS-FSDP command"
    assert (found.model.name, found.job.seq_len, found.layout.micro_batch) == ("llama2-7b", 4096, 2)
    assert (found.layout.zero, found.layout.recompute) == (3, "none")
    assert "torch.compile" in notes(found)


def test_fms_fsdp_computes_a_share_of_the_layers_again():
    found = import_text(FMS.format(on=True, share="1/4", rest="--model_variant=llama3_8b_4k"), "a.sh", GUESS)  # fmt: skip
    assert (found.model.name, found.layout.recompute_layers) == ("llama3-8b", 8)
    with pytest.raises(SpecError, match="share of the layers"):
        import_text(FMS.format(on=True, share="7", rest=""), "a.sh", GUESS)
    with pytest.raises(SpecError, match="state-space"):
        import_text(FMS.format(on=True, share="1", rest="--model_variant=mamba_9.8b"), "a.sh", GUESS)  # fmt: skip


@pytest.mark.parametrize(
    "program", ["train_speculator.py", "train_eagle3_online.py", "train_medusa.py"]
)
def test_what_guesses_ahead_of_a_frozen_model_is_no_run_of_that_model(program: str):
    text = f"torchrun --nproc_per_node=8 {program} --model_path meta-llama/Llama-2-7b-hf --batch_size 8 --seq_length 4096 --learning_rate 1e-3\n"
    with pytest.raises(SpecError, match="frozen"):
        import_text(text, "train.sh", GUESS)


LEVANTER = """
data: {{tokenizer: passthrough, vocab_size: 55028}}
model: {{type: gpt2, hidden_dim: 768, num_heads: 12, num_layers: 12, seq_len: 1024}}
initialize_from_hf: stanford-crfm/music-small-800k
{rest}
trainer: {{mp: "p=f32,c=bfloat16", train_batch_size: 512, per_device_parallelism: 16}}
optimizer: {{learning_rate: 3e-5}}
"""


def test_levanter_trains_the_shape_that_its_file_describes():
    model = import_text(LEVANTER.format(rest=""), "run.yaml", GUESS).model
    assert (model.layers, model.hidden, model.vocab) == (12, 768, 55_028)
    with pytest.raises(SpecError, match="--model"):
        import_text(LEVANTER.format(rest="use_hf_model_config: true"), "run.yaml", Given())


def test_levanter_s_adapters_have_a_rank_of_their_own():
    text = LEVANTER.format(rest="lora: {alpha: 8.0}")
    assert import_text(text, "run.yaml", GUESS).job.finetune.rank == 8


def test_mpirun_starts_as_many_ranks_as_it_says_whatever_a_host_holds():
    text = "#!/bin/bash\n#SBATCH --nodes=2\nmpirun -np 4 --npernode 8 python3 pretrain.py --model_name gpt2 --batch_size 8 --seq_len 512 --lr 1e-4\n"
    assert import_text(text, "run.sbatch", GUESS).layout.world == 4


HYDRA = """
import hydra
@hydra.main(version_base=None, config_path="config", config_name="config")
def main(cfg):
    model = FSDP(model)
"""


def test_a_program_s_own_hydra_files_are_put_together(tmp_path: Path):
    found = put(
        tmp_path, "mpirun -np 4 python3 src/pretrain.py model=large train.batch_size=24",
        src___pretrain__py=HYDRA, src___config___config__yaml="defaults:\n  - model: small\n  - train: usual\n",
        src___config___model___small__yaml="model_name: openai-community/gpt2\n",
        src___config___model___large__yaml="model_name: openai-community/gpt2-large\nmax_length: 512\n",
        src___config___train___usual__yaml="batch_size: 4\nlr: 1e-4\n",
    )  # fmt: skip
    assert found.format == "Hydra configuration of a program of its own"
    assert (found.model.name, found.job.seq_len) == ("gpt2-large", 512)
    assert (found.layout.micro_batch, found.layout.world, found.layout.zero) == (24, 4, 3)


def test_a_batch_of_all_micro_batches_of_a_device_is_said():
    text = "model: {name: gpt2}\ntraining: {batch_size: 512, micro_batch_size: 8, gradient_accumulation_steps: 64, learning_rate: 3e-4, max_seq_len: 1024}\n"
    assert "what one device adds up" in notes(import_text(text, "a.yaml", GUESS))


def test_a_context_size_is_a_length():
    text = "model: {context_size: 128, dim: 256, num_layers: 4, num_heads: 4}\ntrain: {batch_size: 16, learning_rate: 3e-4}\n"
    assert import_text(text, "a.yaml", GUESS).job.seq_len == 128


PROGRAM = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from accelerate import Accelerator
def main(max_seq_length: int = 2048, load_model_dtype: str = "bfloat16", per_device_train_batch_size: int = 1):
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", torch_dtype=getattr(torch, load_model_dtype))
    loader = DataLoader(data, batch_size=per_device_train_batch_size)
    fully_shard(model)
    loss.backward()
"""


def test_a_width_and_a_length_that_a_function_takes_by_default():
    found = import_text(PROGRAM, "train.py", Given(guess=True, model=load_model("qwen2.5-7b")))
    assert (found.job.precision.name, found.job.seq_len) == ("pure-bf16", 2048)


def test_a_program_around_pictures_is_refused():
    text = PROGRAM.replace("fully_shard(model)", "size = model.config.vision_config\n    fully_shard(model)")  # fmt: skip
    with pytest.raises(SpecError, match="vision-language"):
        import_text(text, "train.py", GUESS)


def test_a_program_five_folders_above_its_script_is_found(tmp_path: Path):
    deep = tmp_path / "scripts" / "shared" / "pretrain" / "gpt2" / "exp"
    deep.mkdir(parents=True)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--seq_len', default=640)\nloss.backward()\n"
    )
    (deep / "run.sh").write_text("python src/train.py --model_name gpt2 --batch_size 8 --lr 1e-4\n")
    assert import_file(deep / "run.sh", GUESS).job.seq_len == 640


OTHER = {
    "speech": "model: {_target_: nemo.collections.asr.models.EncDec, n_layers: 17, d_model: 512, n_heads: 8}\ntrain_ds: {manifest_filepath: a, batch_size: 16}\noptim: {lr: 1e-3}\n",
    "vision": "vlm: {arch: mot}\nmodel: {dim: 512, n_layers: 4, n_heads: 8}\ntrain: {batch_size: 16, lr: 1e-3, seq_len: 64}\n",
    "without attention": "model: {n_layers: 4, d_model: 128, layer: {d_state: 64}}\nloader: {batch_size: 50}\noptimizer: {lr: 0.01}\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHER)
def test_tables_of_other_models_are_refused_by_what_only_they_say(kind: str):
    with pytest.raises(SpecError, match=kind):
        import_text(OTHER[kind], "a.yaml", GUESS)


def test_what_speaks_of_no_text_is_taken_for_no_language_model():
    text = "mpirun -np 2 python main.py --train_data_pattern clicks.bin --model_dir wide_deep --batch_size 4096 --lr 1e-3\n"
    with pytest.raises(SpecError, match="nothing says that it trains a language model"):
        import_text(text, "a.sh", GUESS)
    given = Given(guess=True, model=load_model("gpt2"), seq_len=128)
    assert import_text(text, "a.sh", given).model.name == "gpt2"


@pytest.mark.parametrize("name", ["efficientdet-d0", "pretrain_mae_large_patch16_224", "resnet50"])
def test_vision_models_are_known_by_their_names(name: str):
    text = f"python train.py --model_name={name} --batch_size 8 --num_epochs 3 --seq_len 4\n"
    with pytest.raises(SpecError, match="vision model"):
        import_text(text, "a.sh", GUESS)


@pytest.mark.parametrize(
    "text",
    [
        "model_name_or_path: gpt2\nmax_seq_len: 1024\nmodels: [{model_name: gpt2}]\nicl_tasks: a.yaml\ndevice_eval_batch_size: 8\n",
        "stage: sft\nmodel_name_or_path: Qwen/Qwen2.5-7B\ndo_predict: true\nper_device_train_batch_size: 8\nfinetuning_type: lora\ntemplate: qwen\n",
        "trainer: {devices: 8, num_nodes: 1}\nmodel: {tensor_model_parallel_size: 1, pipeline_model_parallel_size: 1, global_batch_size: 32, micro_batch_size: 4, restore_from_path: a.nemo, data: {test_ds: {names: [a]}}}\n",
    ],
)  # fmt: skip
def test_what_only_evaluates_does_not_train(text: str):
    with pytest.raises(SpecError, match="does not train"):
        import_text(text, "a.yaml", GUESS)


def test_a_loop_that_makes_pictures_is_refused_whatever_reads_its_words(tmp_path: Path):
    program = 'encoder = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-2-7b-hf")\ndiffusion = create_diffusion("")\nloss.backward()\n'
    with pytest.raises(SpecError, match="diffusion"):
        put(tmp_path, "torchrun --nproc_per_node 8 train.py --model Big_3B --global_batch_size 512 --lr 1e-4", train__py=program)  # fmt: skip


MAXTEXT = "python3 -m MaxText.train MaxText/configs/base.yml model_name=llama2-7b per_device_batch_size=4 hardware=gpu ici_fsdp_parallelism=8 {}\n"


def maxtext(words: str) -> Imported:
    return import_text(MAXTEXT.format(words), "run.sh", GUESS)


def test_axes_of_a_slice_multiply_its_devices():
    assert (maxtext("").layout.world, maxtext("ici_data_parallelism=4").layout.world) == (8, 32)
    assert maxtext("ici_data_parallelism=4").layout.shard == 8
    assert maxtext("ici_fsdp_transpose_parallelism=4").layout.world == 32
    assert "DiLoCo" in notes(maxtext("ici_diloco_parallelism=2"))


@pytest.mark.parametrize(
    "words", ["quantization=intmp", "dtype=float16", "attention=zz", "logits_dot_in_fp32=true", "attn_logits_soft_cap=50.0"]
)  # fmt: skip
def test_maxtext_names_what_it_does_not_price(words: str):
    assert words.partition("=")[0] in notes(maxtext(words))
    assert words.partition("=")[0] not in notes(maxtext(""))


FOUNDRY = """
max_seq_len: 2048
global_train_batch_size: 512
{top}
model: {{name: mpt_causal_lm, d_model: 4096, n_heads: 32, n_layers: 32, expansion_ratio: 4, max_seq_len: 2048, vocab_size: 50368}}
fsdp_config: {{sharding_strategy: FULL_SHARD, mixed_precision: PURE{fsdp}}}
train_loader: {{name: text, dataset: {{max_seq_len: 2048}}}}
optimizer: {{name: decoupled_adamw, lr: 1e-4}}
precision: amp_bf16
max_duration: 10ba
"""


def foundry(top: str = "device_train_microbatch_size: 4", fsdp: str = "") -> Imported:
    return import_text(FOUNDRY.format(top=top, fsdp=fsdp), "a.yaml", GUESS)


def test_composers_count_of_micro_batches_is_no_size_of_one():
    assert foundry("device_train_grad_accum: 16").layout.micro_batch == 4
    assert foundry().layout.micro_batch == 4


def test_composers_groups_and_algorithms_without_settings():
    assert foundry(fsdp=", data_parallel_shard_degree: 4").layout.shard == 4
    for words in ("process_group: node", "limit_all_gathers: false"):
        assert words.partition(":")[0] in notes(foundry(fsdp=f", {words}"))
    on = foundry("device_train_microbatch_size: 4\nalgorithms: {gated_linear_units: {}}")
    assert "gated by an algorithm" in notes(on)


def test_a_reference_counts_its_dots_from_where_it_stands():
    text = """
train: {global_batch_size: 64, optimizer: {lr: 8e-4}}
model: {n_layer: 4, n_embd: 256, n_head: 4, activation_function: swiglu}
datamodule: {batch_size: 8, max_length: 512, whole: {global_batch_size: "${...train.global_batch_size}"}}
"""
    found = import_text(text, "a.yaml", GUESS)
    assert (found.job.global_batch, found.model.gated) == (64, True)


def test_a_levanter_file_may_leave_its_optimizer_out():
    text = "model: {type: gpt2, hidden_dim: 64, num_heads: 4, num_layers: 2}\ntrainer: {mp: f32, train_batch_size: 32, fsdp_axis: embed}\n"
    assert import_text(text, "a.yaml", GUESS).format == "Levanter YAML"


def test_fms_hf_tuning_names_its_way_without_padding():
    text = '{"model_name_or_path": "meta-llama/Llama-2-7b-hf", "per_device_train_batch_size": 4, "learning_rate": 1e-5, "padding_free": ["huggingface"], "training_data_path": "a"}'
    assert import_text(text, "a.json", GUESS).job.document_masking
