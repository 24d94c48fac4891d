"""YAML, JSON and TOML configurations: which framework's, by what is in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from meshwright.exports.bundle import STAMP_KEY
from meshwright.exports.stamp import Stamp, read_stamp
from meshwright.imports import cloud
from meshwright.imports.beside import switched_on
from meshwright.imports.config_maps import held_configuration
from meshwright.imports.document_refusals import refuse_other, refuse_part, refuse_record, unknown
from meshwright.imports.document_text import left_open, parsed
from meshwright.imports.filled_in import FILLED_IN, filled_in
from meshwright.imports.formats import (
    accelerate,
    arctic,
    areal,
    automodel,
    autotrain,
    axolotl,
    bridge_saved,
    bridge_tables,
    chatlearn,
    deepspeed,
    easydel,
    easyr1,
    fairseq2,
    fast_llm,
    flagscale,
    h2o,
    hf_tables,
    hyperpod,
    levanter,
    litgpt,
    llama_factory,
    llm_foundry,
    llm_on_ray,
    ludwig,
    maxtext,
    megatron_tables,
    megatron_yaml,
    mesh_transformer,
    mindformers,
    mindspeed_fsdp2,
    mindspeed_rl,
    nanotron,
    nemo,
    nemo_rl,
    neox,
    neuron,
    olmo,
    open_lm,
    openrlhf,
    oumi,
    paddle,
    picotron,
    prime_rl,
    primus,
    realhf,
    roll,
    swift,
    titan_tables,
    torchforge,
    torchtitan,
    torchtune,
    tunix,
    veomni,
    wandb_sweep,
    zeroband,
)
from meshwright.imports.formats import verl as hydra
from meshwright.imports.hydra_defaults import over_root
from meshwright.imports.inherited import whole_text, with_included
from meshwright.imports.logged_tables import unwrapped
from meshwright.imports.own import tables as own_tables
from meshwright.imports.reading import Given, Reading
from meshwright.imports.word_overrides import overridden

Data = dict[str, Any]


@dataclass(frozen=True)
class Document:
    """A file's table, with what stands around it."""

    data: Data
    text: str
    name: str
    given: Given
    folder: Path | None
    stamp: Stamp
    overrides: list[str]
    """Words of the command that starts it."""

    @property
    def told(self) -> Data:
        """The table with what its command says over it; what only the command says comes first."""
        made = overridden(self.data, self.overrides)
        return {key: made[key] for key in made if key not in self.data} | made


@dataclass(frozen=True)
class Format:
    """A kind of table: how it is known, and what reads it."""

    knows: Callable[[Document], bool]
    read: Callable[[Document], Reading | tuple[Reading, Stamp]]
    """A reading, with a stamp where what is inside has one of its own."""


class _Alone(Protocol):
    """A module that reads a table by itself."""

    def is_config(self, data: Data) -> bool: ...
    def read(self, data: Data, given: Given) -> Reading: ...


class _Beside(Protocol):
    """A module that reads a table with the files beside it."""

    def is_config(self, data: Data) -> bool: ...
    def read(self, data: Data, given: Given, folder: Path | None) -> Reading: ...


def _known_by(
    knows: Callable[[Data], bool], read: Callable[[Document], Reading | tuple[Reading, Stamp]]
) -> Format:
    return Format(lambda document: knows(document.data), read)


def _as_it_is(document: Document) -> Data:
    """The table where its command adds nothing to it."""
    return document.data


def _as_told(document: Document) -> Data:
    """The table where the words of its command change it."""
    return document.told


def _alone(table: Callable[[Document], Data], *modules: _Alone) -> tuple[Format, ...]:
    def one(module: _Alone) -> Format:
        return _known_by(module.is_config, lambda d: module.read(table(d), d.given))

    return tuple(map(one, modules))


def _beside(table: Callable[[Document], Data], *modules: _Beside) -> tuple[Format, ...]:
    def one(module: _Beside) -> Format:
        return _known_by(module.is_config, lambda d: module.read(table(d), d.given, d.folder))

    return tuple(map(one, modules))


