"""Files that well-known pretraining projects ship, each as small as its trap."""

from __future__ import annotations

import pytest

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.specs.errors import SpecError

GUESS = Given(guess=True)


def test_a_file_of_nanogpt_that_begins_from_a_checkpoint_trains_it():
    text = "import time\ninit_from = 'gpt2-xl'\nrun = 'ft-' + str(time.time())\nbatch_size = 1\ngradient_accumulation_steps = 32\nmax_iters = 20\n"
    found = import_text(text, "finetune_shakespeare.py", GUESS)
    assert (found.model.name, found.job.global_batch, found.job.seq_len) == ("gpt2-xl", 32, 1024)
    with pytest.raises(SpecError, match="evaluates a model"):
        import_text(text + "eval_only = True\n", "eval.py", GUESS)


def test_a_program_that_prints_its_configuration_is_no_log_of_it():
    text = 'import logging\n\ndef build(config):\n    logging.info(f"Running with configs: {config}")\n'
    with pytest.raises(SpecError) as caught:
        import_text(text, "trainer.py", GUESS)
    assert "cut short" not in str(caught.value)


_TITAN = """
def llama3_8b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(local_batch_size=1, seq_len=8192, steps=10),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
    )
"""


def test_what_changes_anothers_configuration_is_no_recipe_of_its_own():
    derived = "def derive(config) -> Trainer.Config:\n    return Trainer.Config(training=TrainingConfig(local_batch_size=2))\n"
    with pytest.raises(SpecError, match="no function that returns"):
        import_text(derived, "override.py", GUESS)
    found = import_text(_TITAN + derived, "llama3/config_registry.py", GUESS)
    assert found.layout.tp == 2  # the one that is left, without a question


_NANOTRON = """
from nanotron.config import Config, LlamaConfig, ModelArgs, ParallelismArgs, TokensArgs

model_config = {made}
print(f"{{model_config.intermediate_size}}")
config = Config(
    parallelism=ParallelismArgs(dp=2, pp=1, tp=4),
    model=ModelArgs(model_config=model_config),
    tokens=TokensArgs(sequence_length=8192, train_steps=5, micro_batch_size=1, batch_accumulation_per_replica=8),
)
if __name__ == "__main__":
    config.save_as_yaml("config.yaml")
"""


def test_nanotrons_model_is_by_its_classs_own_sizes_where_nothing_is_said():
    found = import_text(_NANOTRON.format(made="LlamaConfig()"), "bench.py", GUESS)
    model = found.model
    assert (model.layers, model.hidden, model.ffn, model.vocab) == (32, 4096, 11008, 32_000)
    assert (found.layout.tp, found.layout.dp, found.job.global_batch) == (4, 2, 16)
    with pytest.raises(SpecError, match="in a file that the program loads"):
        import_text(_NANOTRON.format(made="LlamaConfig(**table)"), "resume.py", GUESS)


def test_a_strategy_of_torchs_with_an_underscore_is_the_one_without(tmp_path):
    text = "model: {d_model: 2048, n_layers: 16, n_heads: 16, max_sequence_length: 4096, vocab_size: 50280}\nglobal_train_batch_size: 512\ndevice_train_microbatch_size: 4\noptimizer: {name: adamw}\nprecision: amp_bf16\nfsdp: {sharding_strategy: _HYBRID_SHARD_ZERO2, precision: mixed}\n"
    assert import_text(text, "run.yaml", GUESS).layout.zero == 2


def test_maxtext_says_which_configuration_is_not_here_and_takes_its_model_by_name():
    command = "python3 -m maxtext.trainers.pre_train.train configs/models/gpu/llama2_7b.yml run_name=a ici_fsdp_parallelism=8 dcn_data_parallelism=1\n"
    found = import_text(command, "1vm.sh", GUESS)
    assert (found.model.name, found.cluster.name.split(":")[0]) == ("llama2-7b", "h100")
    assert any(one.option == "base_config" and "not here" in one.text for one in found.remarks)


