"""What a reading of whole projects of Megatron-LM's kin brought up: small files of the same kinds, written here."""

from pathlib import Path

import pytest

from meshwright.imports.critique import price
from meshwright.imports.files import import_file, import_text, read_any
from meshwright.imports.interpolate import resolved
from meshwright.imports.reading import Given, Imported, Reading
from meshwright.imports.shell.words import unset
from meshwright.specs import SpecError, load_cluster

H8 = Given(cluster=load_cluster("h100:1x8"))
GUESS = Given(guess=True)
SHAPE = "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 2048 --vocab-size 32000 "
RUN = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE}--micro-batch-size 1 --global-batch-size 16 --bf16 "


def _read(text: str, name: str = "run.sh", folder: Path | None = None) -> Reading:
    return read_any(text, name, GUESS, folder)[0]


def _said(found: Imported | Reading, option: str) -> str:
    return " ".join(one.text for one in found.remarks if option in one.option)


def test_layers_that_predict_further_tokens_are_priced() -> None:
    plain = import_text(RUN, "x.sh", H8)
    ahead = import_text(f"{RUN}--mtp-num-layers 2 --mtp-loss-scaling-factor 0.1", "x.sh", H8)
    assert (plain.model.predict_layers, ahead.model.predict_layers) == (0, 2)
    assert not _said(ahead, "mtp-num-layers")
    slower, lighter = price(ahead).estimate, price(plain).estimate
    assert slower.step_time_s > lighter.step_time_s
    assert slower.peak_memory_bytes > lighter.peak_memory_bytes


@pytest.mark.parametrize(
    ("pattern", "depths"), [("M-M*", 0), ("M-M*/*-", 1), ("M-M*/*-/*-", 2), ("M-|M*/*-", 1)]
)
def test_a_pattern_holds_blocks_of_further_tokens(pattern: str, depths: int) -> None:
    found = import_text(f"{RUN}--hybrid-layer-pattern '{pattern}' --mamba-num-heads 32", "x.sh", H8)
    assert (found.model.layers, found.model.predict_layers) == (4, depths)


@pytest.mark.parametrize(("layout", "said"), [("Et|tt|tt|ttmL", False), ("Et|tt|ttm|tL", True)])
def test_further_tokens_away_from_the_head(layout: str, said: bool) -> None:
    flags = RUN.replace("--num-layers 8", "--num-layers 7" if not said else "--num-layers 6")
    flags += f"--mtp-num-layers 1 --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout '{layout}'"
    assert bool(_said(import_text(flags, "x.sh", H8), "pipeline-model-parallel-layout")) is said


BRIDGE = (
    "from megatron.bridge.training.config import ConfigContainer\n"
    "from megatron.bridge.models.hybrid.hybrid_provider import HybridModelProvider\n"
    "from megatron.bridge.recipes.common import _pretrain_common\n"
    "def nemotron_3_own_pretrain_8gpu_h100_bf16_config() -> ConfigContainer:\n"
    "    cfg = _pretrain_common()\n"
    "    cfg.model = HybridModelProvider(hybrid_layer_pattern='MEM*EM-E', num_layers=8, hidden_size=1024,\n"
    "        num_attention_heads=8, num_query_groups=2, ffn_hidden_size=2048, num_moe_experts=8, moe_ffn_hidden_size=512,\n"
    "        moe_router_topk=2, mamba_num_heads=16, mamba_state_dim=64, seq_length=4096, vocab_size=32000)\n"
    "    cfg.model.expert_model_parallel_size = 8\n"
    "    cfg.model.pipeline_model_parallel_layout = stages(8)\n"
    "    cfg.train.micro_batch_size = 1\n    cfg.train.global_batch_size = 16\n"
    "{more}    return cfg\n"
    "def default_own_config(length: int) -> HFDatasetConfig:\n    return HFDatasetConfig(length)\n"
    "def stages(n):\n    return [stage(i) for i in outside(n)]\n"
)  # fmt: skip


