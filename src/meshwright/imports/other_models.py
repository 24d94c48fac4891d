"""Refuse tables and commands that train something else than a decoder of text, by what only such files say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from meshwright.imports.names import PLANNED
from meshwright.specs.errors import SpecError

_KINDS = (
    ("a model of speech", re.compile(
        r"(?i)(?:^|\.)(?:manifest_filepath|spec_augment|n_mels|mel_\w+|audio_\w+|freeze_audio\w*|preprocessor\.window_size|n_fft)(?=$|\.)"
    ), re.compile(r"nemo\.collections\.(?:asr|tts|audio)\b")),
    ("a vision model", re.compile(
        r"(?i)(?:^|\.)(?:vision_encoder|vision_tower|vlm|freeze_vision\w*|freeze_mm_proj|image_size|img_size|patch_size|num_frames|input_size_2d|num_classes_image)(?=$|\.)"
    ), re.compile(r"(?i)^/?(?:[\w/]*[/_-])?(?:cifar|imagenet|mnist|coco|laion|kinetics)(?:[\d_/-]\w*)?$|nemo\.collections\.(?:vision|multimodal)\b")),
    ("a model that mixes tokens without attention", re.compile(r"(?i)(?:^|\.)(?:d_state|state_dim|ssm_cfg|hyena_\w+|short_filter_order|long_conv\w*)(?=$|\.)"),
     re.compile(r"(?i)^(?:[\w/]*[/_-])?(?:long[-_]conv|s4\w*|hyena|h3)(?:[-_]\w+)?$|\.(?:linear_attn|hyena|mamba|ssm)\.\w+|(?i:mixers?)\.(?:linear_attention|hyena|mamba|base_conv|slide)\w*")),
    ("a forecaster of time series", re.compile(r"(?i)(?:^|\.)(?:prediction_length|forecast_(?:horizon|length)|n_variates)(?=$|\.)"),
     re.compile(r"(?i)^(?:ett_?[mh]\d|chronos|timesfm|moirai|lag-llama)(?:[-_/]\w+)*$")),
    ("an encoder-decoder", re.compile(r"^$"), re.compile(r"(?i)^(?:\w+_)?encoder[-_ ]decoder$")),
    ("a recommender", re.compile(r"(?i)(?:^|\.)(?:num_embeddings_per_feature|sparse_features|dense_in_features|dataset_meta_file)(?=$|\.)"),
     re.compile(r"(?i)criteo|movielens")),
)  # fmt: skip
"""What is trained, names of its options, and values that only it has."""


_OF_MODELS = re.compile(
    r"(?i)(?:^|\.)(?:model(?:_config|_args)?\.(?:kind|type|name|arch(?:itecture)?)|model_(?:kind|type)|model|arch|(?:model\.)?(?:rnn|cell)_type)$"
)
_PLAIN = {"mlp", "cnn", "lstm", "gru", "rnn", "linear", "resnet", "resnet18", "resnet50", "linear_regression", "logistic_regression"}  # fmt: skip
"""What a table calls its model where it has no attention."""
_MODEL_GROUP = re.compile(r"^defaults\.(?:override )?/?(?:\w+/)*model$")
"""How Hydra's `defaults` choose a model."""
_WITHOUT_ATTENTION = re.compile(
    r"(?i)(?:mamba\d?|rwkv\d?|hgrn\d?|(?:gated[-_]?)?delta[-_]?net|retnet|gla|samba|xlstm|hawk|griffin|hyena|s4d?|h3)"
)


_FAIRSEQ = (
    (re.compile(r"language_model|(?:^|_)lm(?:$|_)|^lra$"), ""), (re.compile(r"masked_lm|roberta|bert|denois|multi_modal|text_compressed"), "an encoder"),
    (re.compile(r"sentence_|commonsense|glue|squad|criterion_ranking"), "a classifier of sequences"),
    (re.compile(r"audio|speech|wav2vec|hubert|w2v|asr|tts|hypo"), "a model of speech"), (re.compile(r"image|mae|vision|video"), "a vision model"),
    (re.compile(r"translat|seq2seq|mt$|summar|simul|nat$|lev$|semisupervised"), "an encoder-decoder"),
)  # fmt: skip
"""What fairseq's tasks train, by their names; nothing is said against its language models."""


def _of_fairseq(said: Mapping[str, Any]) -> tuple[str, str]:
    """The task that fairseq's tables name and what it trains; empty where that may be a decoder of text."""
    task = str(said.get("task._name", ""))
    if not task or not any(key.startswith(("criterion", "optimization.", "lr_scheduler", "distributed_training.")) for key in said):  # fmt: skip
        return "", ""
    masked = "masked" in task
    return task, next((kind for name, kind in _FAIRSEQ[masked:] if name.search(task)), "")


def refuse_chosen(groups: Mapping[str, Any]) -> None:
    """Refuse groups of Hydra's that choose a model without attention.

    Raises:
        SpecError: they do.
    """
    names = [str(name) for group, name in groups.items() if group.rpartition("/")[2] == "model"]
    without = next((one for one in names if _WITHOUT_ATTENTION.fullmatch(one)), "")
    if without:
        raise SpecError("model", without[:60], f"trains a model that mixes tokens without attention: {PLANNED}")  # fmt: skip


