"""Plans drawn over every dimension that a layout and a job have: models of one's own among them."""

from __future__ import annotations

from random import Random
from typing import Any

from plans import NO_ESTIMATE

from meshwright.exports.canonical import even_split
from meshwright.planner.dispatchers import DEDUPLICATED
from meshwright.planner.dispatchers import OPTION as DISPATCH
from meshwright.planner.graphs import OPTION as GRAPHS
from meshwright.specs import Job, Layout, Plan, load_cluster, load_model
from meshwright.specs.frameworks import Framework
from meshwright.specs.huggingface import model_from_config
from meshwright.specs.job import OPTIMIZERS, RECIPES
from meshwright.specs.layout import MODULES, OFFLOAD_MODULES
from meshwright.specs.model import Model
from meshwright.specs.presets import table
from meshwright.specs.routing import Routing

OWN = "a-model-of-ones-own"
ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "tp-cp-pp-ep-dp", "cp-tp-ep-dp-pp")
DEVICES = {
    "nvidia": {"h100": 8, "a100": 8, "b200": 8, "gb200": 4, "rtx4090": 4, "v100-32g": 8},
    "amd": {"mi300x": 8, "mi325x": 8}, "google": {"tpu-v5p": 4, "tpu-v6e": 8, "tpu-v4": 4},
    "cpu": {"h100": 8},
}  # fmt: skip


def offloaded(random: Random, able: Framework, model: Model) -> tuple[str, ...]:
    """What may live in host memory, parts of layers as they can be named together."""
    parts = [one for one in able.offload if one in OFFLOAD_MODULES and random.random() < 0.2]
    parts += ["core_attn"] * ("attn_proj" in parts)
    if not model.experts:
        parts = [one for one in parts if one not in ("expert_fc1", "moe_act")]
    rest = [one for one in able.offload if one not in OFFLOAD_MODULES and random.random() < 0.2]
    if able.offload_together and {"optimizer", "parameters"} & {*rest}:
        rest = [
            one
            for one in able.offload
            if one not in (*OFFLOAD_MODULES, "activations") or one in rest
        ]
    return tuple(dict.fromkeys([*rest, *([] if "activations" in rest else parts)]))


def own_model(random: Random) -> Model:
    """A model that nobody published, of a family that exports know."""
    kind = random.choice(
        ["llama", "qwen2", "qwen3", "mixtral", "mistral", "gpt2", "deepseek_v3", "qwen3_moe"]
    )
    heads, width = random.choice([8, 16, 32, 40]), random.choice([64, 128])
    layers = random.randint(2, 50)
    if kind == "gpt2":
        config: dict[str, Any] = {"n_embd": heads * width, "n_layer": layers, "n_head": heads}
        return model_from_config({"model_type": kind, "vocab_size": 50257, **config}, OWN)
    config = {
        "model_type": kind, "hidden_size": heads * width * random.choice([1, 1, 2]), "num_hidden_layers": layers,
        "num_attention_heads": heads, "head_dim": width, "vocab_size": random.choice([32000, 50304, 128256, 151936]),
        "num_key_value_heads": random.choice([n for n in (1, 2, 4, 8, heads) if heads % n == 0]),
        "intermediate_size": random.choice([2048, 5632, 11008]), "tie_word_embeddings": random.random() < 0.4,
        "rms_norm_eps": random.choice([1e-5, 1e-6]), "rope_theta": random.choice([1e4, 5e5, 1234567.0]),
    }  # fmt: skip
    if kind == "mistral":
        config["sliding_window"] = random.choice([None, 4096])
    if kind == "mixtral":
        config |= {"num_local_experts": random.choice([4, 8, 16]), "num_experts_per_tok": 2}
    if kind == "qwen3_moe":
        config |= {
            "num_experts": random.choice([16, 64, 128]), "num_experts_per_tok": random.choice([4, 8]),
            "moe_intermediate_size": random.choice([768, 1024]), "norm_topk_prob": random.random() < 0.5,
        }  # fmt: skip
    if kind == "deepseek_v3":
        config |= {
            "n_routed_experts": random.choice([16, 64]), "num_experts_per_tok": 4, "moe_intermediate_size": 1024,
            "n_shared_experts": random.choice([1, 2]), "first_k_dense_replace": random.choice([0, 1]),
            "kv_lora_rank": 512, "q_lora_rank": random.choice([None, 768]), "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "n_group": random.choice([1, 4]), "topk_group": 1,
        }  # fmt: skip
    return model_from_config(config, OWN)


