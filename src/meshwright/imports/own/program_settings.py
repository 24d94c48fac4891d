"""Settings out of a training program of one's own, for transformers' Trainer, TRL or Unsloth.

The program is not run and its order hardly followed: the keyword arguments of the configuration objects
that it makes are its settings, read in the order of its lines, the first of a name for good (what comes
after the training loads what was trained). A name counts as what the program says of it at one place:
a constant, a default of argparse, of a dataclass or of the environment.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwright.imports.code.branches import calls_reached
from meshwright.imports.code.composed import Larger
from meshwright.imports.code.names import Known
from meshwright.imports.code.notebook import parsed
from meshwright.imports.code.partials import written_out
from meshwright.imports.code.syntax import assigned, dotted
from meshwright.imports.config_classes import family_of
from meshwright.imports.own.afterwards import changed_afterwards, gone_over
from meshwright.imports.own.configuring_calls import configuring_calls, makes_lora
from meshwright.imports.own.layers import adapted_layer, recomputes, switches_on, upcasts
from meshwright.imports.own.left_open import (
    TAKES_MORE,
    TOLD_BY_OTHERS,
    handed_on,
    not_followed,
    searches,
    take_from_command,
)
from meshwright.imports.own.option_names import NAMES
from meshwright.imports.own.told_outside import OF_A_TABLE, refuse_told_outside
from meshwright.specs.errors import SpecError

UNSLOTH = {
    "load_in_4bit": True, "max_seq_length": 2048, "r": 16, "lora_alpha": 16, "lora_dropout": 0.0,
    "use_gradient_checkpointing": "unsloth",
}  # fmt: skip
"""What `FastLanguageModel.from_pretrained` and `get_peft_model` take where nothing is said
(unsloth/models/loader.py and llama.py)."""

UNSLOTH_LOSS = "liger"
"""`unsloth_fused_ce_loss` (unsloth/models/llama.py) multiplies and sums in chunks: no logits are kept."""


def unsloth_recomputes(asked: object) -> tuple[bool, bool]:
    """Whether `use_gradient_checkpointing` recomputes layers, and keeps their inputs in host memory.

    The latter is `Unsloth_Offloaded_Gradient_Checkpointer` (unsloth_zoo/gradient_checkpointing.py).
    """
    word = str(asked).lower()
    return word in ("true", "unsloth"), word == "unsloth"


LENGTHS = (
    "max_length",
    "max_seq_length",
    "max_seq_len",
    "model_max_length",
    "block_size",
    "seq_length",
    "sequence_length",
)
"""How trainers and their models call the length to which sequences are cut."""
_CONSTANTS = ("MAX_LENGTH", "MAXLEN", "MAX_SEQ_LENGTH", "MAX_SEQ_LEN", "MAX_LEN", "CUTOFF_LEN", "max_length", "max_seq_length", "max_seq_len", "max_len", "cutoff_len", "max_position_embeddings")  # fmt: skip
"""Names of the length at which a program cuts its texts by its own lines."""
_UNSLOTHS = re.compile(r"\bFast\w*Model\b")

_OWN_ARGUMENTS = re.compile(r"(?m)^class \w+\((?:\w+\.)*(?:Seq2Seq)?TrainingArguments\):(?=(?:.|\n)*\bHfArgumentParser\()")  # fmt: skip
"""A program whose command line is transformers' settings with some of its own beside them."""
_OF_SIZES = re.compile(r"len(?:gth)?s?$|size|steps")
_SILENT = {"bf16": False, "fp16": False}
"""What these are where nothing is said (transformers/training_args.py)."""


