"""What a target cannot express, and files that cannot be read: one sentence, exit code 2."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plans import hosts_of, make_plan
from test_round_trip import READABLE

from meshwright.cli import run
from meshwright.exports import limits as limits_module
from meshwright.exports.expressible import require_expressible
from meshwright.exports.targets import FRAMEWORKS, export
from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.imports.shell.follow import read_script
from meshwright.planner.stacks import under
from meshwright.specs import Job, SpecError, load_cluster, load_model
from meshwright.specs.finetune import finetune_recipe
from meshwright.specs.job import RECIPES
from meshwright.specs.plan import save_plan

GIVEN = Given(model=load_model("llama3-8b"), cluster=load_cluster("h100:8x8"))


@pytest.mark.parametrize(
    ("target", "layout", "field"),
    [
        ("deepspeed", {"pp": 4, "dp": 2, "virtual_stages": 2}, "virtual_stages"),
        ("deepspeed", {"pp": 4, "dp": 2, "zero": 2}, "zero"),
        ("deepspeed", {"pp": 2, "dp": 2, "tp": 2}, "tp"),
        ("deepspeed", {"cp": 2, "dp": 4}, "cp_method"),
        ("deepspeed", {"cp": 2, "tp": 2, "dp": 2, "cp_method": "ulysses"}, "cp"),
        ("accelerate", {"pp": 2, "dp": 4}, "pp"),
        ("accelerate", {"dp": 8, "zero": 1}, "zero"),
        ("megatron", {"pp": 4, "dp": 2, "schedule": "zb-h1"}, "schedule"),
        ("megatron", {"dp": 8, "tp": 2, "rank_order": "dp-tp-cp-ep-pp"}, "rank_order"),
        ("megatron", {"pp": 2, "dp": 4, "zero": 3}, "zero"),
        ("nanotron", {"cp": 2, "dp": 4}, "cp"),
        ("nanotron", {"dp": 8, "zero": 3}, "zero"),
        ("fsdp", {"pp": 2, "dp": 4}, "pp"),
        ("fsdp", {"tp": 2, "dp": 4}, "zero"),
        ("lightning", {"dp": 8, "zero": 3, "shard": 4}, "shard"),
        ("torchtitan", {"dp": 8, "zero": 1}, "zero"),
        ("torchtitan", {"dp": 8, "zero": 3, "offload": ("parameters",)}, "offload"),
        (
            "megatron",
            {"pp": 4, "dp": 2, "recompute": "full", "stage_recompute_layers": (8, 4, 2, 0)},
            "stage_recompute_layers",
        ),
        (
            "torchtitan",
            {"pp": 4, "dp": 2, "recompute": "full", "stage_recompute_layers": (8, 4, 2, 0)},
            "stage_recompute_layers",
        ),
        ("megatron-bridge", {"pp": 4, "dp": 2, "schedule": "dualpipe"}, "schedule"),
    ],
)
def test_a_plan_beyond_a_target_is_refused_with_the_nearest_it_can(target, layout, field):
    plan = make_plan("llama3.1-8b", **layout)
    with pytest.raises(SpecError) as caught:
        export(plan, target)
    assert caught.value.field == f"layout.{field}"
    closest = limits_module.nearest_layout(plan, FRAMEWORKS[target].limits)
    assert closest is not None
    assert closest.label() in str(caught.value)
    assert closest.world == plan.layout.world
    # The offer is real: it exports.
    export(plan.but(layout=closest.model_dump()), target)


@pytest.mark.parametrize("model", ["qwen3-4b", "llama3.2-1b"])
def test_torchtitan_has_no_pipeline_for_weights_that_are_tied(model):
    plan = make_plan(model, pp=2, dp=4)
    with pytest.raises(SpecError, match="a pipeline for models with untied embeddings"):
        export(plan, "torchtitan")


def test_dropout_and_packing_are_translated_or_refused_never_dropped(tmp_path):
    for target in FRAMEWORKS:
        cluster = hosts_of(FRAMEWORKS[target].limits.can, 8)
        plan = make_plan(cluster=cluster, dp=8)
        dropped = plan.but(job=plan.job.but(dropout=0.1).model_dump())
        packed = plan.but(job=plan.job.but(document_masking=True).model_dump())
        if FRAMEWORKS[target].limits.can.document_masking:
            continue  # has a word for packed documents: the round trip holds it
        with pytest.raises(SpecError, match="packing") as caught:
            export(packed, target)
        assert caught.value.field == "job.document_masking"
        if FRAMEWORKS[target].limits.can.dropout:
            export(dropped, target).write(tmp_path / target)
            back = import_file(tmp_path / target / READABLE[target])
            assert back.job.dropout == 0.1
        else:
            with pytest.raises(SpecError, match=r"job\.dropout"):
                export(dropped, target)


def test_architectures_beyond_a_target_are_named():
    bloom = make_plan(dp=8).but(model=load_model("llama3-8b").but(positions="alibi").model_dump())
    with pytest.raises(SpecError, match="ALiBi"):
        export(bloom, "megatron")
    with pytest.raises(SpecError, match="Hugging Face"):
        export(bloom, "deepspeed")


HUGE = b"torchrun --nproc-per-node 8 pretrain_gpt.py --hidden-size 64 --num-attention-heads 4 "
ALIASES = b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 40)
)
BAD = {
    "doubling.sh": b"A=xxxxxxxx\n" + b"A=$A$A\n" * 60 + b"run.py --num-layers $A\n",
    "unclosed.sh": b"run.py '" + b"word\n" * 100_000,
    "layers.sh": HUGE + b"--seq-length 8 --num-layers 999999999999 --num-experts 2\n",
    "stages.sh": HUGE + b"--seq-length 8 --num-layers 4 --pipeline-model-parallel-size 64\n",
    "digits.sh": HUGE + b"--seq-length 8 --num-layers " + b"9" * 5000 + b"\n",
    "laughs.yaml": b"apiVersion: v1\na0: &a0 [1]\n" + ALIASES,
    "stages.yaml": b"parallelism: {pp: 1000000000000}\ntokens: {sequence_length: 8}\noptimizer: {}\n"
    b"model: {model_config: {hidden_size: 8, num_attention_heads: 1, num_hidden_layers: 2, "
    b"intermediate_size: 8, vocab_size: 8}}\n",
    "empty.sh": b"",
    "blank.yaml": b"  \n\n",
    "binary.sh": bytes(range(256)),
    "nul.json": b'{"a": "\x00"}',
    "list.json": b"[1, 2]",
    "broken.json": b'{"train_batch_size": ',
    "deep.json": b"[" * 100_000,
    "broken.yaml": b"a: [1\nb: }",
    "scalar.yaml": b"just words",
    "quote.sh": b"torchrun train.py --num-layers '8\n",
    "nothing.sh": b"#!/bin/bash\necho hello\n",
    "unknown.txt": b"hello there",
    "degree.sh": b"torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 64 "
    b"--num-attention-heads 4 --seq-length 128 --tensor-model-parallel-size 3\n",
    "word.sh": b"torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers eight --hidden-size 64 "
    b"--num-attention-heads 4 --seq-length 128\n",
    "batch.json": b'{"train_batch_size": 65, "train_micro_batch_size_per_gpu": 2, '
    b'"gradient_accumulation_steps": 3}',
    "stage.json": b'{"train_batch_size": 64, "zero_optimization": {"stage": 5}}',
    "engine.yaml": b"parallelism: {pp_engine: fast}\ntokens: {}\noptimizer: {}\n"
    b"model: {model_config: {}}\n",
    "nanotron.yaml": b"parallelism: {dp: two}\ntokens: {}\noptimizer: {}\nmodel: {model_config: {}}\n",
    "pod.yaml": b"apiVersion: v1\nkind: Pod\nspec: {}\n",
    "syntax.py": b"def broken(:\n",
    "other.py": b"import os\nprint(os.getcwd())\n",
    "field.py": b"ParallelismConfig(tensor_paralel_degree=2)\nTrainingConfig(seq_len=8)\n",
    "computed.py": b"ParallelismConfig(tensor_parallel_degree=int('2'))\nTrainingConfig()\n",
    "override.sh": b"torchrun --nproc-per-node 8 run_recipe.py model.num_layers=three\n",
    "product.yaml": b"distributed_type: FSDP\nnum_processes: 8\n"
    b"parallelism_config: {parallelism_config_dp_shard_size: 3}\n",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_sentence_and_exit_2(name, tmp_path, capsys):
    path = tmp_path / name
    path.write_bytes(BAD[name])
    code = run(["import", str(path), "--model", "llama3-8b", "--cluster", "h100:8x8"])
    said = capsys.readouterr()
    assert code == 2
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err


def test_unknown_options_are_named_with_the_nearest_and_refused_when_strict():
    strict = replace(GIVEN, strict=True)
    words = "torchrun pretrain_gpt.py --num-layer 8"
    with pytest.raises(SpecError, match="did you mean --num-layers"):
        import_text(words, "a.sh", strict)
    back = import_text(words, "a.sh", GIVEN)
    assert any("--num-layer:" in note and "not understood" in note for note in back.notes)
    data = '{"train_batch_size": 64, "zero_optimisation": {"stage": 2}}'
    with pytest.raises(SpecError, match="zero_optimisation"):
        import_text(data, "a.json", strict)
    assert any("zero_optimisation" in note for note in import_text(data, "a.json", GIVEN).notes)


def test_missing_model_and_cluster_are_asked_for():
    data = json.dumps({"train_batch_size": 64, "zero_optimization": {"stage": 2}})
    with pytest.raises(SpecError, match="--model"):
        import_text(data, "a.json", Given(cluster=GIVEN.cluster))
    with pytest.raises(SpecError, match="--cluster"):
        import_text(data, "a.json", Given(model=GIVEN.model))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(max_size=300), st.sampled_from(["a.sh", "a.json", "a.yaml", "a.log", "a.py", "a"]))
def test_any_text_is_read_or_refused_in_one_sentence(text, name):
    try:
        import_text(text, name, GIVEN)
    except SpecError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_scripts_are_read_and_never_run(tmp_path):
    trap = tmp_path / "trap"
    text = f'X=$(touch {trap})\n`touch {trap}`\nA=(--num-layers 4)\ntrain.py "${{A[@]}}" $((2*4))\n'
    script = read_script(text)
    assert not trap.exists()
    assert script.scope.variables["A"] == ["--num-layers", "4"]
    assert script.commands[-1].words == ["train.py", "--num-layers", "4", "8"]


def test_cli_writes_a_folder_and_lists_what_it_cannot(tmp_path, capsys):
    path = tmp_path / "plan.toml"
    save_plan(make_plan(dp=2, pp=4, virtual_stages=2), path)
    assert run(["export", str(path), "--all", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert (tmp_path / "out/megatron/run.sh").stat().st_mode & 0o111
    assert not (tmp_path / "out/deepspeed").exists()
    assert "DeepSpeed has no virtual pipeline stages" in said
    assert run(["export", str(path), "--to", "nowhere"]) == 2
    assert run(["export", str(path)]) == 2


@pytest.mark.parametrize("target", list(FRAMEWORKS))
def test_every_file_says_who_made_it_and_how(target):
    can = FRAMEWORKS[target].limits.can
    job = Job(seq_len=4096, global_batch=64, precision=under(Job(), can.name).precision)
    plan = make_plan("llama3.1-8b", hosts_of(can, 8), job, dp=8)
    bundle = export(plan, target, command="meshwright export plan.toml --to x")
    for name, text in bundle.files.items():
        assert "made by meshwright 0.1.0" in text, name
        assert "meshwright export plan.toml --to x" in text, name


def test_torchs_interleaving_runs_equal_rounds_of_micro_batches():
    """The exporter refuses what the planner's own rule refuses, and names a micro-batch that works."""
    base = make_plan(
        pp=4, dp=1, virtual_stages=2, schedule="interleaved", micro_batch=1, cluster="h100:1x4",
        job=Job(seq_len=2048, global_batch=18, framework="torchtitan", precision=RECIPES["bf16-fp32-grads"]),
    )  # fmt: skip
    found = {p.field: p for p in limits_module.problems(base, FRAMEWORKS["torchtitan"].limits)}
    assert found["micro_batches"].change == {
        "micro_batch": 3
    }  # 18 and 9 make no equal rounds; 6 make one
    even = base.but(job=base.job.but(global_batch=8))
    assert "micro_batches" not in {
        p.field for p in limits_module.problems(even, FRAMEWORKS["torchtitan"].limits)
    }