def drawn(random: Random, able: Framework, model: Model | None = None) -> Plan:
    """A plan that a framework may or may not be able to express; raises SpecError where it is none."""
    own = random.random() < 0.4
    model = model or (
        own_model(random) if own else load_model(random.choice(list(table("models"))))
    )
    powers = (1, 1, 1, 2, 4, 8)
    tp = random.choice(powers) if able.has("tp") else 1
    pp = random.choice((1, 1, 2, 3, 4, 8)) if able.has("pp") else 1
    cp = random.choice(powers) if able.has("cp") else 1
    dp = random.choice((1, 2, 3, 4, 8, 16))
    vendor = random.choice([one for one in able.exported_on if one != "cpu"] or ["nvidia"])
    device, host = random.choice(list(DEVICES[vendor].items()))
    while (dp * tp * pp * cp) % host and dp * tp * pp * cp > host:
        dp += 1
    world = dp * tp * pp * cp
    virtual = random.choice((1, 1, 2, 3)) if pp > 1 and able.has("virtual_stages") else 1
    schedule = random.choice(able.schedules or ("1f1b",)) if pp > 1 else "1f1b"
    if schedule in ("zb-v", "dualpipe-v"):
        virtual = 2
    elif (virtual > 1) != (schedule in ("interleaved", "looped-bfs")):
        schedule = "interleaved" if virtual > 1 else "1f1b"
    layout: dict[str, Any] = {
        "dp": dp, "tp": tp, "pp": pp, "cp": cp, "virtual_stages": virtual, "schedule": schedule,
        "zero": random.choice(able.zero), "micro_batch": random.choice((1, 2, 3)),
        "recompute": random.choice(able.recompute), "offload": offloaded(random, able, model),
        "sequence_parallel": able.sequence_parallel == "always" or (able.sequence_parallel == "free" and random.random() < 0.5),
        "rank_order": random.choice(able.rank_orders or ORDERS),
    }  # fmt: skip
    if model.experts and able.has("ep"):
        fits = [n for n in (1, 2, 4, 8, 16) if (dp * cp) % n == model.experts.experts % n == 0]
        layout |= {"ep": random.choice(fits), "etp": random.choice((1, tp)) if able.has("etp") else 1}  # fmt: skip
    if layout["zero"] and able.hybrid_shard:
        layout["shard"] = random.choice([0, 0, *(n for n in (2, 4, 8) if (dp * cp) % n == 0)])
    if pp > 1 and able.stage_layers and model.layers >= pp * virtual and random.random() < 0.5:
        split = list(even_split(model.layers, pp, virtual))
        taken, given = random.randrange(len(split)), random.randrange(len(split))
        if split[taken] > 1:
            split[taken] -= 1
            split[given] += 1
        layout["stage_layers"] = tuple(split)
    if layout["recompute"] == "full" and able.recompute_layers and random.random() < 0.5:
        layout["recompute_layers"] = random.randint(1, 4) * virtual
    modules = [one for one in MODULES if one in able.recompute_modules]
    if layout["recompute"] == "selective" and modules and random.random() < 0.7:
        layout["recompute_modules"] = tuple(random.sample(modules, random.randint(1, 3)))
    if cp > 1:
        layout["cp_method"] = random.choice(able.context_methods or ("all-gather",))
    rows = layout["micro_batch"] * dp * pp * random.randint(1, 5)
    cluster = load_cluster(f"{device}:{max(1, -(-world // host))}x{min(host, world)}")
    return Plan(
        model=model, cluster=cluster, layout=Layout(**layout),
        job=_job(random, able, model, rows, layout["zero"] if dp * cp > 1 else 0),
        estimate=NO_ESTIMATE, fits=True,
    )  # fmt: skip


def _job(random: Random, able: Framework, model: Model, rows: int, zero: int) -> Job:
    # What shards further under a framework's own words has a name of its own there.
    name = able.shards_as if zero >= 2 and able.shards_as else able.name
    fields: dict[str, Any] = {
        "seq_len": random.choice((1024, 2048, 8192, 32768)), "global_batch": rows, "framework": name,
        "precision": RECIPES[random.choice(list(RECIPES))], "optimizer": OPTIMIZERS[random.choice(able.optimizers)],
    }  # fmt: skip
    options = {}
    if model.experts and "flex" in able.dispatchers and random.random() < 0.3:
        options[DISPATCH] = DEDUPLICATED
    graphs = [kind for kind in able.graphs if kind != "none"]
    if graphs and random.random() < 0.3 and zero < 2:  # no graph holds weights that are gathered
        options[GRAPHS] = random.choice(graphs)
    if options:
        fields["framework_options"] = options
    if random.random() < 0.3:
        fields["loss"] = random.choice(able.losses)
    if able.dropout and random.random() < 0.2:
        fields["dropout"] = 0.1
    if able.capacity_factor and model.experts and random.random() < 0.3:
        fields["routing"] = Routing(capacity=random.choice((1.0, 1.25, 2.0)))
    if able.document_masking and random.random() < 0.3:
        fields["document_masking"] = True
    if random.random() < 0.3:
        fields["attention_kernel"] = random.choice(able.attention_kernels)
    if random.random() < 0.3:  # more than the thousand steps of a run whose length nobody asked for
        fields["token_budget"] = float(random.randint(1001, 200_000) * rows * fields["seq_len"])
    return Job(**fields)
