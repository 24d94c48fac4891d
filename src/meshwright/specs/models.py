"""Models from a preset name, a config.json, a file, explicit fields, or a bare size."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.specs import presets
from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.huggingface import is_config, model_from_config
from meshwright.specs.model import Model
from meshwright.specs.numerics import published
from meshwright.specs.quantities import format_count, parse_count

_SIZE = re.compile(r"(?:\d++(?:\.\d++)?+|\.\d++)\s*+[MBT]", re.IGNORECASE)
_STEPS = ((1e8, 128), (8e8, 256), (6e9, 512), (math.inf, 1024))
"""Hidden widths of typical shapes are multiples of the second number, below the first in size."""
_VARIANT = re.compile(r"-(instruct|hf|base|chat|it|pt|text|v0\.1|bf16|fp8|nvfp4)$")
_VERSION = re.compile(r"^([a-z]+)-?(\d)\.?(\d)-(?=\d)")
_FILE_SUFFIXES = (".json", ".toml", ".yaml", ".yml")


def model_names() -> list[str]:
    """Names of the model presets, in the order of the data file."""
    return list(presets.table("models"))


def load_model(what: str | Path | Mapping[str, Any] | Model) -> Model:
    """Return a model from what a person would write.

    - a preset: `llama3-70b`, also as `meta-llama/Meta-Llama-3-70B-Instruct`;
    - a Hugging Face `config.json`, or a folder that holds one;
    - a TOML, JSON or YAML file with the fields of Model (a plan file's `[model]` counts);
    - explicit fields: `layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256`;
    - a bare size: `30B` gives a typical Llama-like shape, stated in the model's `source`.

    Raises:
        SpecError: unknown name (with the nearest ones), unsupported family, impossible shape.
    """
    if isinstance(what, Model):
        return what
    if isinstance(what, Mapping):
        return _from_data(what, "", "")
    if isinstance(what, Path):
        return _from_path(what)
    if not isinstance(what, str) or not what.strip() or len(what) > 4096:
        raise SpecError("model", what, "a model is expected, such as llama3-70b or 30B")
    text = what.strip()
    if _exists(f"{text}/config.json"):  # also where a preset has the folder's name
        return _from_path(Path(text))
    preset = _spellings().get(_compress(text)) or _without_dots().get(_undotted(text))
    if preset is not None:
        return _from_preset(preset)
    if text == "-" or text.lower().endswith(_FILE_SUFFIXES) or _exists(text):
        return _from_path(Path(text))
    if "=" in text:
        return _from_fields(text)
    if is_size(text):
        return typical_model(parse_count(text, "model"))
    if re.fullmatch(r"\d{1,4}(?:\.\d+)?", text):
        raise SpecError("model", what, f"a size has its unit: {text}B, or {text}M")
    short = text.rsplit("/", 1)[-1]
    raise SpecError("model", what, f"no such preset or file; {nearest(short, model_names())}")


def is_size(text: str) -> bool:
    """Whether a text is a bare size, such as `30B`, rather than the name of a model."""
    return _SIZE.fullmatch(text.strip()) is not None


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def _compress(name: str) -> str:
    """Reduce the spellings of one name to one: organisation, dashes and variants fall away."""
    return _bare(name).replace("-", "")


def _bare(name: str) -> str:
    short = presets.normalise(name.rsplit("/", 1)[-1])
    while _VARIANT.search(short):
        short = _VARIANT.sub("", short)
    return short


def _undotted(name: str) -> str:
    """A name whose version has lost its dot, as in `Llama31-8B`; sizes keep theirs."""
    return _VERSION.sub(r"\1\2\3-", _bare(name))


@cache
def _without_dots() -> dict[str, str]:
    return {_undotted(name): name for name in reversed(model_names())}


@cache
def _spellings() -> dict[str, str]:
    names: dict[str, str] = {}
    for key, entry in presets.table("models").items():
        for spelling in (key, *entry.get("aliases", ())):
            names.setdefault(_compress(spelling), key)
    return names


@cache
def _from_preset(name: str) -> Model:
    entry = presets.table("models")[name]
    if "config" in entry:
        model = model_from_config(entry["config"], name, entry["source"])
    else:
        model = Model.parse({"name": name, "source": entry["source"], **entry["model"]}, name)
    return model if model.numerics else model.model_copy(update={"numerics": published(name)})


def _from_path(path: Path) -> Model:
    from meshwright.specs.foreign import Limits, plain, read_data

    if str(path) != "-" and path.is_dir():
        path = path / "config.json"
    # Published configs of state-space models hold infinities (`time_step_limit`); what is read of
    # a config is checked one by one, a file of our own as a whole.
    data = read_data(path, "model", Limits(any_number=True))
    if not is_config(data):
        data = plain(data, "model", str(path))
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    if str(path) == "-":
        name = ""
    return _from_data(data, name, str(path))


def _from_data(data: Mapping[str, Any], name: str, source: str) -> Model:
    if is_config(data):
        return model_from_config(data, name, source)
    if isinstance(data.get("model"), Mapping):
        return _from_data(data["model"], name, source)
    return _with_defaults(dict(data), name, source)


def _from_fields(text: str) -> Model:
    """Parse `layers=32,hidden=4096,…`; counts take suffixes (`vocab=128k`), flags true or false."""
    fields: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        key, value = key.strip().replace("-", "_"), value.strip()
        if not equals or not key or not value:
            raise SpecError("model", part, "field=value is expected, as hidden=4096")
        if key in fields:
            raise SpecError(f"model.{key}", value, "given twice")
        if value.lower() in ("true", "false"):
            fields[key] = value.lower() == "true"
        elif value[0].isdigit():
            fields[key] = parse_count(value, f"model.{key}")
        else:
            fields[key] = value
    return _with_defaults(fields, "custom", "fields on the command line")


def _with_defaults(fields: dict[str, Any], name: str, source: str) -> Model:
    """Fill what follows from other fields: kv heads, head width, FFN width."""
    hidden, heads = fields.get("hidden"), fields.get("heads")
    if isinstance(hidden, int) and isinstance(heads, int) and hidden > 0 and heads > 0:
        fields.setdefault("kv_heads", heads)
        if "head_dim" not in fields:
            if hidden % heads:
                raise SpecError(
                    "model.heads", heads, f"a divisor of hidden = {hidden}, or give head_dim"
                )
            fields["head_dim"] = hidden // heads
        if "ffn" not in fields:
            # The usual widths: four times hidden, or two thirds of that where a gate is added.
            gated = fields.get("gated", True)
            fields["ffn"] = _round(8 * hidden / 3, 256) if gated else 4 * hidden
    fields.setdefault("vocab", 128256)
    if name:
        fields.setdefault("name", name)
    if source:
        fields.setdefault("source", source)
    return Model.parse(fields, "model")


def _round(value: float, step: int) -> int:
    return max(step, round(value / step) * step)


def typical_model(parameters: int) -> Model:
    """Return a Llama-like shape with about this many parameters (within 2 %).

    Depth and width follow the published Llama models (hidden about 100 to 130 times the layers,
    FFN about 3.5 times hidden, heads of 128, 8 kv heads). `source` states the choice.

    Raises:
        SpecError: below 10M or above 100T parameters.
    """
    if not 10_000_000 <= parameters <= 100_000_000_000_000:
        raise SpecError(
            "model", parameters, "a size from 10M to 100T is expected; otherwise give fields"
        )
    best: tuple[float, dict[str, Any]] | None = None
    small = parameters < 6_000_000_000
    vocab = 32_000 if small else 128_256
    step = next(step for limit, step in _STEPS if parameters < limit)
    guess = (parameters / 0.1) ** (1 / 3)
    for width in range(max(1, round(0.5 * guess / step)), round(2.2 * guess / step) + 2):
        hidden = width * step
        head_dim = 128 if hidden >= 2048 else 64
        heads = hidden // head_dim
        kv_heads = math.gcd(heads, 8)
        attention = 2 * hidden * head_dim * (heads + kv_heads)
        depth_step = 4 if parameters >= 1_000_000_000 else 2
        for layers in range(depth_step, 401, depth_step):
            room = parameters - (1 + (not small)) * vocab * hidden - hidden
            ffn = _round((room / layers - attention - 2 * hidden) / (3 * hidden), min(256, step))
            if not 2.0 * hidden <= ffn <= 5.0 * hidden:
                continue
            held = hidden + (1 + (not small)) * vocab * hidden
            held += layers * (attention + 3 * hidden * ffn + 2 * hidden)
            error = abs(held / parameters - 1)
            if error > 0.015:
                continue
            aspect = abs(math.log(hidden / layers / min(130, 70 + hidden / 128)))
            # Counts that degrees of parallelism divide.
            divides = 0.0 if layers % 8 == 0 else 0.05
            divides += 0.0 if heads % 8 == 0 else 0.05 if heads % 4 == 0 else 0.3
            score = 3 * abs(math.log(ffn / hidden / 3.5)) + aspect + divides + error
            if best is None or score < best[0]:
                best = score, {
                    "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads,
                    "head_dim": head_dim, "ffn": ffn,
                }  # fmt: skip
    if best is None:
        raise SpecError("model", parameters, "no typical shape of this size; give fields instead")
    shape = best[1]
    said = ", ".join(f"{key} {value}" for key, value in shape.items())
    return Model(
        name=f"typical-{format_count(parameters)}",
        vocab=vocab,
        tied_embeddings=small,
        source=f"assumed, for a size of {format_count(parameters)}: Llama-like with {said}, "
        f"vocab {vocab}{', tied embeddings' if small else ''}; "
        "give a preset, a config.json or fields for another shape",
        **shape,
    )