def program_settings(
    text: str,
    name: str,
    said: Mapping[str, Any] | None = None,
    below: Mapping[str, Any] | None = None,
    tables: Callable[[str], dict[str, Any] | None] | None = None,
    parts: Sequence[ast.stmt] = (),
) -> dict[str, Any]:
    """Keyword arguments of the configuration objects that a program makes, without running it.

    `_python` says that they are of a program, `_unsloth` that its model is Unsloth's, `_trainer` of which
    kind its first trainer is (`dpo`; empty: transformers' own), `_larger` which settings it chooses
    between two numbers by what only its machine knows: the larger is taken; `_shape` the class of
    transformers' that describes a model which it builds, with its arguments; `_open` settings that it computes
    from what only its run knows, by the expression; `_heard` the names of its command line that any of it came from, `_elsewhere` whether
    its model is made in another file, `_turns` what it trains with several values of.

    Args:
        said: what its command line says, by the names of its own options.
        below: what classes say that it imports from files at hand.
        tables: reads a table that it loads from a file at hand.
        parts: functions of files at hand that it calls, and what they need (`parts_of`).

    Raises:
        SpecError: not Python, also without a notebook's lines for its shell; or a program whose command
            line says all.
    """
    tree = parsed(text)
    if tree is None:
        raise SpecError("config", name, "is not Python that can be read")
    tree = ast.Module(body=[*tree.body, *parts], type_ignores=[]) if parts else tree
    tree = written_out(tree)
    known = Known(tree, said, _SILENT | dict(below or {}) if _OWN_ARGUMENTS.search(text) else below, tables)  # fmt: skip
    known.heard = set()
    if known.is_parsed:
        known.listen(known.declared)
    found: dict[str, Any] = {"_python": True}
    lengths = _from_calls(tree, known, found)
    changed_afterwards(tree, known, found)
    found["_turns"] = gone_over(tree, known)
    take_from_command(found, known)
    _name_model(found, "\n".join([text, *map(ast.unparse, parts)]))
    if not found.get("model_name_or_path") and (shape := _shape_file(tree, known)):
        found["model_name_or_path"] = shape
    if known.is_parsed:  # its dataclasses are its command line, under the same names
        for key, value in known.declared.items():
            if said is None and key in known.heard and not _OF_SIZES.search(key):
                continue  # what it is for was followed
            if key not in LENGTHS or re.search(
                rf"\.{key}\b", text
            ):  # one that nothing reads cuts nothing
                found.setdefault(key, value)
    if "_trainer" not in found:
        _of_a_loop(found, known, below or {})
    if "use_peft" not in found:
        layers = (adapted_layer(call, known) for call in calls_reached(tree, known.holds))
        for key, value in next((one for one in layers if one), {}).items():
            found.setdefault(key, value)
    told = (
        dict(below or {}) | known.parameters | known.arguments
    )  # of its settings, its functions, its command line
    declared = next((one for one in LENGTHS if _counts(told.get(one)) or one in known.arguments), "")  # fmt: skip
    if declared and not any(one in found for one in (*LENGTHS, "max_completion_length")):
        found["max_length"] = told[declared]  # for a data set of its own
    _where_silent(found, known, lengths)
    if re.search(r"from_pretrained\([^()]*(?:\([^()]*\)[^()]*)*\)\s*\.half\(\)", text):
        found.setdefault("torch_dtype", "float16")
    if (
        "_unsloth" not in found
        and {"use_peft", "load_in_4bit", "load_in_8bit"} & {*found}
        and upcasts(tree, known)
    ):
        found["prepare_model_for_kbit_training"] = True
    if recomputes(tree, known):
        found.setdefault("gradient_checkpointing", True)
    if found.get("gradient_checkpointing") is False and switches_on(tree, known):
        found["gradient_checkpointing"] = (
            True  # a trainer that is told nothing leaves the model as it is
        )
    if said is not None:
        found["_heard"] = known.heard
    refuse_told_outside(text, name, tree, found)
    return found


def _name_model(found: dict[str, Any], text: str) -> None:
    """Put the model's name where TrainingArguments' programs have it, and say whether the program makes the model itself."""
    found["_elsewhere"] = "model" not in found and _LOADS_MODEL.search(text) is None
    for key in ("model_name", "model"):
        if isinstance(found.get(key), str):
            found.setdefault("model_name_or_path", found.pop(key))


def _where_silent(found: dict[str, Any], known: Known, lengths: list[Any]) -> None:
    """Take a length at which texts are cut, and a model that a function elsewhere loads, where no object says one."""
    constants = [known.names[one] for one in _CONSTANTS if one in known.names]
    cut = [one for one in lengths if _counts(one)]
    cut = cut or [one for one in constants[:1] if _counts(one) and one >= _SHORTEST]
    if cut and not any(name in found for name in (*LENGTHS, "max_completion_length")):
        found["max_length"] = max(cut)
    if "model_name_or_path" not in found and not {"_shape", "_unsloth"} & set(found):
        asked = next((known.arguments[one] for one in NAMES if one in known.arguments), None)
        if isinstance(asked, str) and asked:
            found["model_name_or_path"] = asked


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_SHORTEST = 16
"""A smaller number under such a name counts something else than tokens."""


