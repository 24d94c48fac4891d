"""NeMo 2 and Megatron-Bridge recipes: every field that a recipe sets counts, is named, or is marked as guessed."""

from pathlib import Path

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster

H16 = Given(cluster=load_cluster("h100:2x8"), guess=True)

OWN = """
import nemo_run as run
from nemo.collections import llm

def configure_recipe(nodes: int = 2, gpus_per_node: int = 8):
    recipe = llm.llama3_8b.{kind}_recipe(dir="/c", num_nodes=nodes, num_gpus_per_node=gpus_per_node{more})
    recipe.trainer.strategy.tensor_model_parallel_size = 4
    recipe.trainer.strategy.sequence_parallel = True
    recipe.data.micro_batch_size = 2
    recipe.data.global_batch_size = 256
    recipe.data.seq_length = 8192
    recipe.model.config.recompute_granularity = "selective"
    recipe.trainer.plugins.grad_reduce_in_fp32 = False
    recipe.model.config.cpu_offloading = True
    recipe.optim.config.use_precision_aware_optimizer = True
    recipe.optim.config.main_params_dtype = "bf16"
    recipe.model.config.strange_new_field = 3
    return recipe

if __name__ == "__main__":
    run.run(configure_recipe(), executor=run.LocalExecutor())
"""


def test_a_program_that_changes_the_librarys_recipe():
    back = import_text(OWN.format(kind="pretrain", more=""), "p.py", H16)
    layout, job = back.layout, back.job
    assert (back.model.name, layout.tp, layout.dp, layout.micro_batch) == ("llama3-8b", 4, 2, 2)
    assert layout.cp == 2  # the library's, which the program leaves
    assert (layout.sequence_parallel, layout.recompute, layout.zero) == (True, "selective", 1)
    assert (job.seq_len, job.global_batch, job.framework) == (8192, 256, "nemo")
    assert (job.precision.gradient_reduce_bytes, job.precision.master_bytes) == (2, 2)
    said = {one.kind: [other.option for other in back.remarks if other.kind == one.kind] for one in back.remarks}  # fmt: skip
    assert said["unread"] == ["--strange-new-field"]
    assert not back.offload  # no layers are named: cpu_offloading_num_layers is 0
    assert "llm.llama3_8b.pretrain_recipe" in said["note"]


def test_its_adapters_are_the_librarys_unless_it_says_none():
    for more, tuned in (("", True), (', peft_scheme="none"', False)):
        back = import_text(OWN.format(kind="finetune", more=more), "p.py", H16)
        assert (back.job.finetune is not None) == tuned


RECIPE = """
import nemo_run as run
from nemo import lightning as nl
from nemo.collections import llm
from nemo.collections.llm.recipes.precision.mixed_precision import bf16_with_fp8_mixed

NAME = "qwen3_14b"

def pretrain_recipe(num_nodes: int = 2, num_gpus_per_node: int = 8, scheme: str = "Full"):
    strategy = run.Config(nl.MegatronStrategy, tensor_model_parallel_size=8, num_layers_in_first_pipeline_stage=None)
    recipe = run.Partial(
        llm.pretrain,
        model=run.Config(llm.Qwen3Model, config=run.Config(llm.Qwen3Config14B, recompute_num_layers=1)),
        trainer=run.Config(nl.Trainer, devices=num_gpus_per_node, num_nodes=num_nodes, strategy=strategy,
                           plugins=bf16_with_fp8_mixed()),
        data=run.Config(llm.MockDataModule, seq_length=4096, global_batch_size=32, micro_batch_size=2),
        optim=None,
    )
    if scheme.lower() == "full":
        recipe.model.config.recompute_granularity = "full"
        recipe.model.config.recompute_method = "uniform"
    return recipe
"""


def test_a_recipe_of_its_own_with_branches_and_8_bits():
    back = import_text(RECIPE, "r.py", Given(guess=True))
    assert (back.model.name, back.cluster.gpus, back.layout.tp) == ("qwen3-14b", 16, 8)
    assert (back.layout.recompute, back.job.precision.name) == ("full", "fp8")


BRIDGE = """
from megatron.bridge import AutoBridge
from megatron.bridge.peft.lora import LoRA
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.mixed_precision import get_mixed_precision_config

def llama3_8b_peft_4gpu_h100_config(peft_scheme="lora") -> ConfigContainer:
    cfg = ConfigContainer(peft=LoRA(), mixed_precision=get_mixed_precision_config("{precision}"))
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").get_model_config()
    if isinstance(peft_scheme, str) and peft_scheme.lower() in ["lora", "dora"]:
        cfg.peft.dim = 8
    cfg.model.seq_length = 4096
    cfg.train.global_batch_size = 32
    cfg.train.micro_batch_size = 1
    {then}
    return cfg
"""


def test_a_bridge_recipes_precision_adapters_and_devices(tmp_path: Path):
    rows = (
        ("bf16_with_mxfp8_mixed", "pass", "fp8"),
        ("bf16_with_nvfp4_mixed", "pass", "fp4"),
        ("bf16_with_mxfp8_mixed", "cfg.mixed_precision.fp8 = None", "bf16-fp32-grads"),
        ("fp16_mixed", "pass", "fp16"),
    )
    for precision, then, expected in rows:
        path = tmp_path / "recipe.py"
        path.write_text(BRIDGE.format(precision=precision, then=then))
        back = import_file(path, Given(guess=True))
        assert back.job.precision.name == expected
        assert (back.cluster.gpus, back.layout.dp) == (4, 4)
        assert back.job.finetune is not None
        assert back.job.finetune.rank == 8
