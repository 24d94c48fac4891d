"""Reads the file that a fine-tuning run is started with, as it is: what will it hold in memory?

axolotl, LLaMA-Factory, TRL and transformers' Trainer (YAML, JSON, shell commands and Python
scripts), torchtune, verl, accelerate and DeepSpeed. Nothing in a file is executed. Every key that
changes memory and is not understood is said in `unread`; every value that a file leaves to its
tool's default is said in `assumed`.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwright.specs.errors import SpecError
from meshwright.specs.finetune import finetune_recipe, targets_of
from meshwright.specs.foreign import parse_json, parse_yaml, read_text
from meshwright.specs.job import OPTIMIZERS, RECIPES, Job
from meshwright.specs.quantities import parse_count

Data = Mapping[str, Any]

MATTERS = re.compile(
    r"lora|quant|bit|batch|length|seq|grad|optim|offload|zero|fsdp|deepspeed|pack|freeze|unfrozen"
    r"|checkpointing|liger|loss|parallel|adapter|precision|dtype|bf16|fp16|cutoff|galore|badam|neftune"
)
"""Words in keys that may change memory."""

INERT = re.compile(
    r"dir|path|name|steps|epoch|log|save|eval|warmup|seed|wandb|report|hub|push|schedul|rate|decay"
    r"|beta|eps|max_norm|clip|workers|timeout|port|group_by|drop_last|strategy$|tokeni|template|dataset|plot|completion|val|max_grad|layer_cls|mixed_precision|transformer_layer"
    r"|shuffle|prompt|response|reward|temperature|alpha|bias|init|metric|resume|sync|cache|fan_in|mask"
    r"|label|special|version|debug|main_process|machine|rdzv|same_network|downcast|env|ddp_|nccl|auto_wrap"
    r"|state_dict|cpu_ram|use_orig|policy|prefetch|min_|columns|field|type$|text|chat|train_on|val_"
)


@dataclass
class Tuning:
    """What one file says, as the planner's nouns and the facts of its layout."""

    tool: str
    model: str = ""
    job: Job = field(default_factory=Job)
    micro_batch: int = 1
    accumulate: int = 1
    gpus: int = 0
    zero: int = 0
    recompute: bool = False
    offload: tuple[str, ...] = ()
    assumed: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


