"""What is said of a configuration that no reader takes, by what only such files say."""

from __future__ import annotations

import re
from typing import Any

from meshwright.imports import cloud
from meshwright.imports.names import OF_MINDSPEED_MM, PLANNED
from meshwright.imports.options import flattened
from meshwright.imports.own import tables as own_tables
from meshwright.specs.errors import SpecError

Data = dict[str, Any]


def refuse_part(data: Data, name: str) -> None:
    """Refuse what another file or a command names, and which runs nothing by itself."""
    named = data.get("fsdp_config")
    if any(
        "layer_cls_to_wrap" in str(key)
        for key in [*data, *(named if isinstance(named, dict) else [])]
    ):
        raise SpecError(
            "file", name, "is what --fsdp_config names: import the command that names it"
        )


_MEASURED = re.compile(
    r"(?:^|\.)(?:(?:train|eval|final|val)_loss|(?:train|eval)_runtime|perplexity|mfu|(?:\w+_)?(?:tokens|samples|steps)_per_sec(?:ond)?\w*"
    r"|(?:avg_|mean_)?step_time\w*|peak_(?:gpu_)?mem\w*|(?:total|elapsed|wall)\w*_(?:time|seconds|secs?|s)|(?:\w+_)?accuracy)$"
)
"""Names of what only a run that has been measures."""


def refuse_record(data: Data, name: str) -> None:
    """Refuse a table of what runs came to, though it says their settings, too.

    Raises:
        SpecError: it holds at least two things that are measured.
    """
    flat = flattened(data)
    found = [one for one, value in flat.items() if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 and _MEASURED.search(one)]  # fmt: skip
    if len(found) > 1:
        raise SpecError("file", name, f"is a record of what a run came to ({found[0]}, {found[1]}): import the configuration or the script that it was started with")  # fmt: skip


def unknown(data: Data, text: str, name: str) -> SpecError:
    """What is said of a document that no reader took."""
    if _GROUP_OF_HYDRA.search(text):
        return SpecError("file", name, "describes no training run of its own: it is a group that a Hydra configuration's defaults name")  # fmt: skip
    if isinstance(data.get("defaults"), list) and not own_tables.is_config(data):
        others = ", ".join(str(one) for one in data["defaults"][:3])
        return SpecError("file", name, f"says only what differs from its Hydra defaults ({others[:60]}): import the program that reads it, or the command that names it")  # fmt: skip
    if "logical_axis_rules" in data:
        return SpecError("file", name, "describes no training run: it names the axes of MaxText's mesh, and what lies along each; import the command that takes it up")  # fmt: skip
    if tried := _listed(data):
        return SpecError("file", name, f"is a sweep: it lists values of {', '.join(tried[:6])}, which the program that reads it combines; import the command of one of its runs")  # fmt: skip
    if not _trains(data):
        return SpecError(
            "file",
            name,
            "describes no training run: it says no optimizer, rate of learning or number of steps",
        )
    lacks = own_tables.lacking(data) or ["length of a sequence"]
    return SpecError(
        "file",
        name,
        f"is of no known framework, and names no {' and no '.join(lacks)} in words that most programs use: "
        "import the program or the script that reads it",
    )


def _listed(data: Data) -> list[str]:
    """The names of a table that gives lists for everything, what several values are tried of first."""
    if len(data) < 3 or not all(isinstance(one, list) and one for one in data.values()):
        return []
    return sorted(data, key=lambda name: len(data[name]) < 2)


_GROUP_OF_HYDRA = re.compile(
    r"\$\{oc\.select:|^_target_: verl\.|^# @package|: \?\?\?$|^[^\S\n]*[\w.]+: \$\{actor_rollout_ref\.",
    re.MULTILINE,
)
_OF_TRAINING = re.compile(
    r"(?i)(?:^|_)(?:lr|learning_rate|optimizer|optim|max_steps|train_steps|epochs|accumulation)(?:_|$)"
)


def _trains(data: Data) -> bool:
    """Whether any field of a table belongs to a training run."""
    return any(_OF_TRAINING.search(str(key)) for table in cloud.tables(data) for key in table)


