"""Loops of one's own: what decides and is not said is asked for, and nothing stands for what nobody could follow."""

from pathlib import Path

import pytest
from folders import GUESS
from test_own_loops_alone import CONSTANTS, LOOP, MODEL

from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.specs import load_model
from meshwright.specs.errors import SpecError

MADE = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"


def read(text: str, given: Given = GUESS):
    return import_text(text, "train.py", given)


def test_a_batch_without_a_model_asks_for_the_model():
    text = MODEL + "batch_size = 8\nseq_len = 1024\nmodel = build_model(load(step))\n" + MADE + LOOP
    with pytest.raises(SpecError, match=r"\(it says micro-batch 8, sequence 1024\): give --model"):
        read(text)
    found = read(text, Given(guess=True, model=load_model("qwen3-0.6b")))
    assert (found.model.name, found.layout.micro_batch, found.job.seq_len) == (
        "qwen3-0.6b", 8, 1024,
    )  # fmt: skip


def test_what_is_said_of_a_part_of_the_model_is_named():
    sizes = CONSTANTS.replace("n_head = 5\n", "")
    with pytest.raises(SpecError, match="says layers and a width of its model, but not heads"):
        read(MODEL + sizes + LOOP)


def test_no_default_stands_for_what_is_handed_over_and_not_followed():
    config = "from dataclasses import dataclass\n@dataclass\nclass GPTConfig:\n    n_layer: int = 12\n    n_head: int = 12\n    n_embd: int = 768\n    vocab_size: int = 50257\n"
    made = "batch_size = 4\nmodel = GPT(GPTConfig(n_layer=deepest(), n_head=5, n_embd=640))\n"
    with pytest.raises(SpecError, match="but not layers"):
        read(MODEL + config + made + MADE + LOOP)
    known = made.replace("deepest()", "10")
    assert read(MODEL + config + known + MADE + LOOP).model.layers == 10


@pytest.mark.parametrize(
    "call", ["TinyGPT(width=640, heads=5, layers=10, context=512)", "TinyGPT(640, 5, 10, 512)"]
)
def test_a_model_is_made_in_the_author_s_own_words(call: str):
    own = "class TinyGPT(nn.Module):\n    def __init__(self, width, heads, layers, context, dropout=0.0): pass\n"
    found = read(MODEL + own + f"batch_size = 6\nmodel = {call}\n" + MADE + LOOP)
    model = found.model
    assert (model.layers, model.hidden, model.heads, found.job.seq_len) == (10, 640, 5, 512)


def test_a_table_is_chosen_by_its_name():
    table = 'configs = {"7B": dict(n_layer=32, n_head=32, n_embd=4096), "13B": dict(n_layer=40, n_head=40, n_embd=5120)}\n'
    found = read(MODEL + table + 'batch_size = 2\nmodel = LLaMA.from_name("13B")\n' + MADE + LOOP)
    assert (found.model.layers, found.model.hidden) == (40, 5120)


def test_a_mixture_is_never_read_as_dense():
    experts = "class SparseMoE(nn.Module): pass\nclass Block(nn.Module):\n    def __init__(self):\n        self.mlp = {}\n"
    with pytest.raises(SpecError, match="builds layers of experts"):
        read(MODEL + experts.format("SparseMoE()") + CONSTANTS + LOOP)
    maybe = experts.format("SparseMoE() if config.use_moe else MLP()")
    assert read(MODEL + maybe + "use_moe = False\n" + CONSTANTS + LOOP).model.experts is None
    sizes = CONSTANTS + "num_experts = 8\nnum_experts_per_tok = 2\nmoe_intermediate_size = 1280\n"
    mixture = read(MODEL + experts.format("SparseMoE()") + sizes + LOOP).model.experts
    assert mixture is not None
    assert (mixture.experts, mixture.top_k, mixture.ffn) == (8, 2, 1280)


