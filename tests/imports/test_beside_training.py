"""What stands beside a training in its files: checks, conversions, parts of configurations, pipelines."""

import pytest
from folders import GUESS

from meshwright.imports.files import import_text
from meshwright.specs.errors import SpecError

TRAIN = "python3 -m MaxText.train MaxText/configs/base.yml model_name=llama2-7b per_device_batch_size=2 max_target_length=2048 hardware=gpu\n"
CHECK = "python3 -m MaxText.tests.forward_pass_logit_checker MaxText/configs/base.yml model_name=llama2-7b per_device_batch_size=1 max_target_length=4 dtype=float32 scan_layers=false a=1 b=2\n"
CONVERT = "python3 -m MaxText.llama_ckpt_unscanned --base-model-path x --model-size llama2-7b\n"


def test_a_check_with_more_options_is_not_the_training():
    found = import_text(TRAIN + CHECK + CONVERT, "run.sh", GUESS)
    assert (found.job.seq_len, found.layout.micro_batch) == (2048, 2)


SERVE = "python3 -m MaxText.maxengine_server MaxText/configs/base.yml\n"


@pytest.mark.parametrize("command", [CHECK, CONVERT, SERVE])
def test_a_check_or_a_conversion_alone_trains_nothing(command: str):
    with pytest.raises(SpecError, match="does not train"):
        import_text(command, "run.sh", GUESS)


def test_a_job_s_script_without_an_ending_is_written_and_submitted():
    text = 'n="job"\ncat >$n <<EOD\n#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\nsrun litgpt finetune_lora meta-llama/Llama-3.2-1B --train.epochs 1\nEOD\nchmod +x $n\nsbatch $n\n'
    found = import_text(text, "submit.sh", GUESS)
    assert (found.format, found.layout.world) == ("LitGPT command", 8)


def test_the_model_table_of_a_nemo_checkpoint():
    text = "mcore_gpt: true\nmegatron_amp_O2: true\nmicro_batch_size: 1\nglobal_batch_size: 8\ntensor_model_parallel_size: 1\nencoder_seq_length: 8192\nnum_layers: 8\nhidden_size: 1024\nffn_hidden_size: 4096\nnum_attention_heads: 8\nnum_query_groups: 2\nactivation: fast-swiglu\nnormalization: rmsnorm\nposition_embedding_type: rope\nhidden_dropout: 0.0\nattention_dropout: 0.0\n"
    found = import_text(text, "model_config.yaml", GUESS)
    assert (found.format, found.model.gated, found.job.seq_len) == ("NeMo YAML", True, 8192)


def test_a_compiled_pipeline_is_refused_as_one():
    with pytest.raises(SpecError, match="compiled Kubeflow pipeline"):
        import_text("components: {}\ndeploymentSpec: {executors: {}}\npipelineInfo: {name: x}\n", "p.yaml", GUESS)  # fmt: skip
