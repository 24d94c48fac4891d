"""MLPerf's submissions: variables of one file, read by the YAML beside it."""

from pathlib import Path

import pytest

from meshwright.imports.files import import_file
from meshwright.imports.reading import Given
from meshwright.specs.errors import SpecError

YAML = """
trainer:
  devices: ${oc.decode:${oc.env:DGXNGPU,8}}
  num_nodes: ${oc.decode:${oc.env:DGXNNODES,1}}
  precision: bf16
model:
  mcore_gpt: True
  megatron_amp_O2: True
  micro_batch_size: ${oc.decode:${oc.env:MICRO_BATCH_SIZE}}
  tensor_model_parallel_size: ${oc.decode:${oc.env:TENSOR_MODEL_PARALLEL}}
  pipeline_model_parallel_size: ${oc.decode:${oc.env:PIPELINE_MODEL_PARALLEL}}
  virtual_pipeline_model_parallel_size: ${oc.decode:${oc.env:INTERLEAVED_PIPELINE,null}}
  global_batch_size: ${multiply:${oc.decode:${oc.env:MINIBS}},${floor_div:${multiply:${trainer.devices},${trainer.num_nodes}},${multiply:${model.tensor_model_parallel_size},${model.pipeline_model_parallel_size}}}}
  encoder_seq_length: 8192
  base_config: ${oc.env:MODEL_SIZE,405b}
  fp8: ${oc.decode:${oc.env:FP8,False}}
  sequence_parallel: ${oc.decode:${oc.env:SEQ_PARALLEL,True}}
  optim:
    overlap_grad_reduce: ${oc.decode:${oc.env:OVERLAP_GRAD_REDUCE,True}}
    overlap_param_gather: ${oc.decode:${oc.env:OVERLAP_PARAM_GATHER,False}}
    use_distributed_optimizer: True
    bucket_size: ${oc.decode:${oc.env:BUCKET_SIZE,134217728}}
"""
COMMON = "export FP8=True\nexport MICRO_BATCH_SIZE=1\n"
ONE = "source $(dirname ${BASH_SOURCE[0]})/config_common.sh\nexport MODEL_SIZE=8b\nexport MINIBS=4\nexport TENSOR_MODEL_PARALLEL=2\nexport PIPELINE_MODEL_PARALLEL=1\nexport INTERLEAVED_PIPELINE=null\nexport DGXNNODES=2\nexport DGXNGPU=8\n"


def submission(folder: Path) -> Path:
    (folder / "conf").mkdir()
    (folder / "conf" / "custom.yaml").write_text(YAML)
    (folder / "config_common.sh").write_text(COMMON)
    (folder / "config_DGXB200_2x8x4xtp2pp1.sh").write_text(ONE)
    (folder / "config_DGXB200_4x8x4xtp2pp1.sh").write_text(ONE.replace("NNODES=2", "NNODES=4"))
    return folder


def test_the_variables_of_a_file_fill_the_yaml_beside_it(tmp_path):
    found = import_file(submission(tmp_path) / "config_DGXB200_2x8x4xtp2pp1.sh", Given(guess=True))
    layout = found.layout
    assert (layout.tp, layout.dp, layout.zero, layout.micro_batch, found.job.global_batch) == (2, 8, 1, 1, 32)  # fmt: skip
    assert found.model.name == "llama3.1-8b" and found.job.precision.compute == "fp8"
    assert found.job.dropout == 0 and found.cluster.device.preset == "b200"
    assert found.job.framework_options["gather_overlapped"] is False
    assert found.job.framework_options["bucket_parameters"] == 134_217_728


def test_a_folder_of_several_asks_which(tmp_path):
    with pytest.raises(SpecError, match="config_DGXB200_4x8"):
        import_file(submission(tmp_path), Given(guess=True))
    chosen = Given(config="config_DGXB200_4x8x4xtp2pp1.sh", guess=True)
    assert import_file(tmp_path, chosen).layout.dp == 16


def test_without_the_yaml_it_says_so(tmp_path):
    (tmp_path / "config_x.sh").write_text(ONE.split("\n", 1)[1])
    with pytest.raises(SpecError, match=r"conf/\*\.yaml"):
        import_file(tmp_path / "config_x.sh", Given(guess=True))


def test_the_yaml_may_lie_under_src(tmp_path: Path):
    inner = tmp_path / "src"
    inner.mkdir()
    moved = submission(tmp_path)
    (moved / "conf").rename(inner / "conf")
    found = import_file(tmp_path / "config_DGXB200_2x8x4xtp2pp1.sh", Given(guess=True))
    assert (found.layout.tp, found.model.name) == (2, "llama3.1-8b")


@pytest.mark.parametrize(
    ("folder", "what"),
    [("retinanet", "a vision model"), ("dlrm_dcnv2", "a recommender"), ("bert", "an encoder"), ("stable_diffusion", "a diffusion model")],
)  # fmt: skip
def test_other_benchmarks_are_refused_by_their_folder(tmp_path: Path, folder: str, what: str):
    place = tmp_path / folder / "implementations" / "pytorch"
    place.mkdir(parents=True)
    path = submission(place) / "config_DGXB200_2x8x4xtp2pp1.sh"
    with pytest.raises(SpecError, match=f"trains {what}"):
        import_file(path, Given(guess=True))