class Keys:
    """A flat table of settings that notes which keys were asked for."""

    def __init__(self, data: Data) -> None:
        self.data = dict(data)
        self.seen: set[str] = set()

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of several spellings that is given."""
        self.seen.update(names)
        for name in names:
            if self.data.get(name) is not None:
                return self.data[name]
        return default

    def flag(self, *names: str, default: bool = False) -> bool:
        """A true or false, also written as text."""
        value = self.get(*names, default=default)
        if isinstance(value, str):
            return value.strip().lower() in ("true", "yes", "1", "on")
        return bool(value)

    def whole(self, *names: str, default: int) -> int:
        """A whole number of at least 1, also with a suffix (4k) or as text; `auto` is the default.

        Raises:
            SpecError: something else.
        """
        value = self.get(*names, default=default)
        if isinstance(value, str) and value.strip().lower() in ("auto", "", "none"):
            return default
        number = parse_count(value, names[0])
        if number < 1:
            raise SpecError(names[0], value, "a whole number of at least 1 is expected")
        return number

    def unread(self) -> list[str]:
        """Keys that may change memory and that nobody asked for."""
        return sorted(
            key for key, value in self.data.items()
            if key not in self.seen and value not in (None, False, "", [], {}, 0)
            and MATTERS.search(key.lower()) and not INERT.search(key.lower())
        )  # fmt: skip


def read_tuning(path: str | Path, gpus: int = 0) -> Tuning:
    """Read a file.

    Args:
        path: of the file.
        gpus: devices that it will be started on; 0: what the file says, else 1.

    Raises:
        SpecError: not a file of a tool known here, or a value that no tool accepts.
    """
    name = Path(path).name
    text = read_text(path, "config")
    data = _tables(text, Path(path).suffix.lower(), name)
    tool = tool_of(data, name)
    found = _READERS[tool](data)
    found.gpus = gpus or found.gpus or 1
    if found.gpus > 1 and not found.zero and found.tool not in ("accelerate", "deepspeed"):
        found.assumed.append("no DeepSpeed or FSDP is named: every device holds everything (DDP)")
    batch = found.micro_batch * found.accumulate * found.gpus
    found.job = found.job.but(global_batch=batch)
    return found


def _tables(text: str, suffix: str, name: str) -> dict[str, Any]:
    if suffix == ".py":
        return _python(text, name)
    if suffix in (".sh", ".bash", ".slurm", ".sbatch"):
        return _shell(text)
    data = (
        parse_json(text, "config", name) if suffix == ".json" else parse_yaml(text, "config", name)
    )
    if not isinstance(data, dict):
        raise SpecError("config", name, "a table of settings is expected")
    return data


_CALLS = ("Config", "Arguments", "from_pretrained", "LoraConfig", "prepare_model", "get_peft_model",
          "FastLanguageModel", "Args")  # fmt: skip


def _python(text: str, name: str) -> dict[str, Any]:
    """Keyword arguments of the configuration objects that a script makes, without running it.

    A name that is a plain constant of the script counts as its value.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        raise SpecError("config", name, "is not Python that can be read") from None
    known: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name):
                value = _constant(node.value, known)
                if value is not None:
                    known[target.id] = value
    found: dict[str, Any] = {"_python": True}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if not any(word in called for word in _CALLS):
            continue
        if called.endswith("from_pretrained") and node.args and "okenizer" not in called:
            first = _constant(node.args[0], known)
            if isinstance(first, str):
                found.setdefault("model_name_or_path", first)
        for keyword in node.keywords:
            value = _constant(keyword.value, known)
            if keyword.arg and value is not None:
                found.setdefault(keyword.arg, value)
        if called.endswith("LoraConfig"):
            found["use_peft"] = True
    if "model_name" in found:
        found.setdefault("model_name_or_path", found["model_name"])
    return found


def _constant(node: ast.expr, known: Data) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):  # torch.bfloat16
        return node.attr if node.attr in ("bfloat16", "float16", "float32") else None
    return None


_HYDRA = re.compile(r"\s\+{0,2}[a-z_]\w*(?:\.\w+)+=")


def _nest(found: dict[str, Any], word: str) -> None:
    """Put Hydra's `a.b.c=value` where it belongs; what is no plain value is left out."""
    path, _, value = word.lstrip("+").partition("=")
    *tables, last = path.split(".")
    for name in tables:
        inner = found.setdefault(name, {})
        if not isinstance(inner, dict):
            return
        found = inner
    if "$" not in value:
        plain = value.strip("\"'")
        found[last] = {"true": True, "false": False}.get(plain.lower(), plain)


def _shell(text: str) -> dict[str, Any]:
    """Flags of the longest command of a script: `--name value`, `--name=value`, bare `--name`."""
    variables = {
        key: value.strip("\"'")
        for key, value in re.findall(
            r"^[ \t]*(?:export )?([A-Za-z_]\w*)=(\"[^\"\n$`]*\"|'[^'\n]*'|[^\s$`(]+)[ \t]*(?:#.*)?$",
            text, re.M,
        )
    }  # fmt: skip
    joined = re.sub(r"\\\s*\n", " ", text)
    line = max(
        joined.splitlines(), key=lambda one: one.count("--") + len(_HYDRA.findall(one)), default=""
    )
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split()
    words = [
        re.sub(r"\$\{?(\w+)\}?", lambda m: variables.get(m.group(1), m.group(0)), w) for w in words
    ]
    found: dict[str, Any] = {}
    for at, word in enumerate(words):
        if _HYDRA.match(" " + word):
            _nest(found, word)
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        following = words[at + 1] if at + 1 < len(words) else "--"
        if not equals:
            value = "true" if following.startswith("--") else following
        if not value.startswith("$"):
            found[name.replace("-", "_")] = value
    return found


