"""YAML, JSON and TOML configurations: which framework's, by what is in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from meshwright.exports.bundle import STAMP_KEY
from meshwright.exports.stamp import Stamp, read_stamp
from meshwright.imports import cloud
from meshwright.imports.beside import switched_on
from meshwright.imports.config_maps import documents as yaml_documents
from meshwright.imports.config_maps import held_configuration
from meshwright.imports.document_refusals import refuse_other, refuse_part, refuse_record, unknown
from meshwright.imports.filled_in import FILLED_IN, filled_in
from meshwright.imports.formats import (
    accelerate,
    arctic,
    areal,
    automodel,
    axolotl,
    bridge_saved,
    bridge_tables,
    chatlearn,
    deepspeed,
    easyr1,
    fairseq2,
    fast_llm,
    flagscale,
    hf_tables,
    hyperpod,
    levanter,
    litgpt,
    llama_factory,
    llm_foundry,
    maxtext,
    megatron_tables,
    megatron_yaml,
    mindformers,
    mindspeed_fsdp2,
    mindspeed_rl,
    nanotron,
    nemo,
    nemo_rl,
    neox,
    neuron,
    olmo,
    openrlhf,
    oumi,
    paddle,
    picotron,
    prime_rl,
    primus,
    realhf,
    roll,
    titan_tables,
    torchtitan,
    torchtune,
    tunix,
    veomni,
    wandb_sweep,
)
from meshwright.imports.formats import verl as hydra
from meshwright.imports.inherited import whole_text, with_included
from meshwright.imports.logged_tables import unwrapped
from meshwright.imports.own import tables as own_tables
from meshwright.imports.reading import Given, Reading
from meshwright.imports.word_overrides import overridden
from meshwright.specs.errors import SpecError
from meshwright.specs.foreign import Limits, parse_json, parse_toml, parse_yaml

_LIMITS = Limits(size_bytes=4_000_000, any_number=True, last_wins=True)
Data = dict[str, Any]


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
    return _read_one(text, name, given, folder, stamp, overrides or [])


def _read_one(
    text: str, name: str, given: Given, folder: Path | None, stamp: Stamp, overrides: list[str]
) -> tuple[Reading, Stamp]:
    """What a file of one configuration says."""
    data = nemo_rl.with_inherited(nemo.whole(unwrapped(parsed(text, name))), folder)
    data = with_included(roll.with_parts(data, folder), text, folder)
    if FILLED_IN.search(text):
        data = filled_in(data, dict(given.variables))
    if isinstance(stamped := data.get(STAMP_KEY), dict):
        stamp = read_stamp("\n".join(str(value) for value in stamped.values()))
    started = any(isinstance(data.get(key), str) for key in ("run", "command"))
    sweeps = wandb_sweep.is_config(data)
    if sweeps or "apiVersion" in data or (started and not llm_foundry.is_config(data)):
        return (wandb_sweep if sweeps else cloud).read(data, name, given, stamp, folder)
    refuse_other(data, text, name)
    if deepspeed.is_config(data):
        return _of_deepspeed(data, text, name, given, folder), stamp
    if bridge_tables.is_config(data):
        return bridge_tables.read(data, given, folder), stamp
    if bridge_saved.is_config(data):
        return bridge_saved.read(data, given), stamp
    if accelerate.is_config(data) and "model_name_or_path" not in data:
        return accelerate.read(data, given, folder), stamp
    if nanotron.is_config(data):
        return nanotron.read(data, given), stamp
    if megatron_yaml.is_config(data):
        return megatron_yaml.read(data, given), stamp
    for tables in (megatron_tables, titan_tables):
        if tables.is_config(data):
            return tables.read(data, given, folder), stamp
    if mindformers.is_config(data):
        return mindformers.read(data, given), stamp
    for around in (chatlearn, mindspeed_rl, primus, flagscale):
        if around.is_config(data):
            return around.read(_told(data, overrides), given, folder), stamp
    for one in (
        arctic,
        areal,
        automodel,
        easyr1,
        fairseq2,
        realhf,
        levanter,
        mindspeed_fsdp2,
        roll,
        picotron,
        fast_llm,
        tunix,
        veomni,
    ):
        if one.is_config(data):
            return one.read(_told(data, overrides), given), stamp
    for tuner in (oumi, axolotl, llama_factory):
        if tuner.is_config(data):
            return tuner.read(overridden(data, overrides), given, folder), stamp
    if "_component_" in text and torchtune.is_config(data):
        return torchtune.read(data, given, overrides, text), stamp
    if neuron.is_config(data):
        return neuron.read(_told(data, overrides), given), stamp
    if nemo_rl.is_config(data):
        return nemo_rl.read(_told(data, overrides), given, folder), stamp
    if nemo.is_config(data):
        return nemo.read(data, given, overrides), stamp
    if "actor_rollout_ref" in data or "@actor_rollout_ref" in str(data.get("defaults", "")):
        here = folder / Path(name).name if folder is not None else None
        return hydra.read_verl_data(
            data, given, path=here if here and here.is_file() else None
        ), stamp
    if prime_rl.is_config(data):
        return prime_rl.read(_told(data, overrides), given), stamp
    if torchtitan.is_config(data):
        return torchtitan.read_toml(data, given, overrides, folder), stamp
    if litgpt.is_config(data):
        return litgpt.read(overridden(data, overrides), given), stamp
    for one in (olmo, llm_foundry, paddle):
        if one.is_config(data):
            return one.read(_told(data, overrides), given), stamp
    if maxtext.is_config(data):
        return maxtext.read(_told(data, overrides), given, folder), stamp
    if neox.is_config(data):
        return neox.read(data, given), stamp
    if "micro_train_batch_size" in data and {"pretrain", "actor_num_gpus_per_node"} & set(data):
        program = (
            "openrlhf.cli.train_ppo_ray"
            if "rollout_batch_size" in data
            else "openrlhf.cli.train_sft"
        )
        return openrlhf.read_openrlhf(program, _as_words(data), given), stamp
    inner = data.get("llamafactory", data.get("llama_factory"))
    if isinstance(inner, dict) and llama_factory.is_config(inner):
        reading = llama_factory.read(inner, given, folder)
        cloud.size(data, reading)
        return reading, stamp
    refuse_record(data, name)
    if hyperpod.is_config(data):
        return hyperpod.read(_told(data, overrides), given, folder), stamp
    if hf_tables.is_config(data) and not own_tables.is_around(data):
        return hf_tables.read(data, given, folder, _trainer_title(data)), stamp
    refuse_part(data, name)
    if cloud.starts_training(data):
        return cloud.read(data, name, given, stamp, folder)
    if own_tables.is_config(data):
        return own_tables.read(_told(data, overrides), given, folder), stamp
    raise unknown(data, text, name)


def _told(data: Data, words: list[str]) -> Data:
    """A configuration with what its command says over it; what only the command says comes first."""
    made = overridden(data, words)
    return {key: made[key] for key in made if key not in data} | made


def _as_words(data: Data) -> list[str]:
    """A flat table as the words of the command that takes it."""
    plain = {key: value for key, value in data.items() if not isinstance(value, (dict, list))}
    return [
        word
        for key, value in plain.items()
        if value is not None and value is not False
        for word in ([f"--{key}"] if value is True else [f"--{key}", str(value)])
    ]


def _trainer_title(data: Data) -> str:
    return (
        "TRL YAML"
        if {"dataset_mixer", "trl", "dataset_mixture", "beta", "chat_template"} & set(data)
        else "TrainingArguments YAML"
    )


def _one_document(text: str, name: str) -> str:
    """Of several YAML documents in a file (Kubernetes objects) the one that starts most training."""
    parts = yaml_documents(text)
    if len(parts) < 2:
        return text
    starts = [
        sum(map(cloud.training, cloud.commands(parse_yaml(_tamed(p), "file", name, _LIMITS))))
        for p in parts
    ]
    if any(starts):
        return parts[starts.index(max(starts))]
    return next((one for one in parts if re.search(r"^\s+containers:", one, re.MULTILINE)), text)


def parsed(text: str, name: str) -> Data:
    """A TOML, JSON or YAML document, by the ending of its file's name or by how it begins.

    Raises:
        SpecError: no such document, or no table.
    """
    suffix = Path(name).suffix.lower()
    if suffix == ".toml":
        data: Any = parse_toml(text, "file", name)
    elif suffix in (".json", ".jsonc") or text.lstrip()[:1] == "{":
        try:
            data = parse_json(without_comments(text), "file", name, _LIMITS)
        except SpecError:
            if suffix in (".json", ".jsonc"):
                # A template: what its placeholders stand for is not said.
                data = parse_json(_without_placeholders(text), "file", name, _LIMITS)
            else:
                # Flow-style YAML looks like JSON, too: words without quotes, comments with a #.
                data = parse_yaml(text, "file", name, _LIMITS)
    elif suffix in (".yaml", ".yml") or re.search(r"^[\w\"'-]+\s*:", text, re.MULTILINE):
        data = parse_yaml(_tamed(_one_document(text, name)), "file", name, _LIMITS)
        if isinstance(data, dict):
            data = {key: one for key, one in data.items() if key not in _merged(text)}
    elif re.search(r"^\[[\w.]+\]", text, re.MULTILINE):
        data = parse_toml(text, "file", name)
    else:
        raise SpecError(
            "file",
            name,
            "no known format; a training script, recipe, log or configuration of a "
            "known framework is expected",
        )
    if not isinstance(data, dict):
        raise SpecError("file", name, "describes no training run: it holds a list or a word; a table of named fields is expected")  # fmt: skip
    return data


def _merged(text: str) -> set[str]:
    """Tables at the outside that only hold what `<<` takes into the others."""
    named = dict(re.findall(r"(?m)^([\w.-]+):[^\S\n]*&([\w-]+)", text))
    return {key for key, anchor in named.items() if re.search(rf"(?m)^<<:[^\n]*\*{anchor}\b", text)}


def _without_placeholders(text: str) -> str:
    """JSON whose values that nobody filled in (none, or a word in capitals) are left to others."""
    return re.sub(
        r"(:(?:\s*+(?=[A-Z])|[^\S\n]*+))(?:[A-Z][A-Za-z0-9_]*+)?+(?=[^\S\n]*+\n|\s*+[,}])",
        r'\1"auto"',
        without_comments(text),
    )


def _of_deepspeed(data: Data, text: str, name: str, given: Given, folder: Path | None) -> Reading:
    """What DeepSpeed's JSON says, alone or with GPT-NeoX's words around it."""
    if neox.is_part(data):
        return neox.read(data, given)
    reading = deepspeed.read(data, given)
    if switched_on(folder, "LIGER"):
        reading.job["loss"] = "liger"
    _left_open(text, name, reading)
    return reading


def _left_open(text: str, name: str, reading: Reading) -> None:
    """Name the places of a template that were left for whoever fills it in."""
    try:
        parse_json(without_comments(text), "file", name, _LIMITS)
    except SpecError:
        left = re.findall(r'"(\w+)"\s*:\s*([A-Z][A-Z0-9_]{2,})\b', without_comments(text))
        if left:
            told = ", ".join(f"{key} {word}" for key, word in left[:6])
            reading.guess("file", f"is a template: {told}{' and more' if len(left) > 6 else ''} are left for what fills them in; nothing is taken from them")  # fmt: skip


def _tamed(text: str) -> str:
    """A YAML text without template marks and tags that no plain parser knows."""
    text = re.sub(
        r"^[^\S\n]*\{%.*%\}[^\S\n]*$|^[^\S\n]*\{\{.*\}\}[^\S\n]*$", "", text, flags=re.MULTILINE
    )
    if re.search(r"\{\{-|\.Values\.", text):  # a Helm chart
        text = re.sub(r"\{\{(?:(?!\{\{).)*?\}\}", "left-to-helm", text)
    text = re.sub(r"!(?:include|join|ref|new|name|apply)[:\w.]*", "", text)
    text = re.sub(
        r"(?m)^![A-Za-z][\w:./-]*[^\S\n]*$", "", text
    )  # of the whole document: a class of the program's own
    return text.replace("\t", "  ")


def without_comments(text: str) -> str:
    """JSON without `//` and `#` comments, block comments and trailing commas, as people write it."""
    found: list[str] = []
    index, end = 0, len(text)
    while index < end:
        letter = text[index]
        if letter == '"':
            start = index
            index += 1
            while index < end and text[index] != '"':
                index += 2 if text[index] == "\\" else 1
            index += 1
            found.append(text[start:index])
        elif text.startswith("//", index) or letter == "#":
            index = text.find("\n", index)
            index = end if index < 0 else index
        elif text.startswith("/*", index):
            index = text.find("*/", index) + 2
            index = end if index < 2 else index
        else:
            found.append(letter)
            index += 1
    return re.sub(r",(\s*[}\]])", r"\1", "".join(found))