def read(
    text: str,
    name: str,
    given: Given,
    folder: Path | None,
    stamp: Stamp,
    overrides: list[str] | None = None,
) -> tuple[Reading, Stamp]:
    """Return what a configuration says.

    Raises:
        SpecError: it cannot be parsed, or is of no known framework.
    """
    text = whole_text(text, folder)
    if (held := held_configuration(text, name)) is not None:
        reading, found = read(held[0], "config.yaml", given, folder, stamp, overrides)
        for job in held[1]:
            cloud.size(job, reading)
        return reading, found
    document = _document(text, name, given, folder, stamp, overrides or [])
    said = _format_of(document).read(document)
    return said if isinstance(said, tuple) else (said, document.stamp)


def _document(
    text: str, name: str, given: Given, folder: Path | None, stamp: Stamp, overrides: list[str]
) -> Document:
    """The table of a file, whole: inherited, included and filled in."""
    data = nemo_rl.with_inherited(nemo.whole(unwrapped(parsed(text, name))), folder)
    data = over_root(with_included(roll.with_parts(data, folder), text, folder), text, folder)
    if FILLED_IN.search(text):
        data = filled_in(data, dict(given.variables))
    if isinstance(stamped := data.get(STAMP_KEY), dict):
        stamp = read_stamp("\n".join(str(value) for value in stamped.values()))
    return Document(data, text, name, given, folder, stamp, overrides)


def _format_of(document: Document) -> Format:
    """The first format that knows a table: by its launcher, its own words, a part of it, or words of many.

    Between them what is no training run is refused: each refusal looks for words that the formats before it share.
    """
    data, text, name = document.data, document.text, document.name
    if (found := _first(LAUNCHERS, document)) is not None:
        return found
    refuse_other(data, text, name)
    if (found := _first(FRAMEWORKS, document)) is not None:
        return found
    refuse_record(data, name)
    if (found := _first(TRAINERS, document)) is not None:
        return found
    refuse_part(data, name)
    if (found := _first(OWN, document)) is not None:
        return found
    raise unknown(data, text, name)


def _first(formats: tuple[Format, ...], document: Document) -> Format | None:
    return next((one for one in formats if one.knows(document)), None)


def _starts_something(document: Document) -> bool:
    """Whether a table is a job's, with the command that it runs."""
    data = document.data
    started = any(isinstance(data.get(key), str) for key in ("run", "command"))
    return "apiVersion" in data or (started and not llm_foundry.is_config(data))


def _of_cloud(document: Document) -> tuple[Reading, Stamp]:
    return cloud.read(document.data, document.name, document.given, document.stamp, document.folder)


def _of_sweep(document: Document) -> tuple[Reading, Stamp]:
    return wandb_sweep.read(
        document.data, document.name, document.given, document.stamp, document.folder
    )


def _of_deepspeed(document: Document) -> Reading:
    """What DeepSpeed's JSON says, alone or with GPT-NeoX's words around it."""
    if neox.is_part(document.data):
        return neox.read(document.data, document.given)
    reading = deepspeed.read(document.data, document.given)
    if switched_on(document.folder, "LIGER"):
        reading.job["loss"] = "liger"
    if left := left_open(document.text):
        reading.guess(
            "file",
            f"is a template: {left} are left for what fills them in; nothing is taken from them",
        )
    return reading


def _of_verl(document: Document) -> Reading:
    here = document.folder / Path(document.name).name if document.folder is not None else None
    path = here if here and here.is_file() else None
    return hydra.read_verl_data(document.data, document.given, path=path)


def _of_openrlhf(document: Document) -> Reading:
    """What OpenRLHF's options say where they stand in a table."""
    reinforced = "rollout_batch_size" in document.data
    program = "openrlhf.cli.train_ppo_ray" if reinforced else "openrlhf.cli.train_sft"
    return openrlhf.read_openrlhf(program, _as_words(document.data), document.given)