@pytest.mark.parametrize(("target", "loss"), [("torchtitan", "full")])
def test_a_loss_that_the_files_do_not_ask_for_is_refused(target, loss):
    job = Job(seq_len=4096, global_batch=64, loss=loss)
    plan = make_plan("llama3.1-8b", dp=8, zero=3, job=job)
    with pytest.raises(SpecError, match=rf"job\.loss = .{loss}.*is exported with the loss"):
        export(plan, target)
    with pytest.raises(SpecError, match=r"job\.loss"):
        require_expressible(plan.model, plan.job.but(framework=target), plan.cluster)


def test_what_a_plan_keeps_in_host_memory_goes_out_and_comes_back_under_deepspeed(tmp_path):
    long = {"cp": 8, "cp_method": "ulysses", "zero": 3, "recompute": "full"}
    plan = make_plan("llama3.1-8b", **long, offload=("optimizer", "parameters"))
    export(plan, "deepspeed").write(tmp_path)
    back = import_file(tmp_path / "ds_config.json", Given(cluster=plan.cluster)).layout
    assert (back.cp, back.cp_method, back.offload) == (8, "ulysses", ("optimizer", "parameters"))
    with pytest.raises(SpecError, match="under ZeRO stage 3"):
        export(make_plan("llama3.1-8b", dp=8, zero=1, offload=("parameters",)), "deepspeed")


