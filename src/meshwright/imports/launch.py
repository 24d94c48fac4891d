"""Which of a script's commands trains, on how many devices, with which words."""

from __future__ import annotations

import copy
import posixpath
import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from meshwright.imports.command_words import opened, split
from meshwright.imports.formats.trl_command import as_launched
from meshwright.imports.launch_counts import count
from meshwright.imports.reading import Given
from meshwright.imports.shell.follow import read_script
from meshwright.imports.shell.state import Script
from meshwright.imports.shell.words import unmarked, unset
from meshwright.specs.errors import SpecError

_TRAINERS = re.compile(
    r"(?:^|/)(?:[\w-]*(?:pretrain|train|finetune|sft|dpo|grpo|ppo|reward|posttrain|run_recipe|run_clm|"
    r"deepy|main)[\w-]*\.py)$"
)
_TRAINING_MODULE = re.compile(
    r"\w+(?:\.\w+)*\.\w*(?:train|finetune|sft|dpo|grpo|ppo)\w*(?<!_utils)"
)
"""A module that is started by its dotted name, whose last part says that it trains."""
_OTHER = re.compile(
    r"(?:evaluat|eval_|_eval|text_gen|generat|infer|convert|feature_extract|extract_(?:feature|hidden)|preprocess|prepare_|merge|export|serve|server|prune|"
    r"get_reward|vllm-serve|annotat|__editable__|quantiz|analy[sz]|(?:^|[/_])plot_|download|prompt|retriev|index|tasks/(?:\w+/)*main|checkpoint_util|trim|conver|hf2|2hf|tokeniz|mmlu|(?:^|/)(?:validate|test_\w+|(?:vis_)?chatbot(?:_\w+)?)\.py)",
    re.IGNORECASE,
)
_MODULES = (
    "verl.trainer", "verl.experimental", "openrlhf.cli", "maxtext", "MaxText", "axolotl", "llamafactory", "torchtitan", "recipe.",
    "nanotron", "swift.cli", "torchtune", "composer", "fastchat", "trl", "oat.experiment", "primus", "skyrl", "skyrl_train",
    "llama_recipes.finetuning", "llama_cookbook.finetuning",
)  # fmt: skip
_TOOLS = (
    "llamafactory-cli",
    "axolotl",
    "tune",
    "swift",
    "megatron",
    "trl",
    "composer",
    "xtuner",
    "open_instruct",
    "oumi",
    "litgpt",
    "autotrain",
    "primus-cli",
    "nemo",
)
_IDLE_VERBS = frozenset({
    "fetch", "preprocess", "delinearize-llama4", "webui", "web-ui", "webchat", "api", "chat", "env", "version", "app", "cp", "ls", "cat",
    "import", "validate", "deploy", "rollout", "sample", "copy-cfg", "list-cfg", "check-custom-dataset", "log-dataset", "judge", "synth", "login",
})  # fmt: skip
"""What tools do that train nothing, beside what the names of programs say (`trl vllm-serve`)."""
_BINARY = re.compile(r"train_\w*cu")
"""What llm.c's makefile builds; the words of `make train_gpt2cu` start nothing."""
_RUNS_NOTEBOOKS = re.compile(
    r"(?:^|[/ ])(?:papermill|jupyter[ -](?:execute|nbconvert .*--execute|run))(?: |$)"
)
_LAUNCHERS = (
    "torchrun",
    "deepspeed",
    "accelerate",
    "srun",
    "mpirun",
    "torch.distributed.run",
    "torch.distributed.launch",
)


_RUNNERS = "uv|poetry|pipenv|pdm|rye|pixi"
"""What starts a program in an environment of its own."""


@dataclass
class Launch:
    """The training command of a script.

    `program` is what it runs (a file, a module, or a tool's name with its verb), `words` what
    follows, `launcher` what comes before.
    """

    program: str = ""
    words: list[str] = field(default_factory=list)
    launcher: list[str] = field(default_factory=list)
    hosts: int = 0
    per_host: int = 0
    devices: int = 0
    other: str = ""
    runs: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    left_open: str = ""
    """The program as it is written, where part of its name is for the script's caller to say."""

    def option(self, *names: str) -> str:
        """A launcher's option, without what the script does not state; empty where it is absent."""
        return launch_option(self.launcher, names)

    def leaves_open(self, name: str) -> bool:
        """Whether an option is there, with a value that only the machine knows."""
        return bool(unset(self.option(name)))

    def is_python_alone(self) -> bool:
        """Whether nothing but Python stands before the program: one process of one host."""
        words = " ".join(w for w in self.launcher if not w.startswith("-"))
        return re.fullmatch(rf"(?:(?:{_RUNNERS}) run )?python[\d.]*", words) is not None

    def starts_ranks(self) -> bool:
        """Whether a launcher of distributed training stands before the program."""
        return any(posixpath.basename(w) in ("accelerate", "torchrun", "deepspeed") for w in self.launcher)  # fmt: skip