_OF_RECIPES = {"model", "train", "optimizer", "ddp", "dist", "logger", "checkpoint", "scheduler", "dataset", "rng",
               "mixed_precision", "validation", "tokenizer", "comm_overlap"}  # fmt: skip
"""Tables of Megatron-Bridge's configuration."""


def refuse_other(data: Data, text: str, name: str) -> None:
    """Refuse what no reader here is for, by what only such files say."""
    if "azuremlschemas" in str(data.get("$schema", "")) or "azureml://" in text:
        raise SpecError(
            "file", name, "describes no training run: it asks a service, which chooses how to run"
        )
    if (
        "rollouts_per_example" in data
        and isinstance(data.get("model"), str)
        and isinstance(data.get("env"), list)
    ):
        raise SpecError("file", name, "describes no training run of one's own: a service trains (Prime's hosted training), and chooses devices and layout itself")  # fmt: skip
    if "num_csx" in str(data.get("runconfig")) or str(data.get("backend")) == "CSX":
        raise SpecError("file", name, "describes no training run of GPUs or TPUs: it is for Cerebras' systems, which are not modelled")  # fmt: skip
    if re.search(r"^[^\S\n]*- mindspeed_mm/", text, re.MULTILINE):
        raise SpecError("file", name, OF_MINDSPEED_MM)
    if {"deploymentSpec", "pipelineInfo"} <= set(data):
        raise SpecError("file", name, "describes no training run of its own: it is a compiled Kubeflow pipeline; import the program of the step that trains")  # fmt: skip
    if "includes" in data and "modules" not in data:
        raise SpecError("file", name, "describes no training run of its own: it is a part that others include; import the experiment that names it")  # fmt: skip
    if len(data) > 500 and all(isinstance(one, int) for one in data.values()):
        raise SpecError("file", name, "is a vocabulary; a configuration is expected")
    evaluates = {"icl_tasks", "eval_gauntlet", "device_eval_batch_size"} & set(data)
    if evaluates and isinstance(data.get("models"), list) and "train_loader" not in data:
        raise SpecError("file", name, "evaluates models; it does not train")
    if any(re.search(r"(?:^|\.)vision_config\.\w", key) for key in flattened(data)):
        raise SpecError("model", name, f"trains a vision-language model: {PLANNED}")
    if re.search(r"(?i)rerank|embedqa|[-_]embed(?:ding)?[-_]|cross-?encoder|biencoder", str(data.get("base_model", ""))):  # fmt: skip
        raise SpecError("model", data["base_model"], f"trains a retrieval model: {PLANNED}")
    recipe = str(data.get("recipe", ""))
    drafts = re.search(r"(?mi)^[^\S\n]*draft_(?:num_hidden_layers|model\w*)\s*:", text)
    if drafts or re.search(r"(?i)eagle|dflash|drafter|speculat|spec(?:recipe)?$", recipe):
        raise SpecError("recipe", recipe, f"trains a draft model beside a frozen one: {PLANNED}")  # fmt: skip
    if re.search(
        r"(?mi)^model_type:\s*[\"']?(?:hawk|mingru|minlstm|mamba|rwkv)|^[^\S\n]+state_dim\s*:", text
    ):
        raise SpecError("model", name, f"trains a state-space model: {PLANNED}")
    trained = data.get("model"), data.get("train")
    if (
        all(isinstance(one, dict) for one in trained)
        and set(data) <= _OF_RECIPES
        and {"train_iters", "global_batch_size", "micro_batch_size"} & set(data["train"])
    ):
        raise SpecError("file", name, "describes no training run: it overrides fields of a recipe; import the command that names both")  # fmt: skip
    if re.search(
        r"(?m)^[^\S\n]*(?:unet_config|first_stage_config|vae_\w*|vae|unet|noise_scheduler|num_latent_t|t2v\w*|crossattn_emb_size|flow_matching|diffusers?\w*|diffusion_scheduler_config)\s*:|fastvideo\.",
        text,
    ):
        raise SpecError("file", name, f"trains a diffusion model: {PLANNED}")