def _as_words(data: Data) -> list[str]:
    """A flat table as the words of the command that takes it."""
    plain = {key: value for key, value in data.items() if not isinstance(value, (dict, list))}
    return [
        word
        for key, value in plain.items()
        if value is not None and value is not False
        for word in ([f"--{key}"] if value is True else [f"--{key}", str(value)])
    ]


def _inner(data: Data) -> Data:
    """LLaMA-Factory's table within another's."""
    inner = data.get("llamafactory", data.get("llama_factory"))
    return inner if isinstance(inner, dict) else {}


def _of_inner(document: Document) -> Reading:
    reading = llama_factory.read(_inner(document.data), document.given, document.folder)
    cloud.size(document.data, reading)
    return reading


def _of_trainer(document: Document) -> Reading:
    """What TrainingArguments' words say, with TRL's or alone."""
    trl = {"dataset_mixer", "trl", "dataset_mixture", "beta", "chat_template"} & set(document.data)
    title = "TRL YAML" if trl else "TrainingArguments YAML"
    return hf_tables.read(document.data, document.given, document.folder, title)


LAUNCHERS = (_known_by(wandb_sweep.is_config, _of_sweep), Format(_starts_something, _of_cloud))
"""What starts a program."""

FRAMEWORKS = (
    _known_by(deepspeed.is_config, _of_deepspeed),
    *_beside(_as_it_is, bridge_tables),
    *_alone(_as_it_is, bridge_saved),
    Format(
        lambda d: accelerate.is_config(d.data) and "model_name_or_path" not in d.data,
        lambda d: accelerate.read(d.data, d.given, d.folder),
    ),
    _known_by(open_lm.is_scale, lambda d: open_lm.read_scale(d.data, d.given, d.folder)),
    *_alone(_as_it_is, nanotron, megatron_yaml, llm_on_ray),
    *_beside(_as_it_is, megatron_tables, titan_tables),
    *_alone(_as_it_is, mindformers, mesh_transformer),
    *_beside(_as_told, chatlearn, mindspeed_rl, primus, flagscale),
    *_alone(
        _as_told,
        arctic,
        areal,
        automodel,
        easydel,
        easyr1,
        fairseq2,
        realhf,
        levanter,
        mindspeed_fsdp2,
        swift,
    ),
    *_alone(_as_told, roll, picotron, fast_llm, tunix, veomni, zeroband),
    *_beside(_as_told, oumi, autotrain, h2o, ludwig, axolotl, llama_factory),
    Format(
        lambda d: "_component_" in d.text and torchtune.is_config(d.data),
        lambda d: torchtune.read(d.data, d.given, d.overrides, d.text),
    ),
    *_alone(_as_told, neuron),
    *_beside(_as_told, nemo_rl),
    _known_by(nemo.is_config, lambda d: nemo.read(d.data, d.given, d.overrides)),
    Format(lambda d: hydra.is_config(d.data), _of_verl),
    *_beside(_as_told, torchforge, prime_rl),
    _known_by(
        torchtitan.is_config, lambda d: torchtitan.read_toml(d.data, d.given, d.overrides, d.folder)
    ),
    *_alone(_as_told, litgpt, olmo, llm_foundry, paddle),
    *_beside(_as_told, maxtext),
    *_alone(_as_it_is, neox),
    Format(
        lambda d: (
            "micro_train_batch_size" in d.data
            and bool({"pretrain", "actor_num_gpus_per_node"} & set(d.data))
        ),
        _of_openrlhf,
    ),
    Format(lambda d: llama_factory.is_config(_inner(d.data)), _of_inner),
)
"""Tables known by their own framework's words; the first that knows one reads it, so the order is part of the knowledge."""

TRAINERS = (
    *_beside(_as_told, hyperpod),
    Format(lambda d: hf_tables.is_config(d.data) and not own_tables.is_around(d.data), _of_trainer),
)
"""Tables in the words of transformers' Trainer, which records of runs share."""

OWN = (Format(lambda d: cloud.starts_training(d.data), _of_cloud), *_beside(_as_told, own_tables))
"""Tables of one's own program, which parts of others resemble."""
