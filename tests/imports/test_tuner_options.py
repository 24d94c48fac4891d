"""Options of fine-tuning tools that were dropped or taken for others: read, or named."""

import pytest
import yaml

from meshwright.imports.files import import_text
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_cluster
from meshwright.specs.errors import SpecError

H8 = Given(cluster=load_cluster("h100:1x8"), guess=True)


def said(run: Imported, option: str) -> str:
    return " ".join(one.text for one in run.remarks if option in one.option)


def openrlhf(words: str, program: str = "train_sft") -> Imported:
    start = "deepspeed --num_gpus 8 --module openrlhf.cli"
    body = "--train.micro_batch_size 2 --train.batch_size 128 --data.max_len 2048 --ds.param_dtype bf16"
    model = "--actor" if "ppo" in program else "--model"
    text = f"{start}.{program} {model}.model_name_or_path Qwen/Qwen2.5-7B {body} {words}\n"
    return import_text(text, "run.sh", H8, None)


def test_openrlhf_groups_its_options():
    run = openrlhf("--ds.lora.rank 32 --ds.lora.alpha 64 --ds.lora.dropout 0.1 --ds.zero_stage 3")
    assert run.job.finetune and run.layout.zero == 3
    tune = run.job.finetune
    assert (tune.rank, tune.alpha, tune.dropout) == (32, 64, 0.1)
    assert openrlhf("--optim muon").job.optimizer.name == "muon"
    assert openrlhf("--ds.tensor_parallel_size 2").layout.tp == 2


def test_openrlhf_tells_the_trained_model_from_the_others():
    run = openrlhf(
        "--vllm.tensor_parallel_size 4 --ref.offload --actor.num_nodes 1 --actor.num_gpus_per_node 8",
        "train_ppo_ray",
    )
    assert run.layout.tp == 1 and not run.offload
    assert said(run, "--ref.offload")


@pytest.mark.parametrize(
    "words",
    ["--ds.zpg 8", "--ds.attn_implementation zz", "--train.full_determinism_enable", "--ds.load_in_4bit",
     "--ds.experts_implementation eager", "--ds.deepcompile", "--train.dynamic_batch_enable"],
)  # fmt: skip
def test_openrlhf_options_without_a_price_are_named_as_written(words: str):
    assert said(openrlhf(words), words.split()[0].rsplit(".", 1)[-1])


def test_openrlhf_knows_no_fourth_stage():
    with pytest.raises(SpecError, match="0 to 3"):
        openrlhf("--ds.zero_stage 4")


AXOLOTL = {
    "base_model": "NousResearch/Meta-Llama-3-8B", "micro_batch_size": 2, "sequence_len": 2048, "bf16": True,
    "datasets": [{"path": "y", "type": "alpaca"}], "gradient_accumulation_steps": 4,
}  # fmt: skip


def axolotl(**more: object) -> Imported:
    return import_text(yaml.safe_dump(AXOLOTL | more), "run.yaml", H8, None)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"plugins": ["axolotl.integrations.spectrum.SpectrumPlugin"]}, "plugins: Spectrum"),
        ({"plugins": ["mine.OtherPlugin"]}, "plugins: Other"),
        ({"overrides_of_model_config": {"num_hidden_layers": 4}}, "overrides_of_model_config"),
        ({"num_labels": 3}, "num_labels"),
        ({"load_in_8bit": True}, "load_in_8bit"),
        ({"rl": "zz"}, "rl"),
        ({"dpo_padding_free": True, "rl": "dpo"}, "dpo_padding_free"),
        ({"gc_steps": 5}, "gc_steps"),
    ],
)
def test_axolotl_options_without_a_price_are_named(options: dict[str, object], named: str):
    assert said(axolotl(**options), named)
    assert not said(axolotl(plugins=["axolotl.integrations.liger.LigerPlugin"]), "plugins")


def test_axolotl_generates_beside_training():
    inner = {"use_vllm": True, "vllm_mode": "colocate", "beta": 0.04}
    run = axolotl(rl="grpo", trl=inner, vllm={"gpu_memory_utilization": 0.5})
    assert run.reference and "50%" in said(run, "vllm_mode")
    assert not axolotl(rl="grpo", trl={"beta": 0.0}).reference


