"""Programs around Megatron-Bridge: what their main hands to the training is the run."""

from pathlib import Path

from folders import lay

from meshwright.imports.files import import_file
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster

RECIPES = """
def qwen3_4b_pretrain_8gpu_config() -> ConfigContainer:
    cfg = _common()
    cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen3-4B").to_megatron_provider(load_weights=False)
    cfg.model.seq_length = 4096
    cfg.train.global_batch_size = 512
    cfg.train.micro_batch_size = 2
    return cfg


def _common():
    cfg = ConfigContainer()
    cfg.train = TrainingConfig(micro_batch_size=1)
    cfg.ddp = DistributedDataParallelConfig(overlap_grad_reduce=True)
    return cfg
"""
PROGRAM = """
from megatron.bridge.recipes.qwen import qwen3_4b_pretrain_config
from megatron.bridge.training.utils import create_omegaconf_dict_config
from megatron.bridge.training.pretrain import pretrain


def main() -> None:
    cfg = qwen3_4b_pretrain_config()
    cfg.model.tensor_model_parallel_size = 2
    if args.debug:
        cfg.train.global_batch_size = 1
    cfg.train.global_batch_size = 64
    pretrain(config=cfg, forward_step_func=forward_step)


if __name__ == "__main__":
    main()
"""


def project(tmp_path: Path) -> Path:
    files = {
        ".git/HEAD": "",
        "examples/__init__.py": "",
        "src/megatron/bridge/recipes/qwen/__init__.py": "from .qwen3 import qwen3_4b_pretrain_config\n",
        "src/megatron/bridge/recipes/qwen/qwen3.py": "from megatron.bridge.recipes.qwen.h100.qwen3 import qwen3_4b_pretrain_8gpu_config as qwen3_4b_pretrain_config\n",
        "src/megatron/bridge/recipes/qwen/h100/qwen3.py": RECIPES,
        "examples/quickstart/run.py": PROGRAM,
    }
    return lay(tmp_path, files) / "examples" / "quickstart" / "run.py"


def test_main_s_changes_count_over_its_recipe(tmp_path):
    found = import_file(project(tmp_path), Given(cluster=load_cluster("h100:1x8")))
    layout, job = found.layout, found.job
    assert (found.model.name, layout.tp, layout.dp, layout.micro_batch) == ("qwen3-4b", 2, 4, 2)
    assert (job.global_batch, job.seq_len) == (64, 4096)


def test_a_recipe_that_is_not_at_hand_names_the_model(tmp_path):
    path = tmp_path / "run.py"
    path.write_text(PROGRAM)
    found = import_file(path, Given(cluster=load_cluster("h100:1x8"), guess=True))
    assert (found.model.name, found.layout.tp, found.job.global_batch) == ("qwen3-4b", 2, 64)
    assert any("is not here" in note for note in found.notes)


LAID_OVER = """
from pathlib import Path
from megatron.bridge.recipes.qwen import qwen3_4b_pretrain_config
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides
from megatron.bridge.training.pretrain import pretrain

HERE = Path(__file__).parent
OWN = HERE / "conf" / "own.yaml"


def main() -> None:
    parser.add_argument("--config-file", type=str, default=str(OWN))
    config: ConfigContainer = qwen3_4b_pretrain_config()
    config = process_config_with_overrides(config, config_filepath=args.config_file)
    pretrain(config=config, forward_step_func=forward_step)


main()
"""


def test_a_table_that_a_program_lays_over_its_recipe_counts(tmp_path):
    place = tmp_path / "megatron" / "bridge" / "recipes"
    place.mkdir(parents=True)
    (place / "qwen.py").write_text(RECIPES.replace("_8gpu", ""))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "own.yaml").write_text(
        "train: {global_batch_size: 32}\nmodel: {seq_length: 2048}\n"
    )
    (tmp_path / "run.py").write_text(LAID_OVER)
    found = import_file(tmp_path / "run.py", Given(cluster=load_cluster("h100:1x8")))
    assert (found.job.global_batch, found.job.seq_len, found.layout.micro_batch) == (32, 2048, 2)
    assert found.format == "Megatron-Bridge program"