def refuse_tables(flat: Mapping[str, Any], name: str) -> None:
    """Refuse what tables describe, by names of fields that say something and by values.

    Raises:
        SpecError: they describe no decoder of text.
    """
    said = {
        str(key): value
        for key, value in flat.items()
        if value not in (None, "", {}, []) and value is not False
    }
    plain = next((value for key, value in said.items() if _OF_MODELS.search(key) and str(value).lower() in _PLAIN), "")  # fmt: skip
    if plain:
        raise SpecError("model", str(plain)[:60], f"trains a network without attention: {PLANNED}")
    task, kind = _of_fairseq(said)
    if kind:
        raise SpecError("task", task[:60], f"trains {kind}: {PLANNED}")
    for key, value in said.items():
        if _MODEL_GROUP.search(key) or _OF_MODELS.search(key):
            refuse_chosen({"model": value})
    words = [one for value in said.values() for one in _texts(value)]
    for kind, names, values in _KINDS:
        if any(names.search(key) for key in said) or any(values.search(one) for one in words):
            raise SpecError("model", name[-60:], f"trains {kind}: {PLANNED}")


_DRAWS = re.compile(r"\bcreate_diffusion\(|\bGaussianDiffusion\b|\bDDPMScheduler\b|\bUNet2D\w*|\bAutoencoderKL\b|^from diffusion\b", re.M)  # fmt: skip


_TRANSLATES = re.compile(
    r"\b(?:src|source)_vocab(?:_size)?\b(?=(?:.|\n){0,2000}\b(?:tgt|trg|target)_vocab(?:_size)?\b)"
)
"""A model with a vocabulary to read and one to write."""
_UNMASKS = re.compile(r"^def forward_process\(|\bp_mask\b", re.M)
"""How masked diffusion hides tokens of a text, whose decoder sees both sides."""
_RECURS = re.compile(r"^class RWKV\w*\(|^[^\S\n]*from [\w.]+ import [^\n]*\bRWKV\b", re.M)


def refuse_program(text: str, name: str) -> None:
    """Refuse a loop whose code makes pictures, translates, or trains no decoder with attention, whatever it reads its words with.

    Raises:
        SpecError: it does.
    """
    if _DRAWS.search(text):
        raise SpecError("file", name[-60:], f"trains a diffusion model: {PLANNED}")
    if _UNMASKS.search(text):
        raise SpecError("file", name[-60:], f"trains a model by masked diffusion, which sees both sides of a token: {PLANNED}")  # fmt: skip
    if _TRANSLATES.search(text):
        raise SpecError("file", name[-60:], f"trains an encoder-decoder: {PLANNED}")
    if _RECURS.search(text):
        raise SpecError("file", name[-60:], f"trains a model that mixes tokens without attention (RWKV): {PLANNED}")  # fmt: skip


_LANGUAGE = re.compile(r"ForCausalLM|FastLanguageModel|FastModel\b|LMHeadModel|\bCausalLM")
_CLASSES = (
    ("an encoder-decoder", re.compile(r"\b(?:AutoModelForSeq2SeqLM|(?:M?T5|U?MT5|M?Bart|Pegasus|LED|ProphetNet|Marian)\w*ForConditionalGeneration|MarianMTModel|AutoModelForSpeechSeq2Seq)\b")),
    ("a vision-language model", re.compile(r"\b(?:AutoModelForVision2Seq|AutoModelForImageTextToText|FastVisionModel|(?:Qwen\d*(?:_\d)?_?VL|Qwen\dVL|Llava|LlavaNext|PaliGemma|Idefics\d?|Mllama|SmolVLM|InternVL|Blip\d?|InstructBlip|Kosmos\d?|Florence\d?)\w*ForConditionalGeneration)\b")),
)  # fmt: skip
"""Classes of transformers' and Unsloth's that load something else than a decoder of text."""


def refuse_other_classes(text: str, name: str) -> None:
    """Refuse a program that loads its model by a class for something else, and none for language alone.

    Raises:
        SpecError: it does.
    """
    if _LANGUAGE.search(text):
        return
    for kind, classes in _CLASSES:
        if classes.search(text):
            raise SpecError("config", name.rpartition("/")[2][-60:], f"trains {kind}: {PLANNED}")


_BUILDS_ON = re.compile(r"^class (\w+)\(([^()\n]*)\)", re.M)


def refuse_other_bases(text: str, others: Iterable[str], name: str) -> None:
    """Refuse a program whose model is a class of a file at hand that builds on one for something else.

    Raises:
        SpecError: it is.
    """
    made = set(re.findall(r"\b(\w+)(?:\.from_\w+)?\(", text))
    for one in others:
        for built, bases in _BUILDS_ON.findall(one):
            if built in made:
                refuse_other_classes(f"{bases}(", name)


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [one for inner in value.values() for one in _texts(inner)]
    if isinstance(value, (list, tuple)):
        return [one for inner in list(value)[:50] for one in _texts(inner)]
    return [value] if isinstance(value, str) and len(value) < 200 else []


_OF_TEXT = re.compile(
    r"(?i)token|vocab|seq|context|ctx|\blm\b|text|prompt|(?<![a-z])lora|peft|flash|rope|chat|corpus|causal|llm|gpt|instruct|sft|dpo|grpo|bpe|block_size|max_len|cutoff|deepspeed|fsdp|zero"
)


def says_text(names: Iterable[str], values: Iterable[Any] = ()) -> bool:
    """Whether options speak of tokens, sequences or language models at all."""
    return any(_OF_TEXT.search(name) for name in names) or any(
        _OF_TEXT.search(one) for one in values if isinstance(one, str)
    )