def followed(
    text: str, name: str, given: Given, folder: Path | None
) -> tuple[Script, Launch | None]:
    """A script and its training command; where guesses are wanted and nothing trains, what is undecided counts as true.

    Raises:
        SpecError: the script is too long or too deep to be followed, or trains only where a switch of its is on.
    """
    on = given.cluster
    machine = (on.nodes, on.gpus_per_node) if on is not None else None
    chosen = int(given.config) if given.config.isdigit() else 0

    def read(
        assume: bool, switched: tuple[str, str] | None = None, fresh: bool = False
    ) -> tuple[Script, Launch | None]:
        said = dict(given.variables) | dict([switched] if switched else []), list(given.arguments)
        script = read_script(text, name, folder, *said, given.guess, machine, assume, fresh)
        return script, find_launch(script, chosen)

    script, launch = read(assume=False)
    if script.doubts and (given.guess if launch is None else not launch.program):
        again, found = read(assume=True)
        if found is not None and found.program and not found.other:
            return again, found
    if launch is None and _ABSENT.search(
        text
    ):  # a loop that goes on from its files begins without them
        again, found = read(assume=False, fresh=True)
        if found is not None and not found.other:
            return again, found
    if launch is None or launch.other:
        for switch, off in _SWITCH.findall(text)[:_MOST]:
            if switch in given.variables:
                continue
            again, found = read(assume=False, switched=(switch, _ON[off.lower()]))
            if found is None or found.other:
                continue
            if not given.guess:
                raise SpecError("--set", None, f"the script trains where {switch} is not {off}, which it takes unless told: --set {switch}={_ON[off.lower()]} says so, --guess takes that")  # fmt: skip
            again.switched = f"{switch}={_ON[off.lower()]}"
            return again, found
    return script, launch


_ABSENT = re.compile(r"\[ ! -[defs] ")
_ON = {"0": "1", "false": "true", "no": "yes", "off": "on"}
_SWITCH = re.compile(
    r"(?im)^[^\S\n]*(?:export[^\S\n]+)?([A-Z_]\w*)=[\"']?\$\{\1:-(0|false|no|off)\}"
)
"""A switch that is off unless the environment turns it on (`RUN=${RUN:-0}`)."""
_MOST = 6
"""Switches of a script that are tried."""


def find_launch(script: Script, chosen: int = 0) -> Launch | None:
    """Return the command that trains: the one with a known trainer, else the most flags.

    Of several that train, `chosen` counts from 1; `runs` of the result says how many there are. None where there is no command with a program; `other` names a program that does not train.
    """
    best: tuple[tuple[int, int], Launch] | None = None
    trainings: list[Launch] = []
    ended: int | None = None
    for command in script.commands:
        if ended is not None and command.exits > ended:
            continue  # the script has trained and ended
        if command.words and posixpath.basename(command.words[0]) in ("echo", "printf", "cat"):
            continue
        found = _at_program(opened(command.words))
        if found is None:
            continue
        found.environment = command.environment
        flags = sum(word.startswith("-") or "=" in word for word in found.words)
        score = (2 * _trains(found.program) - bool(_OTHER.search(found.program)), flags)
        if score[0] > 1 and ended is None:
            ended = command.exits
        if score[0] > 1 and all(_run_of(one) != _run_of(found) for one in trainings):
            trainings.append(found)
        if best is None or score > best[0]:
            best = score, found
    if best is None and script.captured:
        kept = copy.copy(script)
        kept.commands, kept.captured = script.captured, []
        found = find_launch(kept, chosen)
        if found is not None and _trains(found.program) > 0:
            return found
    if best is None:
        best = _in_variables(script)
    if best is None:
        return None
    (rank, _), launch = best
    if 0 < chosen <= len(trainings):
        launch = trainings[chosen - 1]
    launch.runs = max(1, len(trainings))
    if rank < 0:
        launch.other = launch.program
    count(script, launch)
    return launch