@pytest.mark.parametrize(
    ("program", "config"),
    [("maxtext.experimental.utils.stitch_checkpoint", "omni.yml"), ("tests.utils.forward_pass_logit_checker", "configs/base.yml"),
     ("maxtext.checkpoint_conversion.to_maxtext", "configs/base.yml")],
)  # fmt: skip
def test_what_converts_or_compares_checkpoints_of_maxtext_trains_nothing(program, config):
    with pytest.raises(SpecError, match="does not train"):
        import_text(f"python3 -m {program} {config} model_name=gemma2-2b per_device_batch_size=1 steps=1\n", "run.sh", GUESS)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [("base_config: inference/inference_jetstream.yml\nmodel_name: llama3-70b\n", "serves a model"),
     ("base_config: base.yml\nuse_sft: true\nuse_multimodal: true\nlearning_rate: 2.e-5\n", "vision-language"),
     ("mesh_axes: ['fsdp']\ndata_sharding: [['fsdp']]\nlogical_axis_rules: [['embed', ['fsdp']]]\n", "axes of MaxText's mesh")],
)  # fmt: skip
def test_files_of_maxtext_that_describe_no_run_say_why(tmp_path, text, why):
    (tmp_path / "it.yml").write_text(text)
    with pytest.raises(SpecError, match=why):
        import_file(tmp_path / "it.yml", GUESS)


def test_maxtexts_own_base_is_read_with_what_it_leaves_at_minus_one():
    text = "per_device_batch_size: 12.0\nremat_policy: full\nbase_emb_dim: 2048\nbase_mlp_dim: 7168\nbase_moe_mlp_dim: -1\nnum_experts: 4\nnum_experts_per_tok: 2\n"
    found = import_text(text, "base.yml", GUESS)
    assert found.model.experts is not None
    assert found.model.experts.ffn == 7168
    sft = import_text("base_config: base.yml\nuse_sft: true\npacking: true\n", "sft.yml", GUESS)
    assert (sft.format, sft.job.global_batch) == ("MaxText YAML", 96)


@pytest.mark.parametrize("group", ["mamba2", "hgrn2", "delta_net", "samba"])
def test_a_model_group_without_attention_is_refused_by_its_name(group):
    text = f"defaults:\n  - override /model: {group}\n  - _self_\nmodel: {{config: {{hidden_size: 768, num_hidden_layers: 24, num_heads: 24}}}}\ntrain: {{max_steps: 100}}\ndatamodule: {{batch_size: 32, max_length: 2048}}\noptimizer: {{lr: 0.002}}\n"
    with pytest.raises(SpecError, match="without attention"):
        import_text(text, "125m.yaml", GUESS)
    found = import_text(text.replace(f"model: {group}", "model: transformer"), "125m.yaml", GUESS)
    assert found.model.layers == 24


def test_a_command_of_rwkvs_trainer_is_refused_by_what_it_trains(tmp_path):
    (tmp_path / "train.py").write_text(
        "from pytorch_lightning import Trainer\nfrom src.model import RWKV\nmodel = RWKV(args)\nTrainer().fit(model)\n"
    )
    (tmp_path / "run.sh").write_text("python train.py --ctx_len 512 --micro_bsz 16 --n_layer 12 --n_embd 768 --vocab_size 65536 --lr_init 6e-4\n")  # fmt: skip
    with pytest.raises(SpecError, match="RWKV"):
        import_file(tmp_path / "run.sh", GUESS)


_CLASS = """
import torch
from torch.nn import functional as F

class Trainer:
    @staticmethod
    def get_default_config():
        C.batch_size = 64
        return C

    def run(self):  # of a GPT with causal attention over tokens
        logits, loss = self.model(x, y)
        loss.backward()
        self.optimizer.step()
"""


def test_a_trainers_class_alone_is_no_run_and_one_that_starts_itself_is_asked_for_its_model():
    with pytest.raises(SpecError, match="functions and classes"):
        import_text(_CLASS, "trainer.py", GUESS)
    with pytest.raises(SpecError, match="--model"):
        import_text(_CLASS + "\nif __name__ == '__main__':\n    Trainer().run()\n", "train.py", GUESS)  # fmt: skip


