"""What whoever launches fills in: data, a tokenizer, a folder for checkpoints, by the same names for every framework.

A run that nobody told its data must not train on random tokens for days, nor lose them for want of a folder: the
scripts end with a sentence instead. `DATA=mock` asks for random tokens, to time a layout.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.exports.model_names import repository
from meshwright.specs.model import Model

WORDS = "$INPUTS"
"""What the block leaves for the program, as the command names it; split by the shell into its words."""
PLACEHOLDER = "DATA"
"""What a tool's file for fine-tuning names as its data set, until its script says the one that was filled in."""
SAVED_EVERY = 500
"""Steps from one checkpoint to the next."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """How a program is told its data and where its checkpoints lie.

    `data` says to people what `DATA` names ("": the program brings its own). The rest are words of the program:
    `mock` for random tokens, `real` for data and tokenizer, `kept` for checkpoints, `lost` for none of them.
    """

    data: str = ""
    mock: str = ""
    real: str = ""
    kept: str = ""
    lost: str = ""
    tokenizer: str | None = None
    """The usual tokenizer; "": it must be told; None: the program takes none."""
    tunes: bool = False
    """Whether it trains further on rows of its own: no random tokens, and its file names the folder."""

    @property
    def defaults(self) -> dict[str, str]:
        """The variables to fill in, with the value that each has where nobody does."""
        found = {"DATA": ""} if self.data else {}
        if self.tokenizer is not None:
            found["TOKENIZER"] = self.tokenizer
        return found if self.tunes else found | {"CHECKPOINTS": ""}

    @property
    def words(self) -> tuple[str, ...]:
        """What the command has of it."""
        return (WORDS,) if self.mock or self.real or self.kept or self.lost else ()


def tokenizer_of(model: Model) -> str:
    """Where a model's own tokenizer lies on the hub; "" where nobody published one."""
    return repository(model) or ""


def block(inputs: Inputs) -> str:
    """Shell lines that take what was filled in, or end with a sentence that names what was not."""
    # No apostrophe: bash would take it for a quote inside ${NAME:?...}.
    short = {
        "DATA": inputs.data if inputs.tunes else f"{inputs.data}, or mock",
        "TOKENIZER": "a name on the hub, or a folder",
        "CHECKPOINTS": "a folder that every host sees, or none",
    }
    says = {
        "DATA": inputs.data if inputs.tunes else f"{short['DATA']}: random tokens, nothing kept",
        "TOKENIZER": f"the tokenizer that made the data: {short['TOKENIZER']}",
        "CHECKPOINTS": f"{short['CHECKPOINTS']}; read at the start, written every {SAVED_EVERY} steps",
    }
    lines = ["# Yours to fill in, here or in the environment:"]
    lines += [
        f"{name}=${{{name}:-{value}}}  # {says[name]}" for name, value in inputs.defaults.items()
    ]
    lines += _decided(
        inputs, {name: f"${{{name}:?is not set: {one}}}" for name, one in short.items()}
    )
    names = [*inputs.defaults, *(["INPUTS"] if inputs.words else [])]
    return "\n".join([*lines, f"export {' '.join(names)}"]) + "\n"


def note(inputs: Inputs) -> str:
    """What a bundle says of it to whoever starts it."""
    names = ", ".join(inputs.defaults)
    if inputs.tunes:
        return f"{names} is yours to fill in, at the top of the script or in its environment: {inputs.data}"
    timed = ": DATA=mock times the layout on random tokens" if inputs.data else ""
    return f"{names} are yours to fill in, at the top of the script or in its environment{timed}"


def _decided(inputs: Inputs, asked: dict[str, str]) -> list[str]:
    if inputs.tunes:
        return [f': "{asked["DATA"]}"', f'INPUTS="{inputs.real}"']
    folder = _folder(inputs, asked["CHECKPOINTS"])
    if not inputs.data:
        return folder
    told = [f'  INPUTS="{inputs.real}"'] if inputs.words else []
    if inputs.tokenizer is not None:
        told = [f'  : "{asked["TOKENIZER"]}"', *told]
    mock = f'INPUTS="{" ".join(filter(None, (inputs.mock, inputs.lost)))}"' if inputs.words else ":"
    inner = [f"  {line}" for line in folder]
    return [f'if [ "{asked["DATA"]}" = mock ]; then', f"  {mock}", "else", *told, *inner, "fi"]


