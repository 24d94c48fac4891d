"""Reads a Hugging Face `config.json` into a `Model`, in old and new key spellings.

Where a key is absent, the default is that of the family's configuration class in transformers, so
that the parameter count equals what transformers would build (a differential test holds this).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshwright.specs.encoders import encoder_fields
from meshwright.specs.errors import SpecError
from meshwright.specs.hf_carried import carrying
from meshwright.specs.hf_config import Config, UndescribedError, decoded
from meshwright.specs.hf_dense import DENSE, llama
from meshwright.specs.hf_hunyuan import hunyuan
from meshwright.specs.hf_hybrid import HYBRID
from meshwright.specs.hf_published import PUBLISHED
from meshwright.specs.hf_sparse import SPARSE
from meshwright.specs.hf_windows import listed_attention, with_windows
from meshwright.specs.model import Model
from meshwright.specs.numerics import from_config
from meshwright.specs.traced import trace, traced_fields

READERS = {**DENSE, **SPARSE, **HYBRID, **PUBLISHED, "hunyuan": hunyuan}
"""Reader of each supported `model_type`."""

_SAME_AS = {"kimi_k2": "deepseek_v3", "ministral": "mistral", "phi4": "phi3",
            "deepseek_v3_2": "deepseek_v32", "MiniMaxText01": "minimax", "minimax_text_01": "minimax",
            "granitemoeshared": "granitemoehybrid", "mimo": "qwen2"}  # fmt: skip
_TEXT_OF = {
    "gemma3": "gemma3_text", "llama4": "llama4_text", "mistral3": "mistral", "llava": "llama",
    "llava_next": "llama", "paligemma": "gemma", "idefics3": "llama", "smolvlm": "llama",
    "internvl": "qwen2", "qwen2_5_vl": "qwen2", "qwen2_vl": "qwen2", "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe", "kimi_k25": "kimi_k2", "kimi_vl": "deepseek_v3",
}  # fmt: skip
"""Family of the language model where `text_config` names none."""

_BUILT_AS = {"minimax_m3": "minimax_m3_vl_text"}
"""`model_type` of a published file → transformers' name of the same."""

_TEXT_SAME_AS = {
    "qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe", "glm4v_text": "glm4", "qwen2_5_omni_text": "qwen2",
    "qwen3_omni_moe_text": "qwen3_moe", "mistral3_text": "mistral",
}  # fmt: skip
_SAME_AS |= _TEXT_SAME_AS
_FAMILY_LIST = ", ".join(sorted(READERS))


def under_known_name(config: dict[str, Any]) -> dict[str, Any]:
    """A config whose `model_type` only its publisher's code has, under the name of what it is.

    Kimi K2 is DeepSeek-V3 by its own `architectures`.
    """
    if config.get("model_type") != "kimi_k2":
        return config
    return config | {"model_type": _SAME_AS["kimi_k2"]}


def is_config(data: Mapping[str, Any]) -> bool:
    """Whether parsed data looks like a Hugging Face config rather than our own model file."""
    return "model_type" in data or "architectures" in data


def model_from_config(data: Mapping[str, Any], name: str = "", source: str = "") -> Model:
    """Build a Model from a parsed config.json.

    A family without a reader is built by transformers without weights and counted, where torch and
    transformers are there. Of a multimodal config the language model (`text_config`) is read and
    the encoder counted the same way. `source` says what was counted, and which keys that change a
    model's size or cost were not read.

    Raises:
        SpecError: unsupported family, a required key is absent, or a value is impossible.
    """
    data = decoded(data)
    given_type = data.get("model_type")
    if isinstance(thinker := data.get("thinker_config"), Mapping):
        thinker = {"model_type": f"{given_type}_thinker", **thinker}
        model = model_from_config(thinker, name or str(given_type), source)
        return model.but(source=f"{model.source}; its parts that speak are not counted")
    return carrying(_described(data, name, source), data)


def _described(data: Mapping[str, Any], name: str, source: str) -> Model:
    """The fields of a config's model."""
    given_type = data.get("model_type")
    text = data.get("text_config") or data.get("llm_config") or data.get("language_config")
    if isinstance(text, Mapping):
        return _multimodal(data, text, name, source)
    if given_type is None and (meant := _by_architecture(data)):
        data = {**data, "model_type": meant}
        given_type = meant
    if not isinstance(given_type, str):
        raise SpecError("config.model_type", given_type, f"a family is expected: {_FAMILY_LIST}")
    family = _SAME_AS.get(given_type, given_type)
    if family not in READERS:
        family = _by_architecture(data) or family
    read = READERS.get(family)
    known = data.get("_name_or_path")
    named = name or (known if isinstance(known, str) and known else given_type)
    source = source or "a Hugging Face config.json"
    if read is None:
        data = {**data, "model_type": _BUILT_AS.get(family, given_type)}
        return _traced(data, named, source, f"no reader for {given_type}")
    config = Config(data)
    try:
        fields = read(config)
    except UndescribedError as error:
        return _variant(data, named, source, error)
    fields.setdefault("family", family)
    fields["name"] = named
    fields["source"] = source + _unread(config)
    if any(data.get(key) for key in _FURTHER):
        fields["source"] += "; its multi-token-prediction layers are not counted"
    fields.setdefault("numerics", from_config(data))
    return with_windows(Model.parse(fields, "config"), listed_attention(data))


def _by_architecture(data: Mapping[str, Any]) -> str:
    """The family that a config's class is of, where nobody but its publisher knows its `model_type`; or ""."""
    named = data.get("architectures")
    first = str(named[0]) if isinstance(named, list) and named else ""
    bare = first.removesuffix("ForCausalLM").lower()
    if bare == first.lower():
        return ""
    return next((one for one in READERS if one.replace("_", "") == bare), "")