def tool_of(data: Data, name: str) -> str:
    """Which tool a file belongs to.

    Raises:
        SpecError: none that is known here.
    """
    marks: tuple[tuple[str, bool], ...] = (
        ("verl", "actor_rollout_ref" in data),
        ("axolotl", "base_model" in data),
        ("llama-factory", "finetuning_type" in data or ("stage" in data and "template" in data)),
        ("torchtune", isinstance(data.get("model"), Mapping) and "_component_" in data["model"]),
        ("accelerate", "distributed_type" in data or "compute_environment" in data),
        ("deepspeed", "zero_optimization" in data or "train_micro_batch_size_per_gpu" in data),
        ("trl", "model_name_or_path" in data or "per_device_train_batch_size" in data
         or "model_name" in data or "use_peft" in data),
    )  # fmt: skip
    for tool, there in marks:
        if there:
            return tool
    raise SpecError(
        "config", name,
        "not a file of axolotl, LLaMA-Factory, TRL, transformers' Trainer, torchtune, verl, accelerate "
        "or DeepSpeed: no key of theirs is in it",
    )  # fmt: skip


_OPTIMS: tuple[tuple[str, str], ...] = (
    (r"paged.*8bit", "paged-adam8bit"), (r"paged", "paged-adamw"), (r"lion.*8bit", "lion8bit"),
    (r"lion", "lion"), (r"8.?bit|adamw_bnb", "adam8bit"), (r"adafactor", "adafactor"),
    (r"muon", "muon"), (r"sgd", "sgd"), (r"adam", "adamw"),
)  # fmt: skip


def _optimizer(keys: Keys, half: bool, *names: str) -> str:
    """Our name of the optimizer; moments of 16-bit weights have 16 bits."""
    asked = str(keys.get(*names, default="adamw_torch")).lower()
    found = next((ours for pattern, ours in _OPTIMS if re.search(pattern, asked)), "adamw")
    return "adamw-bf16" if found == "adamw" and half else found


def _half_weights(keys: Keys, found: Tuning, *names: str) -> bool:
    """Whether full fine-tuning keeps weights in 16 bits without an fp32 copy."""
    dtype = keys.get(*names)
    keys.get("bf16", "fp16", "tf32", "pure_bf16")
    if dtype is None or str(dtype).lower() == "auto":
        found.assumed.append("weights in 16 bits as published (transformers 5's default)")
        return True
    return "float32" not in str(dtype) and "fp32" not in str(dtype)


def _finetune(found: Tuning, keys: Keys, method: str, **fields: Any) -> None:
    """Set the job's fine-tuning, and the precision and optimizer that go with it."""
    if method != "full":
        targets = fields.get("targets")
        try:
            fields["targets"] = targets_of(targets) if targets else targets_of("all-linear")
        except SpecError:
            found.assumed.append(f"adapters on all linear layers (the file names {targets})")
            fields["targets"] = targets_of("all-linear")
        fields = {key: value for key, value in fields.items() if value is not None}
    else:
        fields = {key: fields[key] for key in ("freeze", "frozen_layers") if fields.get(key)}
    found.job = found.job.but(finetune=finetune_recipe({"method": method, **fields}))


def _quantisation(keys: Keys) -> tuple[str | None, bool]:
    """How frozen weights are stored, and whether their scales are quantised too."""
    four = (
        keys.flag("load_in_4bit", "q_lora")
        or str(keys.get("quantization_bit", "bits", default="")) == "4"
    )
    eight = keys.flag("load_in_8bit") or str(keys.get("quantization_bit", default="")) == "8"
    kind = str(keys.get("bnb_4bit_quant_type", "quantization_type", default="nf4"))
    twice = keys.flag("bnb_4bit_use_double_quant", "use_bnb_nested_quant", "double_quantization")
    if four:
        return ("fp4" if kind == "fp4" else "nf4"), twice
    return ("int8", False) if eight else (None, False)