def _from_calls(tree: ast.Module, known: Known, found: dict[str, Any]) -> list[Any]:
    """Add what the configuration objects are made with; lengths to which texts are cut come back."""
    lengths = []
    for call in configuring_calls(tree, known):
        called = dotted(call.func)
        if "okenizer" in called:
            lengths += [value for key, value in known.keywords(call) if key == "max_length"]
            continue
        if called == "deepspeed.initialize":
            _of_engine(dict(known.keywords(call)), found)
            continue
        if _UNSLOTHS.search(called):
            found["_unsloth"] = True
        if called.endswith("Trainer"):
            name_of_class = called.rpartition(".")[2].removeprefix("Unsloth")
            kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name_of_class.removesuffix("Trainer"))
            found.setdefault("_trainer", kind.lower())
        if family_of(called):
            found.setdefault("_shape", (called, list(known.keywords(call))))
            continue
        if called.endswith(("Dataset", "Collator")):  # the program's own, which cuts its texts
            cuts = [
                value for key, value in known.keywords(call) if key in LENGTHS and _counts(value)
            ]
            found |= {"max_length": cuts[0]} if cuts and not {*LENGTHS} & {*found} else {}
            continue
        if known.is_own(call):
            continue  # a table of the program's own: what it is for, it says where it reads it
        if called.endswith("from_pretrained") and "teacher" in ast.unparse(call).lower():
            continue
        if called.endswith(("from_pretrained", "Trainer")) and call.args:
            first = known.value(call.args[0])
            if isinstance(first, str):
                found.setdefault("model_name_or_path", first)
        for key, value in known.keywords(call):
            if key == "model_name" and called.endswith("from_pretrained"):
                key = "model_name_or_path"
            if value is not None and not (key == "model" and not isinstance(value, str)):
                if isinstance(value, Larger) and key not in found:
                    found.setdefault("_larger", []).append(key)
                found.setdefault(key, value)
                if (key, value) == (
                    "device_map",
                    "auto",
                ):  # beside a reference that has a device of its own
                    found[key] = value
        if called.endswith(TAKES_MORE) and (more := not_followed(call, known)):
            found.setdefault("_open", {}).setdefault(f"more of {called.rpartition('.')[2]}", more)
        _from_keywords(call, tree, known, found)
        again = called.endswith("PeftModel.from_pretrained") and found.pop("is_trainable", False)
        if again or called.endswith(
            ("LoraConfig", "get_peft_model")
        ):  # adapters of an earlier run train on
            found["use_peft"] = True
        if called.endswith("PeftModel.from_pretrained") and found.pop("is_trainable", False):
            found["use_peft"] = True  # adapters that were trained before go on training
            found.setdefault("_open", {}).setdefault("lora_r", "the checkpoint of its adapters")
        other = _OTHER_METHODS.search(called)
        if other and not any(map(makes_lora, calls_reached(tree, known.holds))):
            found["use_peft"], found["peft_type"] = True, other.group(1).lower()
    return lengths


def _of_engine(words: Mapping[str, Any], found: dict[str, Any]) -> None:
    """Take the table, or the file, by which a loop makes DeepSpeed's engine, and the batch that it says."""
    table = words.get("config") or words.get("config_params")
    if isinstance(table, dict):
        for ours, theirs in (("per_device_train_batch_size", "train_micro_batch_size_per_gpu"), ("gradient_accumulation_steps",) * 2):  # fmt: skip
            if _counts(table.get(theirs)):
                found.setdefault(ours, table[theirs])
        for width in ("bf16", "fp16"):
            inner = table.get(width)
            if isinstance(inner, dict) and inner.get("enabled") is True:
                found.setdefault(width, True)
    if isinstance(table, dict) or str(table).endswith(".json"):
        found.setdefault("deepspeed", table)