def test_axolotl_and_torchtune_say_their_devices_by_their_shards():
    assert axolotl(dp_shard_size=2, dp_replicate_size=2).layout.world == 8  # the cluster's count
    run = import_text(yaml.safe_dump(AXOLOTL | {"dp_shard_size": 2, "dp_replicate_size": 2}), "a.yaml",
                      Given(guess=True), None)  # fmt: skip
    assert run.layout.world == 4


TUNE = {
    "model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"},
    "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 2048},
    "optimizer": {"_component_": "torch.optim.AdamW", "lr": 1e-5},
    "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"},
    "batch_size": 2, "gradient_accumulation_steps": 1, "dtype": "bf16", "device": "cuda",
}  # fmt: skip


def test_torchtune_recipes_say_their_devices_and_strange_words_are_named():
    def read(**more: object) -> Imported:
        return import_text(yaml.safe_dump(TUNE | more), "r.yaml", Given(guess=True), None)

    run = read(data_parallel_shard_dim=4, tensor_parallel_dim=2)
    assert (run.layout.world, run.layout.tp) == (8, 2)
    assert said(read(dtype="fp16"), "dtype") and said(read(device="cpu"), "device")
    assert said(read(optimizer={"_component_": "mine.Strange", "lr": 1}), "optimizer")


def test_llama_factory_orpo_holds_no_reference():
    def read(loss: str) -> Imported:
        words = {"model_name_or_path": "Qwen/Qwen2.5-7B", "stage": "dpo", "finetuning_type": "full", "bf16": True,
                 "per_device_train_batch_size": 1, "cutoff_len": 1024, "pref_loss": loss}  # fmt: skip
        return import_text(yaml.safe_dump(words), "l.yaml", H8, None)

    assert [(run.task, run.reference) for run in map(read, ("sigmoid", "orpo"))] == [
        ("dpo", True),
        ("orpo", False),
    ]


OUMI = {
    "model": {"model_name": "Qwen/Qwen2.5-7B-Instruct", "model_max_length": 2048, "torch_dtype_str": "bfloat16"},
    "data": {"train": {"datasets": [{"dataset_name": "x"}]}},
    "training": {"trainer_type": "TRL_SFT", "per_device_train_batch_size": 2, "optimizer": "adamw_torch_fused"},
}  # fmt: skip