def test_b_and_t_stand_beside_a_batch_in_tokens():
    sizes = CONSTANTS.replace("batch_size = 6\nblock_size = 512\n", "")
    steps = "def main():\n    total_batch_size = 524288\n    B = 16\n    T = 1024\n"
    found = read(MODEL + sizes + steps + "DDP(model)\n" + LOOP)
    assert (found.layout.micro_batch, found.job.seq_len, found.job.global_batch) == (16, 1024, 512)


def test_a_batch_divided_by_the_micro_batch_alone_is_one_device_s():
    sizes = CONSTANTS.replace(
        "batch_size = 6",
        "batch_size = 24\nmicro_batch_size = 6\nsteps = batch_size // micro_batch_size",
    )
    found = read(MODEL + "DDP(model)\n" + sizes + LOOP)
    assert (found.layout.micro_batch, found.job.global_batch, found.layout.world) == (6, 192, 8)


def test_the_code_that_builds_the_model_may_not_be_here(tmp_path: Path):
    text = "from model import GPT, GPTConfig\nmodel = GPT(GPTConfig(n_layer=12, n_head=12, n_embd=768, block_size=1024))\nbatch_size = 2\n"
    (tmp_path / "train.py").write_text(text + MADE + LOOP)
    found = import_file(tmp_path / "train.py", GUESS)
    assert (found.model.positions, found.model.tied_embeddings) == ("learned", True)
    assert any("the code that builds it is not here" in note for note in found.notes)


def test_a_package_under_src_hands_its_model_on(tmp_path: Path):
    tiny = "class Tiny(nn.Module):\n    def __init__(self, width=640, heads=5, layers=10, context=512): pass\n"
    for place, text in (
        ("src/lab/models/__init__.py", "from .tiny import Tiny\n"),
        ("src/lab/models/tiny.py", MODEL + tiny + "class SwiGLU: pass\n"),
        ("labs/one/train.py", "import torch\nfrom lab.models import Tiny\nbatch_size = 3\nmodel = Tiny(layers=4)\n" + MADE + LOOP),
    ):  # fmt: skip
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    found = import_file(tmp_path / "labs/one/train.py", GUESS)
    assert (found.model.layers, found.model.hidden, found.model.gated) == (4, 640, True)


def test_defaults_of_a_class_that_nobody_makes_say_nothing(tmp_path: Path):
    (tmp_path / "config.py").write_text(
        "class Config:\n    n_layer: int = 16\n    n_head: int = 32\n    n_embd: int = 4096\n"
    )
    text = "from config import Config\nbatch_size = 4\nmodel = GPT(Config.of(checkpoint))\n"
    (tmp_path / "train.py").write_text(MODEL + text + MADE + LOOP)
    with pytest.raises(SpecError, match="give --model"):
        import_file(tmp_path / "train.py", GUESS)