def _from_keywords(call: ast.Call, tree: ast.Module, known: Known, found: dict[str, Any]) -> None:
    """Note settings that a call computes, and what can be told of them all the same."""
    for keyword in call.keywords:
        plain = isinstance(keyword.value, ast.Constant)
        if keyword.arg == "per_device_train_batch_size":
            found.setdefault("_tabled", bool(OF_A_TABLE.search(ast.unparse(keyword.value)[:400])))
        if keyword.arg in ("optimizers", "optimizer_cls_and_kwargs"):
            found |= _optimizer(keyword.value, tree)
        told = keyword.arg in TOLD_BY_OTHERS or (
            keyword.arg == "deepspeed" and isinstance(keyword.value, (ast.Call, ast.IfExp))
        )
        if keyword.arg == "target_modules" and "target_modules" not in found and searches(keyword.value, tree, known):  # fmt: skip
            found["target_modules"] = "all-linear"
        elif keyword.arg == "target_modules" and "target_modules" not in found and (said := handed_on(keyword.value, tree, known)):  # fmt: skip
            found["target_modules"] = said
        if told and keyword.arg not in found and not plain:
            found.setdefault("_open", {}).setdefault(
                str(keyword.arg), ast.unparse(keyword.value)[:60]
            )


_OTHER_METHODS = re.compile(
    r"(?:^|\.)(IA3|PromptTuning|PrefixTuning|PromptEncoder|LoHa|LoKr|OFT|BOFT|Vera|FourierFT|LNTuning|XLora|HRA|VBLoRA|CPT|Bone|Miss|"
    r"RandLora|TrainableTokens|Shira|C3A|WaveFT|Road|Delora|Gralora|Hira|HiRA|OSF|Poly|AdaLora|Adamss|AdaptionPrompt|Beft|Cartridge|Deft|Frod|Glora|Lily|"
    r"MultitaskPromptTuning|Peanut|Psoft|Pvera|Shadow|Supertuning|TinyLora|UniLora)Config$"
)
"""PEFT's configurations of other methods than LoRA."""


def _optimizer(pair: ast.expr, tree: ast.Module) -> dict[str, str]:
    """The optimizer that a trainer is handed, by its class, in place of what its settings say."""
    first = pair.elts[0] if isinstance(pair, ast.Tuple) and pair.elts else pair
    if isinstance(first, ast.Name):
        first = [first, *assigned(first.id, tree)][-1]
    named = first.func if isinstance(first, ast.Call) else first
    if isinstance(named, ast.Constant):
        return {}
    return {"optim": ast.unparse(named).rpartition(".")[2][:40]}


def _shape_file(tree: ast.Module, known: Known) -> str:
    """What a program makes its model's configuration from, where it loads no weights."""
    for call in calls_reached(tree, known.holds):
        called = dotted(call.func)
        if (
            re.search(r"Config\.from_(?:pretrained|json_file)$", called)
            and "Generation" not in called
        ):
            first = known.value(call.args[0]) if call.args else None
            if isinstance(first, str):
                return first
    return ""


_LOADS_MODEL = re.compile(
    r"(?<![oO]kenizer\.)(?<!rocessor\.)from_pretrained\(|from_config\(|ForCausalLM|LMHeadModel|\w+Model\(|model_init"
)
"""A program that makes its model in its own lines."""
_OF_LOOPS = {
    "per_device_train_batch_size": ("per_device_train_batch_size", "micro_batch_size", "batch_size", "per_device_batch_size", "device_batch_size",
                                    "batch_size_per_gpu", "train_batch_size"),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", "accumulation_steps", "grad_accum_steps", "grad_accum", "grad_accumulation", "gradient_accumulation"),
}  # fmt: skip


def _of_a_loop(found: dict[str, Any], known: Known, below: Mapping[str, Any]) -> None:
    """What a loop of one's own says: its loader's batch, and its command line's accumulation."""
    if "batch_size" in found:
        found.setdefault("per_device_train_batch_size", found.pop("batch_size"))
    for key, names in _OF_LOOPS.items():
        told = {**below, **known.names, **known.arguments}
        name = next((name for name in names if name in told), "")
        said = told.get(name)
        if isinstance(said, int) and not isinstance(said, bool):
            found.setdefault(key, said)
            known.heard.add(name)