def test_oumi_shards_by_fsdp_and_deepspeed_tables():
    def read(**more: object) -> Imported:
        return import_text(yaml.safe_dump(OUMI | more), "o.yaml", H8, None)

    plain = read(fsdp={"enable_fsdp": True, "backward_prefetch": "NO_PREFETCH"})
    assert plain.layout.zero == 3
    assert said(plain, "backward_prefetch") and said(plain, "auto_wrap_policy")
    wrapped = read(fsdp={"enable_fsdp": True, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"})
    assert not said(wrapped, "auto_wrap_policy")
    zero = read(deepspeed={"enable_deepspeed": True, "zero_stage": "ZERO_2", "reduce_bucket_size": 7,
                           "offload_optimizer": {"device": "CPU"}})  # fmt: skip
    assert (zero.layout.zero, zero.offload) == (2, {"optimizer"})
    assert said(zero, "reduce_bucket_size")


VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=256 data.max_prompt_length=512 "
    "data.max_response_length=512 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.actor.ppo_mini_batch_size=64 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 trainer.n_gpus_per_node=8 trainer.nnodes=1 "
)


@pytest.mark.parametrize(
    ("option", "value", "usual"),
    [("entropy_coeff", "0.001", "0"), ("calculate_entropy", "True", "False"), ("strategy", "zz", "fsdp2"),
     ("fsdp_config.qat.enable", "True", "False"), ("fsdp_config.forward_prefetch", "True", "False")],
)  # fmt: skip
def test_verl_options_that_cost_memory_are_named(option: str, value: str, usual: str):
    name = f"actor_rollout_ref.actor.{option}"
    assert said(import_text(f"{VERL}{name}={value}\n", "v.sh", H8, None), name)
    assert not said(import_text(f"{VERL}{name}={usual}\n", "v.sh", H8, None), name)


def nemo_rl(**policy: object) -> Imported:
    table = {
        "model_name": "Qwen/Qwen2.5-7B", "train_global_batch_size": 64, "train_micro_batch_size": 1,
        "max_total_sequence_length": 2048, "precision": "bfloat16", "optimizer": {"name": "torch.optim.AdamW"},
    }  # fmt: skip
    text = yaml.safe_dump({"policy": table | policy, "sft": {"max_num_steps": 1}, "cluster": {"num_nodes": 1, "gpus_per_node": 8}})  # fmt: skip
    return import_text(text, "n.yaml", H8, None)


def test_nemo_rl_adapts_in_either_engine_and_the_other_says_nothing():
    tune = {"enabled": True, "dim": 16, "alpha": 32, "dropout": 0.1, "target_modules": [], "match_all_linear": True}  # fmt: skip
    run = nemo_rl(dtensor_cfg={"enabled": True, "lora_cfg": tune, "dp_replicate_size": 2})
    assert run.job.finetune and run.job.finetune.rank == 16
    assert run.layout.shard == 4
    megatron = {"enabled": True, "peft": {**tune, "match_all_linear": False, "target_modules": ["q_proj"]},
                "optimizer": {"optimizer": "adam", "use_precision_aware_optimizer": True, "optimizer_cpu_offload": True}}  # fmt: skip
    run = nemo_rl(megatron_cfg=megatron, dtensor_cfg={"enabled": False, "zzz": 1})
    assert run.job.finetune and run.job.finetune.targets == ("q",)
    assert run.offload == {"optimizer"} and said(run, "use_precision_aware_optimizer")
    assert not said(run, "zzz")
    assert said(nemo_rl(dtensor_cfg={"enabled": True, "zzz": 1}), "zzz")


def test_nemo_rl_shards_states_unless_told_otherwise():
    plain = {"enabled": True, "optimizer": {"optimizer": "adam"}}
    whole = {"enabled": True, "optimizer": {"optimizer": "adam", "use_distributed_optimizer": False}}  # fmt: skip
    assert [nemo_rl(megatron_cfg=one).layout.zero for one in (plain, whole)] == [1, 0]


VERL_SFT = (
    "torchrun --nproc_per_node 8 -m verl.trainer.{} model.path=Qwen/Qwen2.5-7B data.train_batch_size=64 "
    "data.max_length=2048 data.micro_batch_size_per_gpu=1 data.train_files=x {}\n"
)


def verl_sft(words: str, program: str = "sft_trainer") -> Imported:
    return import_text(VERL_SFT.format(program, words), "v.sh", H8, None)


def test_verls_supervised_run_reads_its_adapters_optimizer_and_tokens():
    run = verl_sft("model.lora.rank=16 model.lora.alpha=32 optim.optimizer=SGD")
    assert run.job.finetune and run.job.finetune.rank == 16
    assert run.job.optimizer.name.startswith("sgd")
    assert run.layout.micro_batch == 4  # today's trainer fills 8,192 tokens
    assert verl_sft("data.use_dynamic_bsz=False").layout.micro_batch == 1
    assert verl_sft("", "fsdp_sft_trainer").layout.micro_batch == 1


@pytest.mark.parametrize(
    "words",
    ["model.tiled_mlp.enabled=True", "model.mtp.enable=True", "engine.full_determinism=True", "engine.strategy=zz",
     "engine.model_dtype=zz", "engine.qat.enable=True", "optim.optimizer_impl=bitsandbytes.optim"],
)  # fmt: skip
def test_verls_supervised_run_names_what_has_no_price(words: str):
    assert said(verl_sft(words), words.split("=")[0])


def test_a_head_of_labels_is_named():
    words = {"model_name_or_path": "Qwen/Qwen2.5-7B", "per_device_train_batch_size": 1, "num_labels": 3, "bf16": True}  # fmt: skip
    assert said(import_text(yaml.safe_dump(words), "l.yaml", H8, None), "num_labels")


LITGPT = "litgpt finetune_lora checkpoints/meta-llama/Meta-Llama-3-8B --train.max_seq_length 2048 "


def test_litgpt_commands_have_litgpts_defaults():
    alone = import_text(LITGPT, "x.sh", Given(cluster=load_cluster("h100:1x1")))
    assert alone.job.finetune is not None
    assert (alone.job.finetune.rank, alone.job.finetune.dropout) == (8, 0.05)
    assert (alone.job.global_batch, alone.layout.micro_batch, alone.layout.zero) == (16, 1, 0)
    assert alone.job.precision.parameter_bytes == 4  # autocast over 32-bit weights
    several = import_text(LITGPT + "--devices 8 --quantize none", "x.sh", Given(cluster=load_cluster("h100:1x8")))  # fmt: skip
    assert (several.layout.zero, several.layout.recompute) == (3, "full")


def test_litgpt_pretrains_without_recomputing():
    text = "litgpt pretrain meta-llama/Meta-Llama-3-8B --train.max_seq_length 2048 --devices 8 --num_nodes 2"
    back = import_text(text, "x.sh", Given(cluster=load_cluster("h100:2x8")))
    assert (back.layout.recompute, back.layout.shard, back.job.global_batch) == ("none", 8, 512)
    assert back.job.finetune is None


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("litgpt finetune_adapter checkpoints/meta-llama/Meta-Llama-3-8B", "LLaMA-Adapter"),
        (
            "litgpt finetune adapter --checkpoint_dir checkpoints/meta-llama/Meta-Llama-3-8B",
            "LLaMA-Adapter",
        ),
        ("litgpt chat checkpoints/meta-llama/Meta-Llama-3-8B --precision bf16-true", "train"),
    ],
)
def test_what_litgpt_does_not_train_is_refused(command, said):
    with pytest.raises(SpecError, match=said):
        import_text(command, "x.sh", Given(cluster=load_cluster("h100:1x8")))