def _sharding(keys: Keys, found: Tuning) -> None:
    """ZeRO stage and offload from a DeepSpeed or FSDP setting inside the file."""
    deepspeed = keys.get("deepspeed", "deepspeed_config_file")
    fsdp = keys.get("fsdp", "fsdp_config")
    if isinstance(deepspeed, Mapping):
        _deepspeed_part(deepspeed, found)
    elif isinstance(deepspeed, str):
        stage = re.search(r"(?:zero|stage|z|_s)[_-]?([0-3])", deepspeed, re.IGNORECASE)
        found.zero = int(stage.group(1)) if stage else 2
        if "offload" in deepspeed or "cpu" in deepspeed:
            found.offload = ("optimizer", "parameters") if found.zero == 3 else ("optimizer",)
        found.assumed.append(f"ZeRO-{found.zero} from the name {Path(deepspeed).name}")
    elif fsdp:
        own = keys.get("fsdp_config", default={})
        own = own if isinstance(own, Mapping) else {}
        text = " ".join(map(str, fsdp)) if isinstance(fsdp, list) else str(fsdp)
        found.zero = 2 if "grad_op" in text else 3
        moved = own.get("fsdp_offload_params", own.get("offload_params", "offload" in text))
        if str(moved).lower() == "true":
            found.offload = ("optimizer", "parameters")


def _deepspeed_part(data: Data, found: Tuning) -> None:
    zero = data.get("zero_optimization")
    zero = zero if isinstance(zero, Mapping) else {}
    found.zero = int(zero.get("stage", 0) or 0)
    offload = []
    for key, what in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        part = zero.get(key)
        if isinstance(part, Mapping) and str(part.get("device", "none")) not in ("none", "None"):
            offload.append(what)
    found.offload = tuple(offload)


def _axolotl(data: Data) -> Tuning:
    keys = Keys(data)
    found = Tuning("axolotl", model=str(keys.get("base_model", default="")))
    adapter = str(keys.get("adapter", default="") or "").lower()
    storage, twice = _quantisation(keys)
    method = {"lora": "lora", "qlora": "qlora"}.get(adapter, "full")
    if keys.flag("peft_use_dora", "lora_use_dora"):
        method = "dora"
    if method == "qlora":
        storage = storage or "nf4"
        twice = twice or "bnb_config_kwargs" not in data
    every = keys.flag("lora_target_linear")
    _finetune(
        found, keys, method, rank=keys.whole("lora_r", default=8),
        alpha=float(keys.get("lora_alpha", default=16)),
        dropout=float(keys.get("lora_dropout", default=0.0) or 0.0),
        targets="all-linear" if every else keys.get("lora_target_modules"),
        storage=storage if method != "full" else None, double_quantization=twice or None,
        train=_trained(keys.get("lora_modules_to_save")),
    )  # fmt: skip
    _usual(found, keys, "sequence_len", default=2048, weights=("torch_dtype", "dtype"))
    found.micro_batch = keys.whole("micro_batch_size", default=1)
    found.accumulate = keys.whole("gradient_accumulation_steps", default=1)
    found.recompute = keys.flag("gradient_checkpointing")
    if keys.flag("liger_fused_linear_cross_entropy"):
        found.job = found.job.but(loss="liger")
    if keys.flag("cut_cross_entropy"):
        found.job = found.job.but(loss="cut")
    plugins = str(keys.get("plugins", default=""))
    if "cut_cross_entropy" in plugins:
        found.job = found.job.but(loss="cut")
    return _done(found, keys)


