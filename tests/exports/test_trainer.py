"""The Trainer's files, read by its own parser through the script that comes with them; imports of FSDP2's words."""

import runpy
import sys

import pytest
import yaml
from plans import make_plan, plans
from test_real_parsers import sample

from meshwright.exports import trainer
from meshwright.exports.canonical import canonical
from meshwright.exports.targets import export
from meshwright.imports.files import import_text
from meshwright.imports.reading import Given
from meshwright.specs import Job, load_cluster
from meshwright.specs.job import RECIPES


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The names of an exported script, which has not run."""
    folder = tmp_path_factory.mktemp("trainer")
    export(make_plan("llama3-8b", dp=8, zero=3), "trainer").write(folder)
    sys.path.insert(0, str(folder))  # as Python does where it starts a program
    return runpy.run_path(str(folder / "train_trainer.py"))


def test_the_trainer_reads_our_arguments(script, tmp_path):
    for number, plan in enumerate(sample(plans(trainer.LIMITS, ("llama3-8b", "mixtral-8x7b")), 12)):
        path = tmp_path / f"{number}.yaml"
        # No process of this machine has a card; everything else is as exported.
        path.write_text(yaml.safe_dump(trainer.arguments(plan) | {"use_cpu": True}))
        run, read = script["read_words"](str(path))
        layout = canonical(plan.layout, plan.model)
        batch = read.per_device_train_batch_size * read.gradient_accumulation_steps * layout.dp
        assert (run.block_size, batch) == (plan.job.seq_len, plan.job.global_batch)
        assert (read.bf16, read.fp16) == tuple(
            plan.job.precision.compute == name for name in ("bf16", "fp16")
        )
        told = read.fsdp_plugin_args or {}
        assert bool(told) == bool(layout.zero)
        again = told.get("activation_checkpointing", False) or read.gradient_checkpointing
        assert again == (layout.recompute == "full")
        if layout.zero:
            kwargs = read.accelerator_config.gradient_accumulation_kwargs or {}
            accumulates = read.gradient_accumulation_steps > 1
            assert kwargs.get("sync_each_batch", False) is accumulates  # gradients stay sharded
            assert told["fsdp_version"] == 2
            assert told["reshard_after_forward"] is (layout.zero == 3)


def test_words_after_the_file_win_and_unknown_names_are_refused(script, tmp_path, capsys):
    path = tmp_path / "trainer.yaml"
    values = trainer.arguments(make_plan("llama3-8b", dp=8)) | {"use_cpu": True}
    path.write_text(yaml.safe_dump(values))
    assert script["read_words"](str(path), "--max_steps", "7")[1].max_steps == 7
    path.write_text(yaml.safe_dump(values | {"gradient_acumulation_steps": 2}))
    with pytest.raises(SystemExit):
        script["read_words"](str(path))
    assert "gradient_acumulation_steps" in capsys.readouterr().err


def test_a_checkpoint_is_read_by_one_process_of_the_job(script, tmp_path):
    path = tmp_path / "trainer.yaml"
    plan = make_plan("llama3-8b", dp=8, zero=3)
    path.write_text(yaml.safe_dump(trainer.arguments(plan) | {"use_cpu": True}))
    _, read = script["read_words"](str(path), "--model_name_or_path", "meta-llama/Llama-3.1-8B")
    assert read.fsdp_plugin_args["cpu_ram_efficient_loading"] is True
    assert script["read_words"](str(path))[1].fsdp_plugin_args["cpu_ram_efficient_loading"] is False


@pytest.mark.parametrize(
    ("words", "zero", "offload"),
    [("{version: 2, reshard_after_forward: true}", 3, False), ("{reshard_after_forward: false}", 2, False),
     ("{version: 1, reshard_after_forward: shard_grad_op}", 2, False),
     ("{reshard_after_forward: true, cpu_offload: true}", 3, True)],
)  # fmt: skip
def test_how_the_trainer_s_second_fsdp_shards_is_read(words, zero, offload):
    text = (
        "model_name_or_path: meta-llama/Llama-3.1-8B\nper_device_train_batch_size: 2\nbf16: true\n"
        f"max_length: 2048\ngradient_accumulation_steps: 4\nfsdp: true\nfsdp_config: {words}\n"
    )
    back = import_text(text, "x.yaml", Given(cluster=load_cluster("h100:1x8")))
    assert back.layout.zero == zero
    assert ("parameters" in back.offload) == offload


def test_liger_is_written_where_it_was_priced():
    job = Job(seq_len=2048, global_batch=64, precision=RECIPES["bf16"], loss="liger")
    plan = make_plan("llama3-8b", dp=8, zero=3, job=job)
    assert trainer.arguments(plan)["use_liger_kernel"] is True


@pytest.mark.parametrize(("zero", "said"), [(0, False), (3, True)])
def test_gradients_that_cross_in_16_bits_are_said(zero, said):
    plan = make_plan("llama3-8b", dp=8, zero=zero, micro_batch=1)
    plan = plan.but(job=plan.job.but(precision=RECIPES["bf16-fp32-grads"]))
    told = any("reduces them in 16" in one for one in export(plan, "trainer").notes)
    assert told is said