def test_a_loop_whose_sizes_are_in_omegaconfs_file_asks_for_that():
    text = "from omegaconf import OmegaConf\nbatch_size = 2\nseq_len = 2048\ncfg = OmegaConf.load(OmegaConf.from_cli().config)\nmodel = LMTransformer(cfg.model)  # causal, over vocab\nfor step in range(10):\n    loss = model(x)\n    loss.backward()\n    optimizer.step()\n"
    with pytest.raises(SpecError, match="Hydra or OmegaConf"):
        import_text(text, "train.py", GUESS)


@pytest.mark.parametrize(
    ("task", "kind"),
    [("sentence_prediction", "classifier"), ("audio_pretraining", "speech"), ("masked_lm", "an encoder"), ("mae_image_pretraining", "vision"),
     ("translation", "encoder-decoder")],
)  # fmt: skip
def test_a_task_of_fairseqs_says_what_it_trains(task, kind):
    text = f"task: {{_name: {task}, max_seq_len: 512}}\ncriterion: {{_name: cross_entropy}}\ndataset: {{batch_size: 16}}\noptimization: {{lr: [1e-5], max_update: 100}}\nmodel: {{_name: transformer_lm, num_layers: 12, hidden_size: 768, num_heads: 12}}\n"
    with pytest.raises(SpecError, match=kind):
        import_text(text, "run.yaml", GUESS)
    assert (
        import_text(text.replace(task, "language_modeling"), "run.yaml", GUESS).model.layers == 12
    )


def test_colossalais_whole_zero_beside_split_matrices_is_megatron_fsdps():
    text = "from titans.model.gpt import gpt2_small\nfrom colossalai.zero.shard_utils import TensorShardStrategy\nBATCH_SIZE = 8\nSEQ_LEN = 1024\nzero = dict(model_config=dict(shard_strategy=TensorShardStrategy()))\nmodel = dict(type=gpt2_small)\nparallel = dict(pipeline=1, tensor=dict(size=2, mode='1d'))\n"
    found = import_text(text, "gpt2_zero3.py", GUESS)
    assert (found.layout.tp, found.layout.zero, found.job.framework) == (2, 3, "megatron-fsdp")


_LOOP = """
import torch
from torch import nn
from torch.nn import functional as F
{imports}

num_layers = 32

class GPT(nn.Module):
    def __init__(self, n_layer, n_embd, n_head, vocab_size, max_seq_len=1024):
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, tokens):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

{made}
for step in range(10):
    {inputs}
    loss = F.cross_entropy(model(x), x)
    loss.backward()
    optimizer.step()
"""
_MADE = "model = GPT(n_layer=2, n_embd=256, n_head=16, vocab_size=32000, max_seq_len=32768)\noptimizer = torch.optim.AdamW(model.parameters())"


def _looped(made: str = _MADE, inputs: str = "x = next(loader)", imports: str = ""):
    extra = "" if "randint" in inputs else "batch_size = 4\nseq_len = 128\n"
    return import_text(_LOOP.format(imports=imports, made=extra + made, inputs=inputs), "train.py", GUESS)  # fmt: skip


def test_tokens_that_a_loop_draws_itself_say_its_batch_and_length_and_the_shape_its_layers():
    found = _looped(inputs="x = torch.randint(32000, (8, 256))")
    assert (found.layout.micro_batch, found.job.seq_len, found.model.layers) == (8, 256, 2)
    assert _looped().job.seq_len == 128  # not the most that the model takes


def test_an_optimizer_in_a_comment_is_not_the_one_that_runs():
    commented = _MADE + "\n# optimizer = bnb.optim.AdamW8bit(model.parameters())"
    assert _looped(commented).job.optimizer.name == "adamw"
    assert _looped(_MADE.replace("torch.optim.AdamW", "bnb.optim.AdamW8bit")).job.optimizer.name == "adam8bit"  # fmt: skip


def test_lightnings_strategy_says_how_wide_matrices_are_split():
    made = "strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=2)\nfabric = L.Fabric(devices=4, strategy=strategy)\n"
    found = _looped(made + _MADE)
    assert (found.layout.tp, found.layout.dp) == (2, 2)


_PICKS = """
shapes = {{
    "d12": GPT(n_layer=12, n_embd=768, n_head=12, vocab_size=50257),
    "d24": GPT(n_layer=24, n_embd=1024, n_head=16, vocab_size=50257),
}}
""".replace("shapes = ", "model = ").rstrip()