def _trained(names: Any) -> tuple[str, ...] | None:
    if not names:
        return None
    text = str(names)
    parts = {"embedding": r"embed|wte", "head": r"lm_head|output", "norms": r"norm"}
    return tuple(part for part, pattern in parts.items() if re.search(pattern, text)) or None


def _usual(found: Tuning, keys: Keys, *names: str, default: int, weights: tuple[str, ...]) -> None:
    """Sequence length, precision, optimizer, loss and sharding under transformers' names."""
    if keys.get(*names) is None:
        found.assumed.append(f"{names[0]} = {default}")
    half = _half_weights(keys, found, *weights)
    full = not found.job.frozen
    recipe = RECIPES["pure-bf16"]
    optimizer = _optimizer(keys, half and full, "optim", "optimizer")
    if full and not half:
        recipe = RECIPES["fp32"].but(name="bf16-autocast", compute="bf16", activation_bytes=2)
    found.job = found.job.but(
        seq_len=keys.whole(*names, default=default), precision=recipe,
        optimizer=OPTIMIZERS[optimizer], framework=found.tool,
    )  # fmt: skip
    _sharding(keys, found)
    if found.zero and full and _is_deepspeed(keys):
        # DeepSpeed keeps fp32 masters; FSDP its shards in the weights' precision.
        whole = OPTIMIZERS[optimizer.removesuffix("-bf16")]
        found.job = found.job.but(precision=RECIPES["bf16-fp32-grads"], optimizer=whole)
    if keys.flag("use_liger_kernel", "use_liger", "enable_liger_kernel"):
        found.job = found.job.but(loss="liger")
    if str(keys.get("attn_implementation", "flash_attn", "attention")) == "eager":
        found.job = found.job.but(framework_options={"attention_kernel": "unfused"})
    for flag in ("flash_attention", "flash_attention_2", "sdp_attention", "sample_packing", "packing",
                 "pad_to_sequence_len", "train_on_inputs", "use_cache"):  # fmt: skip
        keys.get(flag)


def _is_deepspeed(keys: Keys) -> bool:
    """Whether the sharding is DeepSpeed's."""
    return keys.data.get("deepspeed") is not None or "zero_optimization" in keys.data


_DECORATION = re.compile(
    r"[-_.]?\b(coder|math|instruct|chat|base|sft|dpo|full|gptq|awq|bnb|4bit|fp16|bf16|2507|2512|hf|it|unsloth"
    r"|quantized|int4|w4a16|v\d+(?:\.\d+)*|rope-\w+|preview|distill)\b",
    re.IGNORECASE,
)
_RELATIVES = (
    (r"vicuna", "llama2"), (r"alpaca", "llama1"), (r"^zephyr-7b.*", "mistral-7b"),
    (r"^(?:deepseek-)?r1-distill-qwen", "qwen2.5"), (r"^(?:deepseek-)?r1-distill-llama", "llama3"),
    (r"^qwen2-(?=[\d.]+b)", "qwen2.5-"), (r"^mistral-nemo.*", "mistral-nemo-12b"),
    (r"^(?:magi|mi)stral-small.*", "mistral-small-24b"), (r"^olmo-2-\d+-", "olmo2-"),
    (r"^llama-?4-scout.*", "llama4-scout"), (r"^llama-?4-maverick.*", "llama4-maverick"),
    (r"^smollm3.*", "smollm3-3b"),
)  # fmt: skip
"""Models that others were made from, without another shape."""

_SIZE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s?([bm])(?![a-z])")


def size_in(name: str) -> str | None:
    """The size that a model's name states, such as `7B`; None where it states none."""
    found = _SIZE.findall(name.rsplit("/", 1)[-1].lower())
    return f"{found[-1][0]}{found[-1][1].upper()}" if found else None


def plainer_name(name: str) -> str:
    """A model's name less what further training and quantisation add to it."""
    short = name.rstrip("/").rsplit("/", 1)[-1].lower()
    for relative, of in _RELATIVES:
        short = re.sub(relative, of, short)
    return _DECORATION.sub("", short).strip("-_.")