def test_a_state_space_recipe_that_says_its_layers() -> None:
    found = import_text(BRIDGE.format(more=""), "nemotron.py", GUESS)
    assert (found.model.layers, found.model.hidden, found.layout.ep) == (8, 1024, 8)
    assert found.model.mixer is not None and found.model.mixer.heads == 16
    assert found.cluster.gpus == 8


def test_a_state_space_recipe_that_does_not() -> None:
    text = BRIDGE.format(more="").replace("hybrid_layer_pattern='MEM*EM-E', num_layers=8, hidden_size=1024,", "")  # fmt: skip
    with pytest.raises(SpecError, match="has state-space layers and is no preset"):
        import_text(text, "nemotron.py", GUESS)


@pytest.mark.parametrize(
    ("more", "graphs"),
    [
        ("", "layers"),
        ("recompute_granularity = 'selective'\n    cfg.model.recompute_modules = ['moe']", "none"),
    ],
)
def test_graphs_beside_experts_that_run_again(more: str, graphs: str) -> None:
    text = "    cfg.model.cuda_graph_impl = 'transformer_engine'\n"
    text += f"    cfg.model.{more}\n" if more else ""
    found = import_text(BRIDGE.format(more=text), "nemotron.py", GUESS)
    assert found.job.framework_options.get("graphs", "none") == graphs
    assert bool(_said(found, "--cuda-graph-modules")) is (graphs == "none")
    price(found)


def test_graphs_beside_sharded_weights() -> None:
    flags = "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --cuda-graph-impl transformer_engine"
    found = import_text(f"{RUN}{flags} --cuda-graph-modules attn", "x.sh", H8)
    assert "sharded weights" in _said(found, "--cuda-graph-modules")
    price(found)


BLOOM = (
    RUN.replace("--num-layers 8", "--num-layers 6")
    + "--embed-layernorm --position-embedding-type alibi "
)
EMBEDDINGS = "--pp-partition-method 'type:transformer|embedding'"


def test_embedding_and_head_count_as_layers_of_a_stage() -> None:
    text = f"{BLOOM}--pipeline-model-parallel-size 8 "
    found = import_text(text + EMBEDDINGS, "x.slurm", H8)
    assert found.layout.stage_layers == (0, 1, 1, 1, 1, 1, 1, 0)
    price(found)
    with pytest.raises(SpecError, match="at most the 6 layers"):
        import_text(text, "x.slurm", H8)


@pytest.mark.parametrize(
    ("flags", "zero"),
    [
        ("--deepspeed --zero-stage 0", 1),
        ("--deepspeed --zero-stage 2", 2),
        ("--deepspeed --zero-stage 0 --no-pipeline-parallel", 0),
        ("--zero-stage 0", 0),
    ],
)
def test_the_optimizer_for_bf16_shards_its_states(flags: str, zero: int) -> None:
    reading = _read(f"{BLOOM}{flags}")
    assert reading.layout["zero"] == zero
    assert bool(_said(reading, "--zero-stage")) is (zero == 1)


@pytest.mark.parametrize(
    ("pipes", "kind", "zero"), [(1, "bfloat16", 1), (0, "bfloat16", 0), (1, "fp16", 0)]
)
def test_the_optimizer_for_bf16_in_neox(pipes: int, kind: str, zero: int) -> None:
    text = (
        f'{{"pipe_parallel_size": {pipes}, "model_parallel_size": 1, "num_layers": 8, "hidden_size": 1024, "num_attention_heads": 8, '
        f'"seq_length": 2048, "train_micro_batch_size_per_gpu": 1, "precision": "{kind}", "zero_optimization": {{"stage": 0}}}}'
    )
    assert _read(text, "own.yml").layout["zero"] == zero


