"""A hand-written training loop, imported by itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from meshwright.imports.code.syntax import parse_python, without_comments
from meshwright.imports.launch import Launch
from meshwright.imports.names import PLANNED
from meshwright.imports.other_models import refuse_other_classes, refuse_program
from meshwright.imports.own import hydra as own_hydra
from meshwright.imports.own import loops as own_loops
from meshwright.imports.own import option_names
from meshwright.imports.own.answers import of_answers
from meshwright.imports.own.asked import (
    OF_CONFIGURATION,
    asks_for_experts,
    asks_for_model,
    starts_by_itself,
    steps_in_classes,
    told_from_outside,
    unfollowed,
)
from meshwright.imports.own.made_with import mixes_experts, tokens_wrapped, without_takers
from meshwright.imports.own.sizes import SEVERAL, build, optimize, said_by, store, texts_beside
from meshwright.imports.reading import Given, Reading
from meshwright.imports.tasks import name_made, name_task
from meshwright.specs.errors import SpecError

_STEPS = re.compile(r"\.backward\(")
_UPDATES = re.compile(r"\.step\(")
_LANGUAGE = re.compile(
    r"is_causal|causal_mask|\btril\(|\btriu\(|lm_head|\bcausal\b|\bGPT|[Ll]lama|LanguageModel|TransformerLM|next[ _]token"
)
_OTHER = re.compile(
    r"\btorchvision\b|\bdiffusers?\b|Diffusion|\bConv2d\(|\bgymnasium\b|^import gym\b|\bMNIST\b|CIFAR|[Ss]eq2[Ss]eq|masked_lm|mlm_prob"
    r"|\bBertFor|\btorchaudio\b|\btorch_geometric\b|cross_attn|\bMamba|\bssm\b|VisionTransformer",
    re.M,
)
"""What such a program would have, was it to train something else than a decoder of text."""
_SEES = re.compile(r"\bpixel_values\b|\bvisual_embeds\b|\bvision_tokens\b|\bimage_embeds\b")
"""What only a loop has whose model sees."""
_LAYERS = re.compile(r"\bnn\.Linear\(|\bnnx\.Linear\(|\beqx\.nn\.Linear\(")
_TOKENS = re.compile(
    r"(?i)vocab|tokeni[sz]|tiktoken|input_ids|token_ids|\bstoi\b|\btokens\b *=|n_tokens|num_tokens|alphabet|cross_?entropy"
)
"""What the code of a model of text says somewhere, or of its loss."""
_SHAPE = (option_names.LAYERS, option_names.HIDDEN, option_names.HEADS)
_TESTS = re.compile(r"^(?:    )?def test_\w+\(|^import (?:pytest|unittest)\b", re.M)
_ADAPTS = re.compile(
    r"\bmark_only_lora_as_trainable\(|(?m:^[^\S\n]*(?:[\w.]+ = )?(?:inject|apply|add)_lora\w*\()"
)
_RANKS = re.compile(
    r"\bDistributedDataParallel\(|\bDDP\(|\bFSDP\(|\bFullyShardedDataParallel\(|\bfully_shard\(|init_process_group\(|init_distributed\("
)
_PRETRAINED = re.compile(r"(?:ForCausalLM|LMHeadModel|AutoModel\w*)\s*\.from_|\bAutoModelFor\w+")


_WRAPPED = re.compile(
    r"\bTransformerWrapper\((?=(?:.|\n){0,400}\bDecoder\()(?!(?:.|\n){0,4000}(?:Encoder|XLAutoregressive|VAE)\w*\()"
)
"""x-transformers' decoder, whose modules are its own package's, as its examples make it."""


def read(text: str, name: str, given: Given, folder: Path | None) -> Reading | None:
    """Return what a loop of one's own trains when it is started without options; None where it is none.

    Raises:
        SpecError: a value that cannot be, or it does not say its model.
    """
    if "hydra.main" in text and folder is not None:
        found = own_hydra.read(Launch(Path(name).name, [], ["python"]), given, folder)
        if found is not None:
            return found
    wrapped = _WRAPPED.search(text) is not None
    leaves = own_loops.is_a_library_s(text) and not wrapped
    if not (_STEPS.search(text) and _UPDATES.search(text)) or leaves:
        return None
    if _TESTS.search(text):
        return None
    text = without_takers(text)
    refuse_other_classes(text, name)
    if _SEES.search(text):
        raise SpecError("file", Path(name).name, f"trains a vision-language model: {PLANNED}")
    parts = [text, *([] if wrapped else texts_beside(text, folder))]
    whole = "\n".join(parts)
    refuse_program(whole, name)
    if own_loops.makes_a_library_s(text):
        return None
    if _PRETRAINED.search(text) or _OTHER.search(whole):
        return None
    if not wrapped and not _LANGUAGE.search(whole):
        return None
    tree = parse_python(text)
    if tree is None:
        return None
    if given.model is None and _LAYERS.search(whole) and not _TOKENS.search(whole):
        raise SpecError("file", Path(name).name, f"trains a transformer of something else than text: its code has no vocabulary, no tokenizer and no cross entropy: {PLANNED}")  # fmt: skip
    own = said_by(tree, parts[1:])
    several = own.pop(SEVERAL, 0)
    if "num_tokens" in text and (tokens := tokens_wrapped(tree)):
        own["vocab_size"] = tokens
    _refuse_unsaid(text, tree, own, name, given)
    mixed: dict[str, Any] = {}
    if given.model is None and mixes_experts([one for one in map(parse_python, parts) if one], own):
        mixed = {one: own[one] for one in option_names.OF_EXPERTS if one in own}
        if not mixed:
            raise asks_for_experts(Path(name).name)
    if _ADAPTS.search(text):
        own["use_lora"] = True
    launch = Launch(Path(name).name, [], ["python"])
    if _RANKS.search(whole):
        launch.launcher = ["torchrun"]
    making = not option_names.says_batch(own)
    reading = own_loops.read_loop(text, launch, own, mixed, given, folder, making)
    reading.format = "training loop of one's own"
    name_task(reading, Path(name).name)
    name_made(reading, text)
    of_answers(reading, own, text)
    if several and given.model is None:
        reading.guess("--model", f"the program has {several} tables of sizes; the first is taken")
    code = [without_comments(one) for one in parts]
    optimize(reading, code[0], code[1:])
    store(reading, code[0], own)
    build(reading, "\n".join(code), given, own)
    return reading


def _refuse_unsaid(
    text: str, tree: ast.Module, own: dict[str, Any], name: str, given: Given
) -> None:
    """Refuse a loop that others start or that says too little, and ask for a model that it does not describe.

    Raises:
        SpecError: it does.
    """
    name = Path(name).name
    whence, starts = told_from_outside(text), starts_by_itself(text)
    if not option_names.says_tokens(own) and (whence or not starts):
        raise unfollowed(text, name)
    if not starts and steps_in_classes(tree):
        raise unfollowed(text, name)
    if (
        given.model is None
        and "model_name" not in own
        and not all(any(one in own for one in names) for names in _SHAPE)
    ):
        if whence == OF_CONFIGURATION:
            raise unfollowed(text, name)
        raise asks_for_model(own, name)