@pytest.mark.parametrize(("name", "layers"), [("d12", 12), ("d24", 24)])
def test_a_command_picks_one_of_the_shapes_that_its_program_makes(tmp_path, name, layers):
    parser = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--model', default='d12')\nparser.add_argument('--batch_size', type=int, default=4)\nparser.add_argument('--sequence_length', type=int, default=64)\nargs = parser.parse_args()\n"
    made = parser + _PICKS.replace("{{", "{").replace("}}", "}") + "[args.model]\noptimizer = torch.optim.AdamW(model.parameters())"  # fmt: skip
    (tmp_path / "train.py").write_text(_LOOP.format(imports="", made=made, inputs="x = next(loader)"))  # fmt: skip
    (tmp_path / "run.sh").write_text(f"torchrun --nproc_per_node=8 train.py --model {name} --batch_size 32 --sequence_length 1024\n")  # fmt: skip
    found = import_file(tmp_path / "run.sh", GUESS)
    assert (found.model.layers, found.layout.micro_batch, found.job.seq_len) == (layers, 32, 1024)


def test_x_transformers_decoder_is_read_by_its_wrapper():
    made = "model = AutoregressiveWrapper(TransformerWrapper(num_tokens=256, max_seq_len=1024, attn_layers=Decoder(dim=512, depth=6, heads=8)))\noptimizer = torch.optim.Adam(model.parameters())\ngradient_accumulate_every = 4"
    text = "from accelerate import Accelerator\nimport fire\nfrom x_transformers import TransformerWrapper, Decoder\ndef train(batch_size=4, seq_len=1024):\n    accelerator = Accelerator()\n    {}\n    for step in range(10):\n        loss = model(next(loader))\n        loss.backward()\n        optimizer.step()\nfire.Fire(train)\n".format(made.replace("\n", "\n    "))  # fmt: skip
    found = import_text(text, "train_enwik8.py", GUESS)
    model = found.model
    assert (model.layers, model.hidden, model.heads, model.vocab) == (6, 512, 8, 256)
    assert (found.layout.micro_batch, found.job.global_batch, found.job.seq_len) == (4, 16, 1024)


def test_jaxformers_json_is_mesh_transformers_by_other_words():
    text = '{"tpu_size": 64, "model_layers": 20, "model_dim": 1024, "model_head_dim": 128, "model_heads": 16, "model_vocab_size": 51200, "model_seq_len": 2048, "opt_lr_max": 3e-4, "opt_gradient_accumulation_steps": 32, "opt_per_replica_batch": 1, "opt_params_partitions": 1, "opt_total_steps": 10}'
    found = import_text(text, "codegen.json", GUESS)
    assert (found.model.layers, found.model.head_dim, found.layout.tp, found.layout.dp) == (20, 128, 1, 64)  # fmt: skip
    assert (found.job.global_batch, found.job.seq_len) == (2048, 2048)


def test_a_table_with_a_batch_and_a_total_is_no_trainers():
    text = "model_name_or_path: EleutherAI/pythia-1b\nmax_length: 2048\nuse_peft: true\nlora_r: 128\noptimizer: adam\nbatch_size: 4\ntotal_batch_size: 1024\nlr: 4e-4\nnum_training_steps: 10\ndtype: bfloat16\n"
    found = import_text(text, "1B.yaml", GUESS)
    assert (found.layout.micro_batch, found.job.global_batch) == (4, 1024)
    assert found.job.finetune.label() == "lora rank 128 on all linear"


def test_a_here_document_of_no_command_is_a_comment(tmp_path):
    text = "<<'LATER'\ntorchrun --nproc_per_node=8 train.py --n_layer=48 --n_embd=1600 --n_head=25 --batch_size=2 --block_size=1024\nLATER\ntorchrun --nproc_per_node=2 train.py --n_layer=12 --n_embd=768 --n_head=12 --batch_size=4 --block_size=512\n"
    found = import_text(text, "run.sh", GUESS)
    assert (found.model.layers, found.layout.dp, found.job.seq_len) == (12, 2, 512)
    assert not any("starts 2 different" in one.text for one in found.remarks)