NEMO = (
    "name: {name}\ntrainer: {{devices: 8, num_nodes: 1, precision: bf16}}\nmodel: {{mcore_gpt: true, micro_batch_size: 1, "
    "global_batch_size: 8, encoder_seq_length: 2048, num_layers: 8, hidden_size: 1024, num_attention_heads: 8, "
    "num_query_groups: {groups}, tensor_model_parallel_size: 1, pipeline_model_parallel_size: 1, optim: {{name: distributed_fused_adam}}}}\n"
)


@pytest.mark.parametrize(("groups", "heads"), [("1", 1), ("4", 4), ("null", 8)])
def test_nemo_counts_query_groups_without_a_switch(groups: str, heads: int) -> None:
    reading = _read(NEMO.format(name="own", groups=groups), "own.yaml")
    assert reading.model is not None and reading.model.kv_heads == heads


def test_nemo_models_without_attention_in_every_layer() -> None:
    with pytest.raises(SpecError, match="griffin"):
        _read(NEMO.format(name="megatron_griffin", groups="1"), "own.yaml")


def test_nemo_launcher_says_which_model_it_trains() -> None:
    text = (
        "run: {model_train_name: llama2_7b, results_dir: x}\ntrainer: {devices: 8, num_nodes: 1, precision: bf16}\nmodel: {mcore_gpt: true, "
        "micro_batch_size: 1, global_batch_size: 128, tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1, encoder_seq_length: 2048, "
        "restore_from_path: null, optim: {name: distributed_fused_adam}, data: {train_ds: {max_seq_length: 2048}}}\n"
    )
    found = import_text(text, "squad.yaml", GUESS)
    assert found.model.name == "llama2-7b"
    assert "by this name" in _said(found, "run.model_train_name")


NEMO2 = "import nemo_run as run\nfrom nemo import lightning as nl\nfrom nemo.collections.{which} import models\n"


def test_nemo_recipes_of_pictures() -> None:
    text = NEMO2.format(which="diffusion") + (
        "def unit_test_recipe() -> run.Partial:\n"
        "    return run.Partial(train, model=run.Config(models.Own), trainer=run.Config(nl.Trainer, devices=8))\n"
    )
    with pytest.raises(SpecError, match="diffusion"):
        _read(text, "recipe.py")


def test_nemo_parts_of_recipes() -> None:
    text = NEMO2.format(which="llm") + (
        "def own_trainer(devices: int = 8) -> run.Config[nl.Trainer]:\n    return build(run.Config, devices)\n"
    )
    with pytest.raises(SpecError, match="functions and classes that a program calls"):
        _read(text, "parts.py")


def test_a_script_of_mindspeed_mm() -> None:
    text = "torchrun --nproc_per_node 8 pretrain_transformers.py --use-mcore-models --tensor-model-parallel-size 1 --mm-data d.json --mm-model m.json --micro-batch-size 1 --seq-length 4096\n"
    with pytest.raises(SpecError, match="pictures or sound"):
        _read(text)


@pytest.mark.parametrize(
    "model",
    ["{model_path: own, encoders: {image: {model_path: b}}}", "{model_path: own, teacher_model_path: qwen2-vision-model}"],
)  # fmt: skip
def test_veomni_trains_encoders(model: str) -> None:
    text = f"model: {model}\ndata: {{train_path: x, dataloader: {{type: native}}, datasets_type: iterable}}\ntrain: {{accelerator: {{fsdp_config: {{fsdp_mode: fsdp2}}}}, micro_batch_size: 1, global_batch_size: 8}}\n"
    with pytest.raises(SpecError, match=r"trains a (?:model of pictures|vision)"):
        _read(text, "run.yaml")