@pytest.mark.parametrize(
    ("tune", "others"), [(None, "megatron or .*deepspeed"), ("lora", "trl or axolotl or verl")]
)
def test_a_split_that_a_target_lacks_is_refused_with_the_name_of_who_has_it(tune, others):
    """accelerate's own Ulysses is DeepSpeed's engine, which other targets write."""
    job = Job(seq_len=8192, global_batch=64, finetune=finetune_recipe(tune) if tune else None)
    plan = make_plan("llama3.1-8b", job=job, dp=4, cp=2, cp_method="ulysses", zero=3)
    with pytest.raises(SpecError, match=f"ulysses is planned with --framework {others}"):
        export(plan, "accelerate")


@pytest.mark.parametrize(
    ("target", "asked", "sentence"),
    [
        ("trl", {}, "^finetune: TRL fine-tunes: plan with --finetune"),
        (
            "axolotl",
            {"finetune": finetune_recipe("lora"), "loss": "chunked"},
            "^job.loss = 'chunked': .*`meshwright plan --framework axolotl` keeps to what it can$",
        ),
    ],
)
def test_what_no_layout_mends_is_said_first_and_how_to_plan_for_the_target(target, asked, sentence):
    job = Job(seq_len=2048, global_batch=64, **asked)
    with pytest.raises(SpecError, match=sentence):
        export(make_plan("llama3.1-8b", job=job, dp=8, tp=1 if asked else 2), target)


def test_what_nobody_can_write_is_said_by_the_plan_s_own_framework(tmp_path, capsys):
    plan = make_plan("bloom-560m", pp=2, dp=4)
    own = plan.but(job=plan.job.but(framework="nanotron").model_dump())
    for framework, made in (("megatron", plan), ("nanotron", own)):
        save_plan(made, tmp_path / "plan.toml")
        assert run(["export", str(tmp_path / "plan.toml"), "--all", str(tmp_path / "out")]) == 2
        assert f"no target can express it; {framework}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "refused"), [("fp32", True), ("tf32", True), ("bf16-fp32-grads", False)]
)
def test_experts_that_multiply_in_bf16_alone_are_not_sent_to_torchtitan_in_fp32(recipe, refused):
    job = Job(seq_len=2048, global_batch=64, framework="torchtitan", precision=RECIPES[recipe])
    plan = make_plan("gpt-oss-20b", job=job, dp=8, zero=3)
    asked = {
        problem.field for problem in limits_module.problems(plan, FRAMEWORKS["torchtitan"].limits)
    }
    assert ("job.precision" in asked) == refused