def _done(found: Tuning, keys: Keys) -> Tuning:
    found.unread = keys.unread()
    return found


def _llama_factory(data: Data) -> Tuning:
    keys = Keys(data)
    found = Tuning("llama-factory", model=str(keys.get("model_name_or_path", default="")))
    kind = str(keys.get("finetuning_type", default="lora"))
    storage, twice = _quantisation(keys)
    method = {"full": "full", "freeze": "full", "lora": "lora"}.get(kind, "lora")
    if storage and method == "lora":
        method = "qlora"
        twice = keys.flag("double_quantization", default=True)
    if keys.flag("use_dora") and method == "lora":
        method = "dora"
    if kind == "freeze":
        found.assumed.append("finetuning_type freeze: priced as if every layer trained")
        keys.get("freeze_trainable_layers", "freeze_trainable_modules")
    target = str(keys.get("lora_target", default="all"))
    _finetune(
        found, keys, method, rank=keys.whole("lora_rank", default=8),
        alpha=float(keys.get("lora_alpha", default=16)),
        dropout=float(keys.get("lora_dropout", default=0.0)),
        targets="all-linear" if target == "all" else target.split(","),
        storage=storage, double_quantization=twice or None,
        train=_trained(keys.get("additional_target")),
    )  # fmt: skip
    _usual(found, keys, "cutoff_len", default=2048, weights=("infer_dtype", "_none"))
    _batches(found, keys)
    found.recompute = not keys.flag("disable_gradient_checkpointing")
    return _done(found, keys)


def _batches(found: Tuning, keys: Keys) -> None:
    if keys.get("per_device_train_batch_size") is None:
        found.assumed.append("per_device_train_batch_size = 8 (TrainingArguments' default)")
    found.micro_batch = keys.whole("per_device_train_batch_size", default=8)
    found.accumulate = keys.whole("gradient_accumulation_steps", default=1)


def _trl(data: Data) -> Tuning:
    keys = Keys(data)
    found = Tuning(
        "trl", model=str(keys.get("model_name_or_path", "model_name", "model_id", default=""))
    )
    peft = keys.flag("use_peft", "use_lora") or keys.get("lora_r", "lora_rank") is not None
    peft = peft or (keys.get("_python") is not None and keys.get("r") is not None)
    storage, twice = _quantisation(keys)
    method = "qlora" if peft and storage else "lora" if peft else "full"
    if method == "lora" and keys.flag("use_dora"):
        method = "dora"
    _finetune(
        found, keys, method, rank=keys.whole("lora_r", "r", "lora_rank", default=16),
        alpha=float(keys.get("lora_alpha", default=32) or 32),
        dropout=float(keys.get("lora_dropout", default=0.05 if peft else 0.0) or 0.0),
        targets=keys.get("lora_target_modules", "target_modules"),
        storage=storage if method == "qlora" else None, double_quantization=twice or None,
        train=_trained(keys.get("lora_modules_to_save", "modules_to_save")),
    )  # fmt: skip
    names = ("max_length", "max_seq_length", "max_seq_len", "model_max_length", "block_size")
    _usual(found, keys, *names, default=1024, weights=("dtype", "torch_dtype"))
    _batches(found, keys)
    found.recompute = keys.flag("gradient_checkpointing", default=True)
    if keys.get("gradient_checkpointing") is None:
        found.assumed.append("gradient_checkpointing on (TRL's default; Trainer's is off)")
    keys.get(
        "gradient_checkpointing_kwargs", "use_gradient_checkpointing", "bnb_4bit_compute_dtype"
    )
    return _done(found, keys)