_ASIDE = re.compile(r"/|name|seed|port|dir")


def _run_of(launch: Launch) -> tuple[str, ...]:
    """What tells one run from another: program and options, without names of places and of the run."""
    options = [
        word
        for before, word in pairwise(["", *launch.words])
        if not _ASIDE.search(word) and not (before.startswith("-") and "=" not in before and _ASIDE.search(before))
    ]  # fmt: skip
    return (launch.program, *options)


def _trains(program: str) -> bool:
    first = program.split()[0] if program else ""
    if first == "litgpt":
        return re.search(r" (?:pretrain|finetune)", program) is not None
    if posixpath.basename(first) in _TOOLS:
        return not _OTHER.search(program) and program.rpartition(" ")[2] not in _IDLE_VERBS
    if _BINARY.fullmatch(posixpath.basename(first)):
        return True
    if of_maxtext_without_training(first):
        return False
    named = _TRAINERS.search(first) or _TRAINING_MODULE.fullmatch(first)
    return first.endswith(".ipynb") or bool(named) or first.startswith(_MODULES)


def of_maxtext_without_training(program: str) -> bool:
    """Whether a program of MaxText converts, checks, decodes or measures and trains nothing."""
    rest = program.lower().partition("maxtext")[2]
    return "logit_checker" in program or re.search(r"conver|engine|serv(?:e|ing|er)|ckpt|checkpoint(?:_|\.|$)|decode|infer|quantize|param_only|evaluat|microbenchmark|download|[/.]tests?[/.]", rest) is not None  # fmt: skip


_COMMAND = re.compile(r"(?i)(?:^|_)(?:cmd|command)$")


def _in_variables(script: Script) -> tuple[tuple[int, int], Launch] | None:
    """A command, or flags, that a script only collects in variables, for another script to use."""
    for name, value in script.scope.variables.items():
        found = _at_program(opened(split(value))) if _COMMAND.search(name) and isinstance(value, str) else None  # fmt: skip
        if found is not None and _trains(found.program) and not _OTHER.search(found.program):
            return (2, len(found.words)), found
    flags: list[str] = []
    for name, value in script.scope.variables.items():
        words = value if isinstance(value, list) else split(value) if value.count("--") > 2 else []
        if sum(word.startswith("--") for word in words) > 1 and "[" not in name:
            program = _at_program(opened(words))
            flags += program.words if program is not None else words
    if not any(re.match(r"--num[-_]layers|--tensor[-_]model", word) for word in flags):
        return None
    return (0, len(flags)), Launch("", flags)


HOUSEKEEPING = (
    "build", "pip", "venv", "ensurepip", "http.server", "json.tool", "compileall", "twine", "wheel", "pytest", "unittest",
    "nltk.downloader", "spacy", "ipykernel", "piptools", "zipfile", "tarfile", "virtualenv", "pre_commit", "ruff", "mypy",
)  # fmt: skip
"""Python's own modules that prepare something and train nothing."""


def _is_module(name: str, before: list[str]) -> bool:
    """Whether the word after `--module` names what a launcher starts."""
    starts = any(posixpath.basename(word) in _LAUNCHERS for word in before)
    return name.startswith(_MODULES) or (
        starts and re.fullmatch(r"\w+(?:\.\w+)+", name) is not None
    )


_SWITCHES = frozenset({
    "no-python", "standalone", "enable-cpu-affinity", "enable-numa-affinity", "quiet", "debug", "multi-gpu", "cpu", "tpu", "tpu-cluster", "no-tpu-cluster",
    "tpu-use-sudo", "same-network", "use-deepspeed", "use-fsdp", "use-megatron-lm", "use-parallelism-config", "downcast-bf16", "dynamo-use-dynamic",
    "dynamo-use-fullgraph", "dynamo-use-regional-compilation", "no-local-rank", "force-multi", "no-ssh", "no-ssh-check", "save-pid", "bind-cores-to-rank", "run-path",
})  # fmt: skip
"""Launchers' options that take no value: a program may follow (accelerate/commands/launch.py, torch/distributed/run.py, deepspeed/launcher/runner.py)."""


_TAKES_BATCH = re.compile(r"(?:^| )--per[_-]device[_-]train[_-]batch[_-]size[ =]")
"""What only a command that trains has, whatever its tool is called (`autoalign-cli sft`)."""


