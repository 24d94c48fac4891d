"""What a script starts that no reader takes: what else it does, and what is said of it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import Any

from meshwright.imports.formats.megatron_mixers import pattern
from meshwright.imports.formats.megatron_shape import SEEING
from meshwright.imports.launch import HOUSEKEEPING, Launch, of_maxtext_without_training
from meshwright.imports.names import PLANNED
from meshwright.imports.options import Missing, Options, flags_of
from meshwright.imports.own import commands as usual_commands
from meshwright.imports.shell.words import shown, unset
from meshwright.specs.errors import SpecError

ASKS_FOR_PROGRAM = (
    'the script takes which program it runs as an argument: --args "…" gives all of them'
)


_ANSWERS = {"sample-input-file", "num-prompt-examples", "genfile"}
_TASKS_WITHOUT_TRAINING = (
    "LAMBADA",
    "WIKITEXT103",
    "ICT-ZEROSHOT-NQ",
    "RETRIEVER-EVAL",
    "MSDP-PROMPT",
    "MSDP-EVAL-F1",
)
"""What Megatron-LM's tasks/main.py and tasks/msdp/main.py do beside fine-tuning."""
_REFUSED = {
    "bert": "an encoder", "t5": "an encoder-decoder", "ict": "a retriever", "biencoder": "a retriever",
    "retro": "a retrieval model", "vision": "a vision model", "vit": "a vision model", "dino": "a vision model",
    "mamba": "a state-space model", "race": "an encoder", "mnli": "an encoder",
    "glue": "an encoder", "llava": "a vision-language model", "vlm": "a vision-language model",
    "multimodal": "a vision-language model", "diffusion": "a diffusion model", "wan": "a diffusion model",
    "speculator": "heads that guess ahead of a frozen model", "medusa": "heads that guess ahead of a frozen model",
    "eagle": "a draft model beside a frozen one", "eagle3": "a draft model beside a frozen one",
    "flux": "a diffusion model", "dit": "a diffusion model",
}  # fmt: skip


def refuse_other_tasks(launch: Launch, flags: dict[str, Any]) -> None:
    """Refuse, by the program's name or its options, what trains no decoder of text.

    Raises:
        SpecError: it does not.
    """
    base = posixpath.basename(launch.program).lower()
    if of_maxtext_without_training(launch.program):
        raise SpecError("file", base, f"{launch.program[-60:]} does not train; a training script is expected")  # fmt: skip
    described = {"mamba"} if pattern(Options(flags, "--")) else set()
    for word, what in _REFUSED.items():
        if word not in described and re.search(rf"(?:^|[_-]){word}(?:[_.-]|\d|$)", base):
            raise SpecError("file", base, f"trains {what}: {PLANNED}")
    masked = next((one for one in ("mlm-probability", "mlm") if flags.get(one) not in (None, False, "false", "False")), "")  # fmt: skip
    if masked:
        raise SpecError(f"--{masked}", flags[masked], f"fills in masked words, which an encoder is trained by: {PLANNED}")  # fmt: skip
    sees = next((one for one in SEEING if one in flags), "")
    if sees:
        raise SpecError(f"--{sees}", flags[sees], f"trains a vision-language model: {PLANNED}")  # fmt: skip
    if _ANSWERS & set(flags) or str(flags.get("task", "")).upper() in _TASKS_WITHOUT_TRAINING:
        raise SpecError("file", base, "answers prompts or evaluates; it does not train")
    tokenizer = str(flags.get("tokenizer-type", ""))
    if re.search(
        r"(?:^|/)(?:train|finetune|infer)_(?:esm|geneformer|amplify)\w*\.py$", launch.program
    ):
        raise SpecError("file", posixpath.basename(launch.program), f"trains an encoder: {PLANNED}")
    if "Bert" in tokenizer:
        raise SpecError("--tokenizer-type", tokenizer, f"trains an encoder: {PLANNED}")


_OF_TRAINING = re.compile(
    r"per_device|micro|batch|learning_rate|(?:^|_)lr(?:_|$)|epoch|steps|(?<!pre)train|optim|gradient|lora|peft|deepspeed|fsdp|"
    r"packing|cutoff|warmup|stage|weight_decay|num_generations|config|recipe"
)
_NAMED_TRAINER = re.compile(
    r"train|tune|sft|dpo|grpo|ppo|kto|orpo|rlhf|reward|align|distill|run_clm|main|swift |llamafactory|trl "
)


def says_training(name: str) -> bool:
    """Whether an option, written with underscores, is one that only a training has."""
    return "eval" not in name and _OF_TRAINING.search(name) is not None


def refuse_without_training(program: str, names: Iterable[str], text: str) -> None:
    """Refuse a command that names a model, but nothing that only a training has.

    Args:
        names: of the options that it says, with underscores.
        text: the program's, where it is at hand.

    Raises:
        SpecError: nothing of it says that it trains.
    """
    base = posixpath.basename(program)
    says = any(says_training(name) for name in names)
    if not says and not _NAMED_TRAINER.search(base) and not re.search(r"Trainer\(|\.backward\(", text):  # fmt: skip
        raise SpecError("file", base, "does not train: its command names a model, and no batch, rate of learning or length of a run")  # fmt: skip


def unknown_program(launch: Launch, name: str) -> SpecError:
    """What is said of a program that no reader took.

    Raises:
        SpecError: what is known of it says more.
    """
    program, words = launch.program, launch.words
    if launch.left_open:
        raise Missing("the program", unset(launch.left_open)[0], shown(launch.left_open))
    base = posixpath.basename(program.split()[0])[:60] if program else "it starts"
    _refuse_what_trains_nothing(program, base, words, name)
    if base.startswith("."):
        raise SpecError("--args", None, ASKS_FOR_PROGRAM)
    if program and not usual_commands.says_anything(launch):
        raise SpecError(
            "file",
            name,
            f"describes no training run of its own: model, batch and sequence are inside {base} or "
            "in its configuration: import that one",
        )
    return SpecError(
        "file",
        name,
        f"describes no training run that is known: what {base} runs is its own; a training command of a "
        "known framework is expected",
    )


_SORTS_FILES = re.compile(
    r"(?:gather|collect|merge|plot|summari[sz]e|download|upload|preprocess)_\w+\.py$"
)
"""Programs before or after a training, by what their names begin with."""


def _refuse_what_trains_nothing(program: str, base: str, words: list[str], name: str) -> None:
    """Refuse what measures, prepares or generates, by its name or its options.

    Raises:
        SpecError: it does.
    """
    if re.search(r"(?i)benchmark|(?:^|_)bench(?:_|\.|$)", base):
        raise SpecError("file", name, f"{base} measures something; it does not train a model")
    if program in HOUSEKEEPING or _SORTS_FILES.match(base):
        raise SpecError("file", name, f"{program} prepares or checks something; it does not train a model")  # fmt: skip
    if {"gen-len", "prompt-len", "max-new-tokens"} & set(flags_of(words)):
        raise SpecError("file", name, f"{base} generates; it does not train")