@pytest.mark.parametrize(
    ("code", "why"),
    [("def forward_process(batch):\n    return batch, p_mask\n", "masked diffusion"),
     ("model = Transformer(src_vocab_size, tgt_vocab_size, d_model=512)\n", "encoder-decoder")],
)  # fmt: skip
def test_loops_that_train_no_decoder_are_refused_by_their_code(code, why):
    with pytest.raises(SpecError, match=why):
        import_text(_LOOP.format(imports=code, made="batch_size = 4\nseq_len = 128\n" + _MADE, inputs="x = next(loader)"), "train.py", GUESS)  # fmt: skip


def test_a_configurators_constants_and_a_parser_in_a_package_are_what_a_command_leaves(tmp_path):
    program = "dtype = 'bfloat16' if torch.cuda.is_bf16_supported() else 'float16'\nn_layer = 1\nvocab_size = 50304\nbatch_size = 8\nexec(open('configurator.py').read())\nmodel = GPT(GPTConfig(n_layer=n_layer))\nscaler = torch.cuda.amp.GradScaler(enabled=dtype == 'float16')\nwith torch.amp.autocast('cuda', dtype=dtype):\n    loss = model(x)  # causal GPT over tokens\nloss.backward()\noptimizer.step()\n"
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "run.sh").write_text("torchrun --nproc_per_node 8 train.py --n_layer=24 --n_head=16 --n_embd=1024 --block_size=1024 --batch_size=8\n")  # fmt: skip
    found = import_file(tmp_path / "run.sh", GUESS)
    assert (found.model.layers, found.model.vocab, found.job.precision.name) == (24, 50304, "bf16")
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils/__init__.py").write_text("from .arguments import parse_args\n")
    (tmp_path / "utils/arguments.py").write_text("import argparse\ndef parse_args():\n    parser = argparse.ArgumentParser()\n    parser.add_argument('--max_length', type=int, default=256)\n    return parser.parse_args()\n")  # fmt: skip
    (tmp_path / "sizes.json").write_text('{"model_type": "llama", "hidden_size": 1024, "intermediate_size": 2736, "num_attention_heads": 16, "num_hidden_layers": 24, "vocab_size": 32000}')  # fmt: skip
    (tmp_path / "pretrain.py").write_text("from utils import *\nargs = parse_args()\nmodel = LlamaForCausalLM(config)\nloss = model(x)\nloss.backward()\noptimizer.step()\n")  # fmt: skip
    (tmp_path / "go.sh").write_text("torchrun --nproc_per_node 4 pretrain.py --model_config sizes.json --lr 0.01 --batch_size 128 --total_batch_size 512\n")  # fmt: skip
    found = import_file(tmp_path / "go.sh", GUESS)
    assert (found.model.layers, found.model.ffn, found.job.seq_len) == (24, 2736, 256)
    assert (found.layout.micro_batch, found.job.global_batch) == (128, 512)


def test_an_activation_beside_a_product_is_a_gate():
    gate = "u, v = torch.chunk(uv, 2, dim=-1)\nx = u * self.silu(v)\n"
    assert _looped(_MADE + "\n" + gate).model.gated
    assert not _looped(_MADE).model.gated


def test_a_decoder_trained_by_a_loop_in_jax_is_refused_for_that():
    text = "import jax\nimport flax.nnx as nnx\nbatch_size = 4\nclass GPT(nnx.Module):\n    pass\ndef step(model, batch):\n    loss, grads = nnx.value_and_grad(loss_fn)(model, batch)\nfor batch in loader:\n    step(model, batch)\n"
    with pytest.raises(SpecError, match="loop of its own in JAX"):
        import_text(text, "train.py", GUESS)
    with pytest.raises(SpecError) as caught:
        import_text(text.replace("GPT", "ResNet"), "train.py", GUESS)
    assert "in JAX" not in str(caught.value)