def _at_program(words: list[str]) -> Launch | None:
    """Split a command at the program that it runs."""
    places: list[tuple[int, int, str]] = []
    if words and _RUNS_NOTEBOOKS.search(" ".join(words)):
        for index, word in enumerate(words):
            if unmarked(word).strip().endswith(".ipynb"):
                return Launch(unmarked(word).strip(), list(words[index + 1 :]), words[:index])
    for index, word in enumerate(words):
        bare = unmarked(word).strip()
        if word.startswith("-") and word != "-m":
            continue
        base = posixpath.basename(bare)
        after = words[index + 1] if index + 1 < len(words) else ""
        if (
            word == "-m"
            and after
            and not after[0].isdigit()  # a mode of `install` or `mkdir`
            and not after.startswith(("torch.distributed", "accelerate", "deepspeed", "debugpy"))
        ):
            verb = words[index + 2] if index + 2 < len(words) else ""
            if after == "swift.cli.main" and verb.isalpha():
                places.append((index + 1, index + 3, f"swift {verb}"))
            else:
                places.append((index + 1, index + 2, after))
        elif word in ("--module", "--") or not base:
            continue
        elif base == "nemo" and after == "llm":  # NeMo 2's own command
            verb = words[index + 2] if index + 2 < len(words) else ""
            places.append((index, index + 3, f"nemo {verb}"))
        elif (
            (index and words[index - 1] == "--module" and _is_module(bare, words[:index]))
            or (
                base.endswith(".py")
                and not re.match(r"[\w.+]+=", bare)
                and not (
                    index
                    and words[index - 1].startswith("--")
                    and "=" not in words[index - 1]
                    and words[index - 1][2:].replace("_", "-") not in _SWITCHES
                    and not _TRAINERS.search(bare)
                )
            )
            or (_BINARY.fullmatch(base) and after.startswith("-") and "/" in bare)
        ):
            places.append((index, index + 1, bare))
        elif (
            base in _TOOLS
            and after
            and not after.startswith("-")
            and words[index - 1 if index else 0] not in ("--extra", "--with", "--group")
        ):
            places.append((index, index + 2, f"{base} {after}"))
    if not places and _TAKES_BATCH.search(" ".join(words)):
        named = [posixpath.basename(words[0]), *(one for one in words[1:2] if one.isalpha())]
        places = [(0, len(named), " ".join(named))]
    if not places:
        return None
    ranked = [place for place in places if _trains(place[2]) and not _OTHER.search(place[2])]
    # A manager of jobs comes before the program that it starts (`mason.py … -- accelerate launch`).
    chosen = next((p for p in ranked if posixpath.basename(p[2]) not in ("mason.py",)), None) or (
        ranked[0] if ranked else places[0]
    )
    start, after_program, program = chosen
    rest = words[after_program:]
    if program == "tune run":  # torchrun's options stand between it and the recipe
        return Launch(program, list(rest), [*words[:start], *rest])
    end = next((i for i, word in enumerate(rest) if word in ("&&", ";", "|", "&")), len(rest))
    written = next(
        (word for word in words[start:after_program] if unset(word.rsplit("/", 1)[-1])), ""
    )
    rest, before = list(rest[:end]), words[:start]
    if (
        program == "axolotl train"
    ):  # accelerate's or torchrun's options stand after `--`, older ones before it
        before = [*before, *_LAUNCHED_BY.get(launch_option(rest, ("launcher",)), ("accelerate", "launch")), *rest]  # fmt: skip
        rest = rest[: rest.index("--")] if "--" in rest else rest
    if program.startswith("trl "):
        around, rest = as_launched(rest)
        before = [*before, *around]
    return Launch(program, rest, before, left_open=written)


_LAUNCHED_BY: dict[str, tuple[str, ...]] = {"torchrun": ("torchrun",), "python": ("python",)}
"""What `axolotl train --launcher NAME` starts; nothing said: accelerate."""


def launch_option(words: list[str], names: tuple[str, ...]) -> str:
    """The value of a launcher's option; dashes and underscores are the same."""
    wanted = {name.replace("_", "-") for name in names if name}
    for index, word in enumerate(words):
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or name.replace("_", "-") not in wanted:
            continue
        return value if equals else words[index + 1] if index + 1 < len(words) else ""
    return ""