def _multimodal(data: Mapping[str, Any], text: Mapping[str, Any], name: str, source: str) -> Model:
    """The language model of a multimodal config, with its encoder where it can be counted."""
    given = str(data.get("model_type"))
    inner = {"model_type": _TEXT_OF.get(given, f"{given}_text"), **text}
    kind = inner["model_type"]
    if not isinstance(kind, str):
        raise SpecError(
            "config.text_config.model_type", kind, f"a family is expected: {_FAMILY_LIST}"
        )
    if _SAME_AS.get(kind, kind) not in READERS:
        source = source or "a Hugging Face config.json"
        try:
            return _traced(data, name or given, source, f"no reader for {given}")
        except SpecError as error:
            return _language_alone(inner, name or given, source, error)
    tied = data.get("tie_word_embeddings")
    if isinstance(tied, bool):
        inner.setdefault("tie_word_embeddings", tied)
    model = _described(inner, name or given, source)
    try:
        counted = trace(data)
    except SpecError:
        note = f"language model of the multimodal {given} config; other parts are not counted"
        return model.but(source=f"{model.source}; {note}")
    encoder = encoder_fields(counted) or {"parameters": 0}
    note = (
        f"language model of the multimodal {given} config, and its encoder of {encoder['parameters']:,} parameters "
        f"as transformers {counted['transformers']} builds it"
    )
    return model.but(
        source=f"{model.source}; {note}", encoder=encoder, counted_parameters=int(counted["total"])
    )


def _language_alone(inner: Mapping[str, Any], name: str, source: str, error: SpecError) -> Model:
    """The language model of a multimodal config whose encoder cannot be built (timm's, without timm); else why not."""
    try:
        model = _traced(inner, name, source, f"no reader for {inner['model_type']}")
    except SpecError:
        raise error from None
    note = "the other parts are not counted: transformers cannot build them with what is installed"
    return model.but(source=f"{model.source}; {note}")


def _variant(data: Mapping[str, Any], name: str, source: str, error: UndescribedError) -> Model:
    """A variant that its family's reader does not describe, counted; else what the reader said."""
    try:
        return _traced(data, name, source, f"no reader for this variant ({error.field})")
    except SpecError:
        raise error from None


def _traced(data: Mapping[str, Any], name: str, source: str, why: str) -> Model:
    """A model whose shape no reader states."""
    given = str(data.get("model_type"))
    try:
        answer = trace(data)
    except SpecError as error:
        shape = _plain_shape(data)
        raise SpecError(error.field, error.value, error.remedy + shape) from None
    fields = traced_fields(answer)
    known = [
        *(["latent attention"] if "latent_attention" in fields else []),
        *(["gated delta nets"] if "mixer" in fields else []),
    ]
    mixed = known if known == ["latent attention"] else [*known, "softmax attention"]
    mixing = f"what mixes tokens is priced as {' and '.join(mixed)}"
    note = (
        f"{why}: {answer['class']} of transformers {answer['transformers']} was built "
        "without weights and counted; what its shape does not explain is counted but not priced as "
        f"products, and {mixing}"
    )
    return Model.parse(
        {**fields, "family": given, "name": name, "source": f"{source}; {note}"}, "config"
    )


def _plain_shape(data: Mapping[str, Any]) -> str:
    """What to write for a config that nothing reads, if it is of Llama's kind; or nothing to add."""
    if any("expert" in key or key == "linear_attn_config" for key in data):
        return ""
    try:
        fields = llama(Config(data))
    except SpecError:
        return ""
    names = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
    shape = ",".join(f"{name}={fields[name]}" for name in names)
    return f" (if it is of Llama's kind, as {shape})"


_FURTHER = ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers")
"""How configs count layers that predict further tokens."""
_MATTERS = re.compile(
    r"layer|expert|moe|head|hidden|intermediate|ffn|rank|dim|window|attention_type|attn|mamba|ssm|conv"
    r"|vocab|altup|laurel|index|tie_|bias|mlp|linear|nextn|mtp|shared|gate|latent|sparse|_res_"
)
_INERT = re.compile(
    r"dropout|norm_eps|initializer|rope|token_id|temperature|aux_loss|max_position|max_window|chunk_size"
    r"|^output_|use_cache|torch_dtype|router_jitter|capacity|scaling|softcap|multiplier|topk_method"
    r"|scoring|norm_topk|use_mamba_kernels|time_step|implementation|flash|_act$|activation|ep_size"
    r"|pretraining_tp|logits_to_keep|id2label|label2id|is_encoder|add_cross|cross_attention|prune"
    r"|no_rope|num_nextn|qk_head_dim|moe_renormalize|layer_types|tie_encoder|seq_aux|n_group|topk_group|group|qk_norm_type|block_size|_factor|max_|attn_temp|floor"
    r"|mtp|_dtype$|norm_before_gate|rotary_dim|routing_bias|_attn_implementation|attention_dropout|residual|z_loss|loss|kernel_options|head_mask"
)


def _unread(config: Config) -> str:
    """A sentence about keys that may change a model's size or cost and that no reader asked for."""
    left = [
        key
        for key, value in config.data.items()
        if key not in config.read and _MATTERS.search(key) and not _INERT.search(key)
        and value not in (None, False, 0, "", [], {})
    ]  # fmt: skip
    return f"; not read: {', '.join(sorted(left)[:12])}" if left else ""


def families() -> list[str]:
    """Names of the supported `model_type`s, aliases included."""
    return sorted({*READERS, *_SAME_AS})
