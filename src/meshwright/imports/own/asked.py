"""What is asked for, or said, of a hand-written program whose lines do not tell what it trains."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from meshwright.imports.names import ONLY_CALLED, PLANNED
from meshwright.imports.own import option_names
from meshwright.specs.errors import SpecError

_FOUND = (
    ("micro-batch", option_names.MICRO),
    ("batch", option_names.BATCHES),
    ("sequence", option_names.LENGTHS),
)


def asks_for_model(own: dict[str, Any], name: str) -> SpecError:
    """What is asked of a loop that says no model, or a part of one, beside what it does say."""
    kinds = (
        ("layers", option_names.LAYERS),
        ("a width", option_names.HIDDEN),
        ("heads", option_names.HEADS),
    )
    said = [word for word, names in kinds if any(one in own for one in names)]
    lacks = [word for word, names in kinds if not any(one in own for one in names)]
    known = ", ".join(f"{word} {own[one]}" for word, names in _FOUND for one in names[:99] if one in own)[:120]  # fmt: skip
    read = f" (it says {known})" if known else ""
    more = "" if known else ", and --micro-batch and --seq"
    what = f"says {' and '.join(said)} of its model, but not {' or '.join(lacks)}" if said and lacks else "does not say its model in lines that can be followed"  # fmt: skip
    return SpecError("--model", None, f"{name[-60:]} trains by a loop of its own and {what}{read}: give --model{more}, or import the script or configuration that it is started with")  # fmt: skip


def asks_for_experts(name: str) -> SpecError:
    """What is asked of a loop that builds layers of experts without saying how many, how wide, and how many are chosen."""
    return SpecError("--model", None, f"{name[-60:]} builds layers of experts and does not say how many, how wide, or how many are chosen: give --model")  # fmt: skip


_LOOPS = re.compile(r"\.backward\(|value_and_grad\(|jax\.grad\(")
_STARTS = re.compile(
    r"\.(?:fit|train|pretrain|run)\(|\b(?:train|main|launch|run_exp|pretrain|fit)\("
)
_TRAINS = re.compile(
    r"(?i)optimi[sz]er|trainer\w*\(|\.fit\(|\b(?:pre)?train(?:_\w+)?\(|\.train\(|learning_rate"
)
"""What only a program has that trains, or hands on what is trained with."""
OF_CONFIGURATION = "its configuration (Hydra or OmegaConf)"
_TOLD = (
    (re.compile(r"@hydra\.main|hydra_runner|OmegaConf\.(?:load|from_cli|merge)"), OF_CONFIGURATION),
    (re.compile(r"pyconfig\.initialize|initialize_megatron|add_argument\(|parse_args\(|HfArgumentParser|TrlParser|jsonargparse|tyro\.cli|fire\.Fire|typer\.|click\.|sys\.argv|simple_parsing|absl\.app|app\.run\(|define_flags_with_default\("), "its command line"),
    (re.compile(r"yaml\.\w{0,10}load\(|json\.load\(|toml\w*\.load|from_file\(|\.load_config\(|load_config\("), "a configuration that it loads"),
)  # fmt: skip


_SERVICE = re.compile(r"\bfine_tuning(?:\.jobs)?\.create\(")
"""How OpenAI's, Mistral's, Together's and OpenWeights' clients ask for a run."""
_CONVERTS = re.compile(
    r"(?i)^(?:convert|export|merge|upload|download)(?:er)?(?:[_.-]|$)|_(?:to|from)_(?:hf|nemo|mcore|megatron|gguf|huggingface)\w*$|^(?:hf|nemo)_to_"
)


_OF_OPENMMLAB = re.compile(r"^(img_norm_cfg|data_source_cfg|train_pipeline)\s*=", re.M)  # fmt: skip
"""What configurations of mmcv and mmengine for pictures set."""


def refuse_conversion(text: str, name: str) -> None:
    """Refuse a program that by its name converts, merges or moves weights, and that trains nothing.

    Raises:
        SpecError: it is one.
    """
    trains = _LOOPS.search(text) or re.search(r"\.(?:fit|train)\(\)|trainer\.(?:fit|train)\(", text)
    if _CONVERTS.search(Path(name).stem) and not trains:
        raise SpecError("file", name, "does not train: by its name it converts or moves weights")


def told_from_outside(text: str) -> str:
    """Where a program has its settings from, by how it asks for them; empty where nothing says so."""
    return next((word for found, word in _TOLD if found.search(text)), "")


def starts_by_itself(text: str) -> bool:
    """Whether a Python file does something when it is started, beside declaring what others call."""
    return (
        re.search(r"^if __name__|^(?:main|train|run)\(|^(?:for|while|with) ", text, re.M)
        is not None
    )


def steps_in_classes(tree: ast.Module) -> bool:
    """Whether every step backward of a file is in a class, for a program elsewhere to make one."""
    outside = [node for node in tree.body if not isinstance(node, ast.ClassDef)]
    return not any(
        isinstance(one, ast.Attribute) and one.attr == "backward"
        for node in outside
        for one in ast.walk(node)
    )


_DECODES = re.compile(
    r"^(?:import|from) jax\b(?=(?:.|\n)*(?:is_causal|causal_mask|make_causal|\btril\(|GPT|[Ll]anguage ?[Mm]odel))",
    re.M,
)
"""A loop in JAX whose model is a decoder."""


def unfollowed(text: str, name: str) -> SpecError:
    """Why a Python file that no reader took is none that can be imported, and what to give instead."""
    if _SERVICE.search(text):
        return SpecError("file", name, "does not train by itself: it asks a service to (fine_tuning.create), whose devices and batches are its own")  # fmt: skip
    if re.search(r"^(?:import mlx\b|from mlx\b)", text, re.M):
        return SpecError("file", name, "trains with MLX on Apple's chips: meshwright plans accelerators that PyTorch and JAX run on")  # fmt: skip
    loops, starts = _LOOPS.search(text), _STARTS.search(text)
    whence = told_from_outside(text)
    if re.search(r"^(?:    )?def test_\w+\(|^import (?:pytest|unittest)\b", text, re.M):
        return SpecError("file", name, "does not train: it tests")
    if whence and (loops or (starts and _TRAINS.search(text))):
        return SpecError("file", name, f"takes model and batch from {whence}: give the script or the configuration that it is started with")  # fmt: skip
    if loops and ".backward(" not in text and _DECODES.search(text):
        return SpecError("file", name, "describes no training run that can be followed: it trains a decoder by a loop of its own in JAX; `meshwright estimate` prices the layout that it has")  # fmt: skip
    if loops and starts_by_itself(text):
        return SpecError("file", name, "describes no training run of a language model: it has a loop that trains, and no line of it says that its model is a decoder of text")  # fmt: skip
    if re.search(r"^(?:def|class|@)\b|^async ", text, re.M) is None and (
        parts := _OF_OPENMMLAB.findall(text)
    ):
        return SpecError("file", name, f"is a configuration of OpenMMLab's, whose models are of pictures ({parts[0]}): {PLANNED}")  # fmt: skip
    declares = re.search(r"^(?:async )?(?:def|class) ", text, re.M) and not name.endswith(".ipynb")
    if declares and re.search(r"^if __name__|^main\(", text, re.M) is None:
        return SpecError("file", name, ONLY_CALLED)
    return SpecError("file", name, "describes no training run that can be followed: it starts nothing that trains by a recipe, a trainer's settings or a loop; "
                     "a recipe, or the script or YAML with a training program's arguments, is expected")  # fmt: skip