def _torchtune(data: Data) -> Tuning:
    keys = Keys(data)
    component = str(data["model"].get("_component_", ""))
    model = Keys(data["model"])
    found = Tuning("torchtune", model=_torchtune_model(component, data))
    lora = "lora" in component
    attention = list(model.get("lora_attn_modules", default=[]) or [])
    targets = attention + (["mlp"] if model.flag("apply_lora_to_mlp") else [])
    targets += ["lm_head"] if model.flag("apply_lora_to_output") else []
    method = "qlora" if "qlora" in component else "lora" if lora else "full"
    if method == "lora" and model.flag("use_dora"):
        method = "dora"
    _finetune(
        found, keys, method, rank=model.whole("lora_rank", default=8), adapter_bytes=2.0,
        alpha=float(model.get("lora_alpha", default=16)), targets=targets or None,
        dropout=float(model.get("lora_dropout", default=0.0) or 0.0),
    )  # fmt: skip
    keys.get("model")
    tokenizer = data.get("tokenizer")
    length = tokenizer.get("max_seq_len") if isinstance(tokenizer, Mapping) else None
    if length is None:
        length = 4096
        found.assumed.append("tokenizer.max_seq_len = 4096")
    dtype = str(keys.get("dtype", default="bf16"))
    optimizer = keys.get("optimizer")
    named = str(optimizer.get("_component_", "")) if isinstance(optimizer, Mapping) else "adamw"
    half = dtype != "fp32"
    ours = _optimizer(Keys({"optim": named.rsplit(".", 1)[-1]}), half and method == "full", "optim")
    options = {"optimizer_in_backward": True} if keys.flag("optimizer_in_bwd") else {}
    found.job = found.job.but(
        seq_len=parse_count(length, "tokenizer.max_seq_len"), optimizer=OPTIMIZERS[ours],
        precision=RECIPES["pure-bf16" if half else "fp32"], framework="torchtune",
        framework_options=options,
    )  # fmt: skip
    found.micro_batch = keys.whole("batch_size", default=1)
    found.accumulate = keys.whole("gradient_accumulation_steps", default=1)
    found.recompute = keys.flag("enable_activation_checkpointing")
    if keys.flag("enable_activation_offloading"):
        found.offload = ("activations",)
    if keys.flag("fsdp_cpu_offload"):
        found.offload = (*found.offload, "optimizer", "parameters")
    keys.get("fsdp_sharding_strategy", "fsdp_reshard_after_forward", "batch_size_val")
    found.zero = 3  # its recipes for several devices are FSDP2's
    if "Chunked" not in str(keys.get("loss", default="")) and "Linear" not in str(data.get("loss")):
        found.job = found.job.but(loss="full")
    keys.get("clip_grad_norm", "compile")
    return _done(found, keys)


def _torchtune_model(component: str, data: Data) -> str:
    """`torchtune.models.llama3_1.lora_llama3_1_8b` is `llama3.1-8b`."""
    short = re.sub(r"^(?:q?lora|q?dora)_", "", component.rsplit(".", 1)[-1])
    short = re.sub(r"^qwen2_5_", "qwen2.5_", short)
    if not short.startswith("llama"):
        short = re.sub(r"_([01])_(\d)b", r"-\1.\2b", short)
    return re.sub(r"(?<=\d)_(?=\d+$|\d+_)", ".", short).replace("_", "-")


