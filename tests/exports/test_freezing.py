"""Plans that train a part of the weights: written in the words of the tool that has some, refused by the others."""

import pytest
import yaml

from meshwright.costs.step import estimate
from meshwright.exports.targets import FINETUNERS, export
from meshwright.imports.files import import_file, import_text
from meshwright.imports.reading import Given
from meshwright.planner.compared import stacks_for
from meshwright.planner.plan import price_layout
from meshwright.specs import load_cluster, load_model
from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import Finetune
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout

CARD = load_cluster("a100-40g:1x1")
LAST_TWO = {"method": "full", "freeze": ("embedding", "head"), "frozen_layers": 30}
IN_TURN = {"method": "full", "freeze": ("embedding", "head"), "in_turn": 1}
BASE = {
    "model_name_or_path": "meta-llama/Meta-Llama-3-8B", "stage": "sft", "do_train": True, "cutoff_len": 2048,
    "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "bf16": True,
}  # fmt: skip


def planned(tune, framework="llama-factory", model="llama3-8b"):
    job = Job(seq_len=2048, global_batch=8, framework=framework, finetune=Finetune(**tune))
    return price_layout(load_model(model), CARD, job, Layout(recompute="full"))


def read(**words):
    text = yaml.safe_dump(BASE | words)
    return import_text(text, "sft.yaml", Given(cluster=CARD), None)


@pytest.mark.parametrize("tune", [LAST_TWO, IN_TURN, {**LAST_TWO, "freeze": ("head",)},
                                  {**LAST_TWO, "freeze": (), "frozen_layers": 5}])  # fmt: skip
def test_llama_factory_reads_back_what_waits(tune, tmp_path):
    made = planned(tune)
    bundle = export(made, "llama-factory")
    for name, text in bundle.files.items():
        (tmp_path / name).write_text(text)
    back = import_file(tmp_path / "llama-factory.yaml", Given(cluster=CARD))
    assert back.job.finetune == made.job.finetune


@pytest.mark.parametrize("tool", sorted(set(FINETUNERS) - {"llama-factory"}))
@pytest.mark.parametrize("tune", [LAST_TWO, IN_TURN])
def test_tools_that_would_train_everything_are_refused(tool, tune):
    with pytest.raises(SpecError, match=r"finetune\.(freeze|in_turn)"):
        export(planned(tune, tool), tool)


def test_norms_that_wait_alone_are_refused():
    with pytest.raises(SpecError, match="norms"):
        export(planned({**LAST_TWO, "freeze": ("norms",)}), "llama-factory")


def test_default_plans_take_the_tool_that_has_words():
    assert stacks_for("nvidia", Job(finetune=Finetune(**LAST_TWO))) == ("llama-factory",)
    assert len(stacks_for("nvidia", Job(finetune=Finetune(method="full")))) > 1


def test_the_last_layers_train():
    run = read(finetuning_type="freeze", freeze_trainable_layers=2)
    assert run.job.finetune == Finetune(**LAST_TWO)
    held = estimate(run.model, CARD, run.job, run.layout).memory_parts
    layer = 218_112_000  # of Llama 3 8B
    assert held["parameters"] == pytest.approx(2 * 8_030_261_248, rel=0.01)
    assert held["optimizer"] == pytest.approx(12 * 2 * layer, rel=0.01)
    more = read(finetuning_type="freeze", freeze_trainable_layers=2, freeze_extra_modules="lm_head")
    assert more.job.finetune.freeze == ("embedding",)
    for words in ({"freeze_trainable_layers": -2}, {"use_llama_pro": True}):
        some = read(finetuning_type="freeze", **words)
        assert some.job.finetune is None or not some.job.finetune.partial
        assert any("only part" in one.text for one in some.remarks)


def test_badam_trains_one_layer_at_a_time():
    run = read(finetuning_type="full", use_badam=True, badam_mode="layer")
    assert run.job.finetune.in_turn == 1
    held = estimate(run.model, CARD, run.job, run.layout).memory_parts
    assert held["optimizer"] == pytest.approx(12 * 218_112_000, rel=0.01)
    by_ratio = read(finetuning_type="full", use_badam=True, badam_mode="ratio")
    assert by_ratio.job.finetune is None or not by_ratio.job.finetune.partial


def test_layers_in_turn_are_no_adapters_matter():
    with pytest.raises(SpecError, match="in_turn"):
        Finetune.parse({"method": "lora", "in_turn": 1}, "finetune")
    with pytest.raises(SpecError, match="in_turn"):
        Finetune.parse({"method": "full", "in_turn": 1, "frozen_layers": 3}, "finetune")