def test_a_hydra_experiment_is_read_over_the_configuration_that_chooses_it(tmp_path):
    files = {
        "config.yaml": "defaults:\n  - _self_\n  - model: small\n  - datamodule: pile\ntrain: {global_batch_size: 64, optimizer: {lr: 1e-3}}\ntrainer: {devices: 8, num_nodes: 1, precision: bf16, max_steps: 10, accumulate_grad_batches: '${div_up:${train.global_batch_size}, ${eval:${trainer.devices} * ${datamodule.batch_size}}}'}\n",
        "model/small.yaml": "config: {n_layer: 2, n_embd: 64, n_head: 2}\n",
        "model/large.yaml": "defaults:\n  - _self_\n  - size: small\nconfig: {bias: false}\n",
        "model/size/small.yaml": "# @package _global_\nmodel: {config: {n_layer: 12, n_embd: 768, n_head: 12}}\n",
        "model/size/medium.yaml": "# @package _global_\nmodel: {config: {n_layer: 24, n_embd: 1024, n_head: 16}}\n",
        "datamodule/pile.yaml": "batch_size: 4\nmax_length: 2048\n",
        "experiment/base.yaml": "# @package _global_\ndefaults:\n  - override /model: small\ntrain: {global_batch_size: 256}\n",
        "experiment/large.yaml": "# @package _global_\ndefaults:\n  - /experiment/base.yaml\n  - override /model: large\n  - override /model/size: medium\nmodel: {config: {n_layer: 20}}\ndatamodule: {batch_size: 16}\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    found = import_file(tmp_path / "experiment/large.yaml", GUESS)
    model = found.model
    assert (model.layers, model.hidden, found.layout.micro_batch) == (20, 1024, 16)
    assert (found.job.global_batch, found.job.seq_len) == (256, 2048)


def test_a_table_of_ones_own_takes_the_file_of_adapters_that_it_names(tmp_path):
    (tmp_path / "lora.yaml").write_text("type: lora\nr: 4\nlora_alpha: 16\ntarget_modules: [q_proj, v_proj]\n")  # fmt: skip
    text = "model: llama3-8b\nmax_length: 2048\nbatch_size: 2\nlr0: 5e-5\nepochs: 3\npeft_config_path: lora.yaml\n"
    (tmp_path / "run.yaml").write_text(text)
    assert import_file(tmp_path / "run.yaml", GUESS).job.finetune.label() == "lora rank 4 on q, v"
    (tmp_path / "lora.yaml").unlink()
    found = import_file(tmp_path / "run.yaml", GUESS)
    assert any("is not here" in one.text for one in found.remarks if one.option == "peft_config_path")  # fmt: skip


@pytest.mark.parametrize("name", ["fla-hub/gla-1.3B-100B", "fla-hub/retnet-1.3B", "fla-hub/delta_net-1.3B"])  # fmt: skip
def test_a_checkpoint_named_for_its_recurrence_is_refused(name):
    text = f"model_name_or_path: {name}\nper_device_train_batch_size: 2\nlearning_rate: 1e-4\nmax_seq_length: 2048\n"
    with pytest.raises(SpecError, match="without attention"):
        import_text(text, "run.yaml", GUESS)


def test_a_relation_of_x_transformers_says_its_vocabulary_as_num_tokens():
    made = "GRAD_ACCUM_EVERY = 4\nmodel = nGPT(num_tokens=256, dim=512, depth=8, heads=8)\noptimizer = torch.optim.Adam(model.parameters())"
    found = _looped(made)
    assert (found.model.vocab, found.model.layers, found.job.global_batch) == (256, 8, 16)


def test_a_family_of_ones_own_is_read_as_the_one_that_its_name_builds_on(tmp_path):
    (tmp_path / "tiny.json").write_text('{"model_type": "lckv-llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000, "layer_types": "0_1_2"}')  # fmt: skip
    (tmp_path / "run.sh").write_text("accelerate launch run_clm.py --config_name tiny.json --per_device_train_batch_size 32 --block_size 1024 --learning_rate 3e-4 --bf16 --do_train --output_dir out\n")  # fmt: skip
    found = import_file(tmp_path / "run.sh", GUESS)
    assert (found.model.layers, found.model.kv_heads, found.job.seq_len) == (22, 4, 1024)
    assert any("lckv-llama is read as the llama" in one.text for one in found.remarks if one.kind == "guess")  # fmt: skip