def _verl(data: Data) -> Tuning:
    actor = data["actor_rollout_ref"]
    actor = actor if isinstance(actor, Mapping) else {}
    model, learner = (
        Keys(one if isinstance(one := actor.get(name), Mapping) else {})
        for name in ("model", "actor")
    )
    found = Tuning("verl", model=str(model.get("path", default="")))
    rank = model.get("lora_rank", default=0) or 0
    _finetune(found, model, "lora" if rank else "full", rank=rank or None,
              targets=model.get("target_modules"))  # fmt: skip
    nested = data.get("data")
    lengths = Keys(nested if isinstance(nested, Mapping) else {})
    length = lengths.whole("max_prompt_length", default=512) + lengths.whole(
        "max_response_length", default=512
    )
    found.job = found.job.but(
        seq_len=length, precision=RECIPES["fp32"].but(name="bf16-autocast", compute="bf16",
                                                      activation_bytes=2),
        optimizer=OPTIMIZERS["adamw"], framework="verl",
    )  # fmt: skip
    found.micro_batch = learner.whole("ppo_micro_batch_size_per_gpu", default=1)
    found.recompute = model.flag("enable_gradient_checkpointing", default=True)
    found.zero = 3
    trainer = data.get("trainer")
    if isinstance(trainer, Mapping):
        size = Keys(trainer)
        found.gpus = size.whole("n_gpus_per_node", default=8) * size.whole("nnodes", default=1)
    fsdp = learner.get("fsdp_config", default={})
    if isinstance(fsdp, Mapping) and fsdp.get("optimizer_offload"):
        found.offload = ("optimizer",) + (("parameters",) if fsdp.get("param_offload") else ())
    learner.get(
        "optim", "ppo_mini_batch_size", "use_kl_loss", "kl_loss_coef", "grad_clip", "strategy"
    )
    found.assumed.append("the actor's update; the rollout engine's own memory is not counted")
    return _done(found, learner)


def _accelerate(data: Data) -> Tuning:
    keys = Keys(data)
    found = Tuning("trl")
    found.gpus = keys.whole("num_processes", default=1)
    kind = str(keys.get("distributed_type", default="NO")).upper()
    if kind == "DEEPSPEED":
        part = keys.get("deepspeed_config", default={})
        part = part if isinstance(part, Mapping) else {}
        found.zero = int(part.get("zero_stage", 2) or 0)
        offload = [what for key, what in (("offload_optimizer_device", "optimizer"),
                   ("offload_param_device", "parameters"))
                   if str(part.get(key, "none")) != "none"]  # fmt: skip
        found.offload = tuple(offload)
    elif kind == "FSDP":
        part = keys.get("fsdp_config", default={})
        part = part if isinstance(part, Mapping) else {}
        plain = str(part.get("fsdp_sharding_strategy", "FULL_SHARD"))
        found.zero = {"SHARD_GRAD_OP": 2, "NO_SHARD": 0}.get(plain, 3)
        if str(part.get("fsdp_offload_params", "false")).lower() == "true":
            found.offload = ("optimizer", "parameters")
        found.recompute = str(part.get("fsdp_activation_checkpointing", "false")).lower() == "true"
    found.job = Job(
        seq_len=2048, framework="trl", precision=RECIPES["pure-bf16"],
        optimizer=OPTIMIZERS["adamw-bf16"], finetune=finetune_recipe("full"),
    )  # fmt: skip
    found.assumed.append("the launcher's file alone: full fine-tuning, 1 × 2048 tokens a device")
    return _done(found, keys)


def _deepspeed(data: Data) -> Tuning:
    keys = Keys(data)
    found = Tuning("deepspeed")
    _deepspeed_part(data, found)
    found.micro_batch = keys.whole("train_micro_batch_size_per_gpu", default=1)
    found.accumulate = keys.whole("gradient_accumulation_steps", default=1)
    half = isinstance(data.get("bf16"), Mapping) or isinstance(data.get("fp16"), Mapping)
    found.job = Job(
        seq_len=2048, framework="deepspeed", finetune=finetune_recipe("full"),
        precision=RECIPES["bf16-fp32-grads" if half else "fp32"],
    )  # fmt: skip
    found.recompute = True
    found.assumed.append("the DeepSpeed file alone: 2048 tokens a sequence, full recomputation")
    keys.get(
        "zero_optimization", "bf16", "fp16", "optimizer", "gradient_clipping", "train_batch_size"
    )
    return _done(found, keys)


_READERS = {
    "axolotl": _axolotl, "llama-factory": _llama_factory, "trl": _trl, "torchtune": _torchtune,
    "verl": _verl, "accelerate": _accelerate, "deepspeed": _deepspeed,
}  # fmt: skip