def _submission(root: Path, bench: str) -> Path:
    folder = root / "benchmarks" / bench / "implementations"
    (folder / "one" / "conf").mkdir(parents=True)
    (folder / "two").mkdir()
    model = "".join(
        f"  {field}: ${{oc.env:{name},{usual}}}\n"
        for field, name, usual in (
            ("tensor_model_parallel_size", "TP", 1),
            ("pipeline_model_parallel_size", "PP", 1),
            ("micro_batch_size", "MBS", 1),
            ("global_batch_size", "GBS", 8),
            ("encoder_seq_length", "SEQ", 8192),
        )
    )
    text = f"trainer:\n  devices: ${{oc.env:DGXNGPU,8}}\n  num_nodes: ${{oc.env:DGXNNODES,1}}\n  precision: bf16\nmodel:\n  mcore_gpt: true\n{model}"
    (folder / "one" / "conf" / "custom.yaml").write_text(
        text + "  optim: {name: distributed_fused_adam}\n"
    )
    path = folder / "two" / "config_H100_2x8.sh"
    path.write_text(
        "export DGXNNODES=2\nexport DGXNGPU=8\nexport TP=4\nexport MODEL_SIZE=8b\nexport GBS=32\n"
    )
    return path


def test_a_submission_of_variables_beside_the_one_of_the_code(tmp_path: Path) -> None:
    found = import_file(_submission(tmp_path, "llama31_8b"), GUESS)
    assert (found.model.name, found.layout.tp, found.cluster.gpus) == ("llama3.1-8b", 4, 16)
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "config_H100_2x8.sh").write_text("export DGXNNODES=2\nexport DGXNGPU=8\n")
    with pytest.raises(SpecError, match="that is not here"):
        import_file(alone / "config_H100_2x8.sh", GUESS)


@pytest.mark.parametrize(("name", "device"), [("config_H100_2x8.sh", "h100"), ("config_L40S_2x8x1.sh", "l40s")])  # fmt: skip
def test_a_submission_s_device_is_in_its_name(tmp_path: Path, name: str, device: str) -> None:
    path = _submission(tmp_path, "llama31_8b")
    path = path.rename(path.with_name(name))
    assert import_file(path, GUESS).cluster.name.startswith(f"{device}:2x8")


def test_a_run_of_a_benchmark_of_graphs(tmp_path: Path) -> None:
    path = _submission(tmp_path, "rgat").with_name("run_and_time.sh")
    path.write_text(
        "torchrun --nproc_per_node 8 train.py --learning_rate 1e-3 --batch_size 512 --epochs 1\n"
    )
    with pytest.raises(SpecError, match="graph network"):
        import_file(path, GUESS)


def test_a_resolver_that_the_program_brings_says_nothing() -> None:
    data = {
        "a": "${art:data,pack_size}",
        "b": "${oc.env:NAME,4}",
        "c": "${PRIMUS_X:1,2}",
        "d": "${min:4,2}",
    }
    found = resolved(data, {})
    assert unset(found["a"]) == ["art:data,pack_size"]
    assert (found["b"], found["c"], found["d"]) == (4, "1,2", 2)


HABANA = (
    f"python pretrain_gpt.py --use_hpu {SHAPE} --micro-batch-size 1 --global-batch-size 8 --bf16 --checkpoint-activations "
    "--deepspeed --zero-stage 0 --pipeline-model-parallel-size 2 --num-layers 8 "
)


@pytest.mark.parametrize(
    ("flags", "recompute", "kernel", "compute"),
    [
        ("", "full", "unfused", "bf16"),
        ("--checkpoint-activations-granularity=selective --use-fused-sdpa true", "selective", "flash", "bf16"),
        ("--use-hpu-fp8-transformer-engine", "full", "unfused", "fp8"),
    ],
)  # fmt: skip
def test_words_of_habana_s_fork(flags: str, recompute: str, kernel: str, compute: str) -> None:
    reading = _read(HABANA + flags)
    assert (reading.layout["recompute"], reading.likely) == (recompute, "gaudi2")
    assert (reading.job["attention_kernel"], reading.job["precision"]["compute"]) == (kernel, compute)  # fmt: skip