def _folder(inputs: Inputs, asked: str) -> list[str]:
    if not inputs.kept:
        return [f': "{asked}"']
    lines = [f'if [ "{asked}" != none ]; then', f'  INPUTS="$INPUTS {inputs.kept}"']
    return [*lines, *(["else", f'  INPUTS="$INPUTS {inputs.lost}"'] if inputs.lost else []), "fi"]


TEXTS = "a data set of the hub with a text each (NAME or NAME:CONFIGURATION), or JSON lines"
TOKENS = "folders of tokens that datatrove made, a folder of JSON lines, or a data set of the hub with a text each"
_INDEXED = "prefixes of the data that tools/preprocess_data.py of Megatron-LM made"


def of_megatron(model: Model) -> Inputs:
    """Flags of `pretrain_gpt.py`."""
    return Inputs(
        data=_INDEXED,
        mock="--mock-data --tokenizer-type NullTokenizer",
        real="--data-path $DATA --split 99,1,0 --tokenizer-type HuggingFaceTokenizer --tokenizer-model $TOKENIZER",
        kept=f"--save $CHECKPOINTS --load $CHECKPOINTS --save-interval {SAVED_EVERY}",
        tokenizer=tokenizer_of(model),
    )


def of_bridge(model: Model) -> Inputs:
    """Overrides of a recipe, which has a folder of its own unless told another."""
    return Inputs(
        data=_INDEXED,
        real="dataset.data_path=[${DATA// /,}] tokenizer.tokenizer_type=HuggingFaceTokenizer "
        "tokenizer.tokenizer_model=$TOKENIZER",
        kept="checkpoint.save=$CHECKPOINTS checkpoint.load=$CHECKPOINTS "
        f"checkpoint.save_interval={SAVED_EVERY}",
        lost="checkpoint.save=null checkpoint.load=null",
        tokenizer=tokenizer_of(model),
    )


def of_primus(model: Model) -> Inputs:
    """Overrides of its YAML, which asks for random tokens."""
    return Inputs(
        data=_INDEXED.replace("prefixes", "the prefix"),
        real="mock_data=false train_data_path=$DATA tokenizer_type=HuggingFaceTokenizer "
        "tokenizer_model=$TOKENIZER",
        kept=f"save=$CHECKPOINTS load=$CHECKPOINTS save_interval={SAVED_EVERY}",
        tokenizer=tokenizer_of(model),
    )


def of_maxtext(model: Model) -> Inputs:
    """Overrides of its YAML, which asks for random tokens."""
    return Inputs(
        data="ArrayRecord files, such as /data/train-*.array_record, of a bucket mounted on every host",
        real="dataset_type=grain grain_train_files=$DATA tokenizer_type=huggingface tokenizer_path=$TOKENIZER",
        kept="base_output_directory=$CHECKPOINTS enable_checkpointing=true "
        f"checkpoint_period={SAVED_EVERY}",
        tokenizer=tokenizer_of(model),
    )


def of_recipe(model: Model) -> Inputs:
    """A torchtitan recipe reads what was filled in itself, and its tokenizer from HF_ASSETS_PATH."""
    return Inputs(data=TEXTS)


def of_nanotron(model: Model) -> Inputs:
    """So does the program that completes nanotron's file."""
    return Inputs(data=TOKENS, tokenizer=tokenizer_of(model))


_ALPACA = "a data set of the hub whose rows are instruction, input and output"
_TUNERS = {
    "trl": ("a data set of the hub with a text each, or a folder of JSON lines", "--dataset_name $DATA"),
    "axolotl": (_ALPACA, "--datasets=[{'path':'$DATA','type':'alpaca'}]"),
    "llama-factory": (_ALPACA, "dataset=$DATA"),
    "torchtune": (_ALPACA, "dataset.source=$DATA"),
    "verl": ("a parquet file of conversations under messages", "data.train_files=$DATA"),
}  # fmt: skip
"""What a tool for fine-tuning reads, and the word that says it over its file.

TRL's HfArgumentParser, Fire in axolotl, and OmegaConf in LLaMA-Factory and torchtune let a later word win.
"""


def of_tuner(tool: str) -> Inputs:
    """What a tool for fine-tuning is told; it ends up in the folder that its file names."""
    data, word = _TUNERS[tool]
    return Inputs(data=data, real=word, tunes=True)