def test_fabric_says_devices_sharding_and_precision():
    fabric = 'import lightning as L\nstrategy = FSDPStrategy(sharding_strategy="SHARD_GRAD_OP")\nfabric = L.Fabric(devices=4, num_nodes=2, strategy=strategy, precision="bf16-true")\nfabric.launch()\n'
    found = read(
        MODEL + fabric + CONSTANTS + LOOP.replace("loss.backward()", "fabric.backward(loss)")
    )
    assert (found.layout.world, found.layout.zero, found.job.precision.name) == (8, 2, "pure-bf16")
    found = read(
        MODEL
        + "fabric = L.Fabric()\n"
        + CONSTANTS
        + LOOP.replace("loss.backward()", "fabric.backward(loss)")
    )
    assert found.layout.world == 8


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("@hydra_runner(config_path='conf')\ndef main(cfg):\n    trainer.fit(model)\n", "its configuration"),
        ("def main(argv):\n    pyconfig.initialize(argv)\n    train_loop(config)\nif __name__ == '__main__':\n    app.run(main)\n", "its command line"),
        ("def loss(x):\n    return x\nclass Part:\n    pass\n", "functions and classes that a program calls"),
        ("model = nn.Linear(3, 1)\nfor x in data:\n    loss.backward()\n    opt.step()\nif __name__ == '__main__':\n    pass\n", "no line of it says that its model is a decoder"),
        ("def test_it():\n    loss.backward()\n    optimizer.step()\n", "it tests"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_for_its_reason(text: str, reason: str):
    with pytest.raises(SpecError, match=reason):
        read("import os\n" + text)


def test_a_width_that_is_switched_on_by_nobody_is_not_taken():
    narrow = "ctx = torch.autocast(device_type='cuda', dtype=torch.bfloat16) if args.bf16 else nullcontext()\n"
    parse = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--bf16', action='store_true')\nargs = parser.parse_args()\n"
    assert read(MODEL + parse + narrow + CONSTANTS + LOOP).job.precision.name == "fp32"
    scaled = "dtype = 'bfloat16'\nctx = torch.autocast(device_type='cuda', dtype=dtype)\nscaler = GradScaler(enabled=dtype == 'float16')\n"
    assert read(MODEL + scaled + CONSTANTS + LOOP).job.precision.name == "bf16"


def test_tables_are_tied_as_the_program_says():
    tying = "if config.tie_word_embeddings:\n    self.lm_head.weight = self.tok_emb.weight\n"
    assert not read(
        MODEL + tying + "tie_word_embeddings = False\n" + CONSTANTS + LOOP
    ).model.tied_embeddings
    assert read(MODEL + tying + CONSTANTS + LOOP).model.tied_embeddings


def test_a_program_that_writes_the_name_of_a_library_s_class_has_its_own_model():
    saved = "config = {'architectures': ['LlamaForCausalLM']}\n"
    assert read(MODEL + saved + CONSTANTS + LOOP).model.layers == 10


def test_settings_of_a_program_lie_in_a_file_that_it_imports(tmp_path: Path):
    (tmp_path / "settings.py").write_text(
        "class TrainingConfig(BaseModel):\n    model_name: str = 'Qwen/Qwen3-0.6B'\n    batch_size: int = 3\n    max_length: int = 640\n"
    )
    (tmp_path / "train.py").write_text(
        "from transformers import AutoModelForCausalLM\nfrom settings import TrainingConfig\n"
        "config = TrainingConfig(model_name='Qwen/Qwen3-0.6B')\nmodel = DDP(AutoModelForCausalLM.from_pretrained(config.model_name))\n"
        "loader = make_loader(config)\n" + LOOP
    )
    found = import_file(tmp_path / "train.py", GUESS)
    assert (found.layout.micro_batch, found.job.seq_len) == (3, 640)


def test_a_program_of_composer_s_is_told_by_its_configuration():
    text = "from composer import Trainer\nfrom omegaconf import DictConfig\ndef main(cfg: DictConfig):\n    trainer = Trainer(model=model, train_dataloader=loader)\n    trainer.fit()\n"
    with pytest.raises(SpecError, match="takes model and batch from its configuration"):
        read("from transformers import PreTrainedTokenizerBase\n" + text)


def test_no_default_stands_where_a_table_of_unknown_words_is_handed_over():
    config = "from dataclasses import dataclass\n@dataclass\nclass GPTConfig:\n    n_layer: int = 4\n    n_head: int = 4\n    n_embd: int = 128\n    vocab_size: int = 50257\n"
    made = "batch_size = 4\nmodel = GPT(GPTConfig(**cfg['model']))\n"
    with pytest.raises(SpecError, match="give --model"):
        read(MODEL + config + made + MADE + LOOP)
    table = "cfg = {'model': {'n_layer': 6, 'n_head': 5, 'n_embd': 640}}\n"
    assert read(MODEL + config + table + made + MADE + LOOP).model.layers == 6


def test_a_loop_around_a_library_s_model_runs_on_one_device():
    text = "import transformers, argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--batch_size', type=int, default=3)\nparser.add_argument('--max_length', type=int, default=256)\nargs = parser.parse_args()\nmodel = transformers.AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-0.6B')\n"
    found = read(text + MADE + LOOP)
    assert (found.layout.world, found.layout.micro_batch, found.job.seq_len) == (1, 3, 256)
    assert read(text + "model = DDP(model)\n" + MADE + LOOP).layout.world == 8


def command(folder: Path, model: str, words: str, loop: str = ""):
    """A script that starts a program beside it, whose options say its sizes."""
    names = ("n-layer", "n-head", "n-embd", "batch-size", "block-size")
    parse = "import argparse\nparser = argparse.ArgumentParser()\n" + "".join(f"parser.add_argument('--{name}', type=int)\n" for name in names)  # fmt: skip
    (folder / "model.py").write_text(MODEL + model)
    (folder / "train.py").write_text(f"from model import GPT\n{parse}{MADE}{loop}" + LOOP)
    sizes = " ".join(f"--{name} {size}" for name, size in zip(names, (10, 5, 640, 6, 512), strict=True))  # fmt: skip
    (folder / "run.sh").write_text(f"torchrun --nproc_per_node=4 train.py {sizes} {words}\n")
    return import_file(folder / "run.sh", GUESS)


def test_a_command_s_model_is_built_as_the_code_at_hand_says(tmp_path: Path):
    llama = "class SwiGLU: pass\nclass RMSNorm: pass\ndef apply_rotary(x): pass\n"
    model = command(tmp_path, llama, "").model
    assert (model.layers, model.hidden, model.gated, model.norm) == (10, 640, True, "rmsnorm")


def test_a_command_s_mixture_is_never_read_as_dense(tmp_path: Path):
    experts = "class SparseMoE(nn.Module): pass\nclass Block(nn.Module):\n    def __init__(self):\n        self.mlp = SparseMoE()\n"
    with pytest.raises(SpecError, match="builds layers of experts"):
        command(tmp_path, experts, "")


def test_an_optimizer_that_the_command_says_counts_over_the_code(tmp_path: Path):
    assert command(tmp_path, "", "--optimizer lion").job.optimizer.name == "lion"


def test_an_optimizer_that_an_option_chooses_is_read_by_it(tmp_path: Path):
    loop = "parser.add_argument('--optimizer', default='adamw')\nother = torch.optim.SGD(model.parameters())\n"
    assert command(tmp_path, "", "", loop).job.optimizer.name == "adamw"


@pytest.mark.parametrize("name", ["convert_qwen_hf_to_nemo.py", "nemo_to_hf.py", "merge_lora.py"])
def test_a_conversion_is_refused_as_one(name: str):
    text = "import argparse\nfrom transformers import AutoModelForCausalLM\nfrom lightning import Trainer\nparser = argparse.ArgumentParser()\nargs = parser.parse_args()\ntrainer = Trainer(devices=1)\nmodel = AutoModelForCausalLM.from_pretrained(args.path)\n"
    with pytest.raises(SpecError, match="does not train: by its name it converts"):
        import_text(text, name, GUESS)
    loop = MODEL + CONSTANTS + LOOP  # a name alone refuses nothing that trains
    assert import_text(loop, name, GUESS).model.layers == 10


def test_a_configuration_of_pictures_is_named():
    with pytest.raises(SpecError, match="OpenMMLab's, whose models are of pictures"):
        read("img_norm_cfg = dict(mean=[0.5], std=[0.5])\noptimizer = dict(type='SGD', lr=0.1)\n")


def test_a_program_that_only_reads_what_runs_came_to_takes_no_model():
    text = "import argparse\ndef main(args):\n    print(args.p, 'trainer/loss')\nif __name__ == '__main__':\n    main(argparse.ArgumentParser().parse_args())\n"
    with pytest.raises(SpecError, match="starts nothing that trains"):
        read(text)


def test_a_table_that_is_asked_for_a_list():
    with pytest.raises(SpecError):
        read("table = {1: 2}\nkey = [1, 2]\nsize = table[key]\n" + LOOP)