def test_hyperpod_s_command_line() -> None:
    text = (
        "defaults:\n - override hydra/job_logging: stdout\ntraining_cfg:\n entry_script: /fsdp/train.py\n script_args:\n"
        + "".join(
            f"  - --{option}: {value}\n"
            for option, value in (
                ("max_context_width", 2048),
                ("hidden_width", 1024),
                ("num_layers", 4),
                ("num_heads", 8),
                ("intermediate_size", 2816),
                ("train_batch_size", 2),
                ("max_steps", 10),
                ("sharding_strategy", "full"),
            )
        )
        + " run: {nodes: 2}\ncluster: {cluster_type: k8s, instance_type: ml.g5.48xlarge}\n"
    )
    found = import_text(text, "job.yaml", GUESS)
    assert (found.model.layers, found.model.hidden, found.job.seq_len) == (4, 1024, 2048)
    assert (found.layout.micro_batch, found.layout.zero, found.cluster.name) == (2, 3, "a10g:2x8")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "python train.py --model Tacotron2 --learning-rate 1e-3 --epochs 15 --batch-size 104",
            "model of speech",
        ),
        ("python benchmark/gather_output.py --output_dir x", "does not train"),
        ("python -m tools.own_hybrid run", "inside tools.own_hybrid"),
        ('exec bash "$SOURCE/slurm/own_4x5090.sbatch"', "it starts own_4x5090.sbatch"),
    ],
)
def test_what_is_said_of_other_programs(command: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        _read(f"{command}\n")


def test_a_program_is_told_the_file_that_its_script_writes(tmp_path: Path) -> None:
    (tmp_path / "ds_TEMPLATE.json").write_text('{"zero_optimization": {"stage": CONFIG_ZERO}, "bf16": {"enabled": true}}')  # fmt: skip
    (tmp_path / "train_own.py").write_text(
        "import argparse\nfrom transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--load')\nparser.add_argument('--micro-batch-size', type=int, default=4)\n"
        "args = parser.parse_args()\nmodel = AutoModelForCausalLM.from_pretrained(args.load)\n"
        "training_args = TrainingArguments(output_dir='out', per_device_train_batch_size=args.micro_batch_size, deepspeed='./ds_config.json')\n"
        "Trainer(model=model, args=training_args).train()\n"
    )
    (tmp_path / "run.sh").write_text(
        'ZERO=3\nfile=ds_config.json\nsed "s/CONFIG_ZERO/${ZERO}/" ds_TEMPLATE.json > ${file}\n'
        "torchrun --nproc_per_node 8 train_own.py --load Qwen/Qwen3-4B --micro-batch-size 2\n"
    )
    found = import_file(tmp_path / "run.sh", GUESS)
    assert (found.layout.zero, found.layout.micro_batch) == (3, 2)
    assert not _said(found, "deepspeed")


def test_a_written_file_calculated_from_what_nothing_sets() -> None:
    """`"train_batch_size": $((MB * 8))` says nothing where MB is the caller's to say."""
    text = (
        'Z=3\ncat > ds.json <<EOF\n{\n  "train_batch_size": $(( ${MB} * 8 )),\n  "zero_optimization": {"stage": $Z, "reduce_bucket_size": 5e9},\n'
        '  "bf16": {"enabled": true}\n}\nEOF\n'
        "deepspeed --num_gpus 8 train.py --deepspeed ds.json --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 2 --learning_rate 1e-5 --output_dir x\n"
    )
    reading = _read(text)
    assert (reading.layout["zero"], reading.micro_batch) == (3, 2)


def test_nemo_launcher_s_evaluations_are_no_runs_of_neox() -> None:
    text = (
        "run: {name: own}\ntrainer: {devices: 1, num_nodes: 1, precision: bf16}\ntensor_model_parallel_size: 1\npipeline_model_parallel_size: 1\n"
        "model_parallel_size: ${multiply:${.tensor_model_parallel_size}, ${.pipeline_model_parallel_size}}\ninference: {greedy: true}\n"
    )
    with pytest.raises(SpecError, match="describes no training run"):
        _read(text, "own.yaml")