def test_fastchats_own_defaults():
    text = (
        "torchrun --nproc_per_node=8 fastchat/train/{}.py --model_name_or_path meta-llama/Llama-2-7b-hf --data_path d "
        "--bf16 True --per_device_train_batch_size 2 {}"
    )
    whole = import_text(text.format("train_mem", ""), "x.sh", H8)
    assert whole.job.finetune is None
    assert whole.job.seq_len == 512
    tuned = import_text(text.format("train_lora", "--model_max_length 2048"), "x.sh", H8)
    assert tuned.job.finetune is not None
    assert (tuned.job.finetune.rank, tuned.job.seq_len) == (8, 2048)
    assert set(tuned.job.finetune.targets) == {"q", "v"}


def test_programs_called_after_adapters_have_them():
    text = "torchrun --nproc_per_node=8 {} --model_name_or_path meta-llama/Llama-2-7b-hf --bf16 True --per_device_train_batch_size 2 {}"
    for program in ("finetune_lora.py", "src/lora_sft.py"):
        back = import_text(text.format(program, "--max_seq_length 512"), "x.sh", H8)
        assert back.job.finetune is not None
        assert "called after" in said(back, "--use_lora")
    off = import_text(text.format("finetune_lora.py", "--use_lora False"), "x.sh", H8)
    assert off.job.finetune is None
    other = import_text(text.format("explorations.py", "--max_seq_length 512"), "x.sh", H8)
    assert other.job.finetune is None


def open_instruct(program: str, words: str) -> Imported:
    text = f"torchrun --nproc_per_node 8 open_instruct/{program}.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 {words}"
    return import_text(text, "x.sh", H8)


def test_open_instructs_rank_alone_adds_no_adapters():
    plain = "--gradient_accumulation_steps 2 --max_seq_length 2048"
    assert open_instruct("finetune", f"{plain} --lora_rank 32").job.finetune is None
    tuned = open_instruct("finetune", f"{plain} --use_lora").job.finetune
    assert tuned is not None
    assert (tuned.rank, tuned.alpha, tuned.dropout) == (64, 16, 0.1)
    quantised = open_instruct("finetune", f"{plain} --use_qlora").job
    assert quantised.finetune is not None
    assert (quantised.finetune.method, quantised.optimizer.paged) == ("qlora", True)
    narrow = open_instruct("finetune", f"{plain} --use_8bit_optimizer").job.optimizer
    assert (narrow.state_bytes, narrow.paged) == (2, True)


def test_open_instructs_preferences_are_answered_before():
    words = "--gradient_accumulation_steps 2 --max_seq_length 2048"
    assert open_instruct("dpo_tune_cache", words).reference is False
    assert open_instruct("dpo_tune_cache", f"{words} --offload_optimizer --zero_stage 2").offload


def test_open_instructs_learners_recompute_and_refer():
    words = (
        "--num_unique_prompts_rollout 32 --num_samples_per_prompt_rollout 16 --num_learners_per_node 8 "
        "--pack_length 8192 --deepspeed_stage 3"
    )
    back = open_instruct("grpo_fast", words)
    assert (back.layout.recompute, back.reference, back.layout.zero) == ("full", True, 3)
    assert "second copy" in said(back, "--deepspeed_zpg")
    assert open_instruct("grpo_fast", f"{words} --load_ref_policy False").reference is False
    alone = import_text(f"python open_instruct/grpo_fast.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 {words}", "x.sh", H8)  # fmt: skip
    assert not said(alone, "launcher")
