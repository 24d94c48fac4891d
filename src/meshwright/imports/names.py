"""Models by the names that other tools give them."""

from __future__ import annotations

import re

from meshwright.costs.parameters import count_parameters
from meshwright.specs import load_model
from meshwright.specs.errors import SpecError
from meshwright.specs.model import Model
from meshwright.specs.models import is_size, model_names, typical_model
from meshwright.specs.quantities import parse_count

PLANNED = "meshwright plans decoder-only transformers"
"""What a refusal of another kind of model ends with."""
ONLY_CALLED = "describes no training run: it holds functions and classes that a program calls; import that program, or the script that starts it"
OF_MINDSPEED_MM = f"trains a model of pictures or sound (MindSpeed-MM): {PLANNED}"

_NOISE = re.compile(
    r"[-_.]?(instruct|chat|hf|base|sft|dpo|rlhf|it|pt|bnb|4bit|8bit|awq|gptq|fp8|nvfp4|mxfp4|bf16|unsloth|"
    r"v\d+(\.\d+)?|preview|distill|math|coder|thinking|deduped|v0|rl|\d{1,3}k|(?<!\d)\d{4,})$",
    re.IGNORECASE,
)
_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:[._]\d+)?)\s*([bmt])(?![a-z0-9])", re.IGNORECASE)
_EXPERTS = re.compile(r"(?<!\d)\d+x\d|-a\d+(\.\d+)?b", re.IGNORECASE)


def _named(words: str, ends: str = "_-") -> re.Pattern[str]:
    """One of some words as a part of a model's name: between dashes, or before a number."""
    return re.compile(rf"(?:^|[_-])(?:{words})(?:[{ends}]|\d|$)", re.IGNORECASE)


_SEES = "a vision-language model"
_OTHERS = (
    ("an encoder-decoder", _named(
        r"(?:m|by|code|long|sci|vi|it|ar|ara|pile|umt|last|chem|mol|prot|bio|pt|indo|ru|k|ko)?t5p?|t0pp?|mt0|flan|(?:distil)?(?:m|pl|bio|vi|ko|hg)?bart(?:ez|pho)?|prophetnet|nllb|m2m100|opus-mt|marian|led-(?:base|large)|bigbird-pegasus|blenderbot|pegasus|whisper|ul2|switch-(?:base|large|xxl|c)"
    )),
    ("an encoder", _named(
        r"esm2?|esm1nv|gatortron|[a-z]{0,10}bert|roberta|deberta|vit|clip|electra"
    )),
    (_SEES, _named(
        r"glm[-_]?4[._]?[1-9]v|internvl|llava|vlm?|smolvlm\d?|vl\d|siglip\d?|paligemma|idefics|pixtral|vila|(?:open|smol)?vla|omni|vision|multimodal|molmo|\w*ocr|ovis(?:\d|-u\d)?(?:\.\d)?|minicpm-[ov]|cogvlm\d?|blip-?\d?|fuyu|florence|janus(?:-pro)?|emu\d|mplug|medgemma-(?:1\.5-)?4b|medgemma-27b(?!-text)"
    )),
    ("a diffusion model", _named(
        r"flux|wan|sdxl|dit|cosmos|stable[_-]diffusion|matrix-?game\S*|hunyuan-?video|ltx(?:-?video)?|cogvideo\w*|pixart|sana|kolors|hidream|\w+-image|\w*diffusion\w*|diffusers", ends="._-"
    )),
    ("a vision model", _named(
        r"efficient(?:det|net)|resnet|resnext|wide_resnet|videomae|mae|convnext|swin|deit|beit|dino(?:v\d)?|yolo\w*|unet|vgg|densenet|mobilenet|retinanet|maskrcnn"
    )),
    ("a model of speech", _named(
        r"audio|tts|asr|speech|musicgen|voxtral|canary|parakeet|moshi|tacotron\d?|waveglow|fastspeech\d?|wav2vec\d?|hubert|quartznet|citrinet|conformer"
    )),
    ("a model that mixes tokens without attention", _named(
        r"gla|hgrn\d?|retnet|(?:gated[_-]?)?delta[_-]?net|rwkv\d?"
    )),  # recurrences alone, as flash-linear-attention's hub has them
)  # fmt: skip
"""Models that are no decoder of text alone, by a part of their name; the first that fits counts."""
_RECURRENT = _named(
    r"falcon-h1|falcon-mamba|mamba\d?|jamba|zamba\d?|bamba|nemotron-?h|nemotron[-_]3|granite-4\.0-h|lfm2|recurrentgemma|olmo-hybrid"
)


_DISTILLED = re.compile(
    r"deepseek-r1-distill-(?:(qwen)-(1\.5b|7b|14b|32b)|(llama)-(8b|70b))", re.IGNORECASE
)
_OF_DISTILLED = re.compile(
    r"^(?:deepscaler|deepcoder|skywork-or1(?:-math)?|nemotron-research-reasoning-qwen)-(1\.5b|7b|14b|32b)(?:-.*)?$",
    re.IGNORECASE,
)
"""Models that were trained on from DeepSeek's distilled ones, by their model cards."""
_SAME_SHAPE = (
    (r"^(?:tulu-2(?:-dpo)?|vicuna)-(?=(?:7|13|70)b)", "llama2-"),
    (r"^nemotron_?h-(?=\d)", "nemotron-h-"),
    (r"^alpaca-(?=(?:7|13|30|65)b)", "llama1-"),
    (r"^bloomz-", "bloom-"),
    (r"^zephyr-7b-gemma.*$", "gemma-7b"),
    (r"^zephyr-(?:7b|sft)(?:-.*)?$", "mistral-7b"),
    (r"^(?:gemma-1\.1|codegemma(?:-1\.1)?)-(?=[27]b)", "gemma-"),
    (r"^(?:magi|mi)stral-small-.*$", "mistral-small-24b"),
    (r"^deepseek-(?:math|coder)-7b(?:-instruct|-base)?(?=-|$)", "deepseek-llm-7b"),
    (r"^(qwen(?:2|2\.5|3))-(?:math|coder)-(?=[\d.]+b)", r"\1-"),
    (r"^qwen-(?=(?:1\.8|7|14|72)b)", "qwen1.5-"),
    (r"^(?:qwq|openthinker|s1(?:\.1)?)-(?=(?:7|32)b)", "qwen2.5-"),
    (r"^open-llama-(?=(?:7|13)b)", "llama1-"),
    (r"^llama-guard-3-(?=8b)", "llama3.1-"),
    (r"^internlm2(\.5)?-chat-", r"internlm2\1-"),
    (
        r"^(?:openmath|openreasoning|acereason)-nemotron-(?:1\.[01]-)?(?=(?:1\.5|7|14|32)b)",
        "qwen2.5-",
    ),
    (r"^medgemma-27b-text(?:-it)?$", "gemma3-27b"),
    # Qwen3 has one size of each of these, a mixture, whose second number is often left out.
    (r"^qwen3-(?:coder-)?30b(?!-?a\d).*$", "qwen3-30b-a3b"),
    (r"^qwen3-235b(?!-?a\d).*$", "qwen3-235b-a22b"),
)
"""Models that were trained further under names of their own, by their model cards: whose shape they have."""
_FAMILY = re.compile(
    r"(?i)(?<![a-z])(llama|qwen|gemma)[-_]?([123](?:\.\d)?)(?![\d.]*b)|(?<![a-z])(mistral)(?![a-z])"
)


def _distilled(family: str, size: str) -> Model | None:
    """DeepSeek's distilled models: the shapes of Qwen2.5 and Llama 3, the smallest with a head of its own."""
    if family == "qwen":
        found = load_model(f"qwen2.5-{size}")
        return found.but(tied_embeddings=False) if size == "1.5b" else found
    return load_model("llama3.3-70b" if size == "70b" else "llama3.1-8b")


def refuse_other(name: str, *, described: bool = False) -> None:
    """Refuse a model whose name says that it is no decoder of text alone.

    Args:
        described: the file says each of its layers, so that a state-space model need not be known by its name.

    Raises:
        SpecError: it is an encoder, an encoder-decoder, a vision-language or diffusion model, or one with state-space
            layers that is no preset.
    """
    short = name.rstrip("/").rsplit("/", 1)[-1]
    kind = next((kind for kind, words in _OTHERS if words.search(short)), "")
    if kind == _SEES:
        raise SpecError("model", short, f"trains {kind}: {PLANNED}; --model with its config.json plans it with its encoder, --model with the language model in it plans that part")  # fmt: skip
    if kind:
        raise SpecError("model", short, f"trains {kind}: {PLANNED}")
    if not described and _RECURRENT.search(short) and model_named(short) is None:
        raise SpecError(
            "--model",
            None,
            f"{short[:60]} has state-space layers and is no preset: give its config.json (hybrids "
            "of attention and Mamba-2 are planned from it)",
        )


_POINT = re.compile(r"(?<=\d)_(?=\d+b)", re.IGNORECASE)
_BELOW_ONE = re.compile(r"((?:^|[-_]))0[-_](\d)(?=b)", re.IGNORECASE)
"""A size below a billion whose point is written as a dash: `0-5b`."""
_SIZE_ALONE = re.compile(r"\d+(?:\.\d+)?[bm](?:[-_]hf)?", re.IGNORECASE)


_OF_CHECKPOINT = re.compile(
    r"(?i)(?:global_?|epoch_?\d*[-_]?)?(?:step|checkpoint|iter|ckpt|epoch)s?[-_]?\d*|hf|huggingface|hf_model|actor|policy|final(?:_?(?:model|checkpoint))?|"
    r"merged(?:_\w+)?|latest|last|best|snapshots|[0-9a-f]{40}|model|output"
)
"""Folders that training makes below the one that is named after the model."""


def with_family(name: str) -> str:
    """A path whose last folder is a size alone (`llama2/7B`), ending in the family's name and size.

    Folders of a checkpoint (`…/step_300/hf`) are taken off its end: the run before them has the model's name.
    """
    name = name.replace("___", ".")  # as ModelScope writes a point in the name of a folder
    parts = name.strip().rstrip("/").split("/")
    while len(parts) > 1 and _OF_CHECKPOINT.fullmatch(parts[-1]):
        parts.pop()
    name = (
        re.sub(r"^models--[\w.-]+?--", "", "/".join(parts[-1:]))
        if parts[-1].startswith("models--")
        else "/".join(parts)
    )
    parts = name.split("/")
    if len(parts) < 2 or not _SIZE_ALONE.fullmatch(parts[-1]):
        return name
    family = re.search(r"(?i)(llama|qwen|gemma|opt)[-_]?(\d(?:\.\d)?)?", parts[-2])
    if family is None:
        return name
    return f"{family.group(1)}{family.group(2) or ''}-{parts[-1]}".lower()


def model_named(name: str) -> Model | None:
    """The preset that a hub name, path or recipe name means; None where there is none.

    Only a name of the same family and size counts: nothing is guessed here.
    """
    said = with_family(name).strip().rstrip("/").rsplit("/", 1)[-1]
    short = said.replace("_", "-")
    if not short or len(short) > 120 or is_size(short):
        return None
    short = _OF_DISTILLED.sub(r"deepseek-r1-distill-qwen-\1", short)
    if (distilled := _DISTILLED.fullmatch(short)) is not None:
        return _distilled(*(word.lower() for word in distilled.groups() if word))
    pointed = _POINT.sub(".", said).replace("_", "-")  # `1_5b`: one and a half billion
    for candidate in [*_spellings(short), *(_spellings(pointed) if pointed != short else [])]:
        try:
            found = load_model(candidate)
        except SpecError:
            continue
        spelled = (said, pointed, _BELOW_ONE.sub(r"\g<1>0.\2", short))
        return found if any(_as_large(found, one) for one in spelled) else None
    return None


def _as_large(model: Model, name: str) -> bool:
    """Whether a name states no other size: a later generation is often named after a smaller one.

    Of a mixture, names state all parameters or those of a token.
    """
    size = _SIZE.search(name)
    if size is None or (model.experts is not None and not _EXPERTS.search(name)):
        return True
    units = {"m": 1e6, "b": 1e9, "t": 1e12}
    stated = float(size.group(1).replace("_", ".")) * units[size.group(2).lower()]
    return 0.5 < count_parameters(model).total / stated < 2.0


def shape_named(name: str, *others: str) -> str:
    """The name that says a model's shape: its own, or where that is a folder of one's own, what it was made from."""
    names = [one.strip("\"'") for one in (name, *others)]
    return next((one for one in names if one and model_named(one) is not None), names[0])


def _spellings(short: str) -> list[str]:
    """A name as it is, then with what says nothing of its shape taken off the end, one by one."""
    found = [short]
    current = short
    for _ in range(5):
        shorter = _NOISE.sub("", current)
        if shorter == current or len(shorter) < 4:
            break
        current = shorter
        found.append(current)
    rewritten = (
        # A version's point written as a dash or an underscore: `llama-2_7b` has none, `llama3_1_8b` has one.
        (r"(?<=\d)-(\d)-(?=\d)", r".\1-"),
        (r"^(llama|qwen|gemma|phi)-(\d)", r"\1\2"),
        (r"(?<=\d)p(?=\d+b(?:-|$))", "."),  # NeMo's `1p5b`
        (r"^(qwen[\d.]+)-([56])00m(?=-|$)", r"\1-0.\2b"),
        *_SAME_SHAPE,
        (_BELOW_ONE.pattern, r"\g<1>0.\2"),
        (r"^qwen2-", "qwen2.5-"),  # Qwen2's dense models have Qwen2.5's shapes
        (r"^(meta|nvidia|unsloth|google|microsoft)[-_]", ""),
    )
    for pattern, of in rewritten:  # each over all before it; most change nothing and add no name
        others = (re.sub(pattern, of, one, flags=re.IGNORECASE) for one in found)
        found = list(dict.fromkeys([*found, *others]))
    # A file or folder of that name is never what a configuration means.
    return [one for one in found if not one.lower().endswith((".json", ".yaml", ".toml", ".yml"))]


def guess_model(name: str) -> Model | None:
    """A typical shape of the size that a name states; None for experts or where it states none."""
    short = with_family(name).rstrip("/").rsplit("/", 1)[-1]
    # A version before the size is none of it: `llama_2_7b` has seven billion.
    families = r"(?i)(llama|qwen|gemma|phi|yi|baichuan|internlm)"
    short = re.sub(rf"{families}[-_]?(\d)[-_](\d)[-_](?=\d+(?:[._]\d+)?b)", r"\1\2.\3-", short)
    short = re.sub(rf"{families}[-_]?(\d)[-_](?=\d)", r"\1\2-", short)
    short = _BELOW_ONE.sub(r"\g<1>0.\2", short)
    size = _SIZE.search(short)
    longest = max((one for one in model_names() if short.lower().startswith((f"{one}-", f"{one}_"))), key=len, default="")  # fmt: skip
    if longest and re.search(r"\d[bm]", longest):
        return load_model(longest)  # quantised, pruned or trained further: of that model's shape
    if size is None:
        # A run's folder inside one that is named after the model (`outputs/Llama-3.1-8B/lr1e-5`).
        above = name.split("/")[-2:0:-1]
        return next((found for part in above if (found := model_named(part)) is not None), None)
    if _EXPERTS.search(short):
        return None
    family = _FAMILY.search(short)
    if family is not None:
        number = size.group(1).replace("_", ".") + size.group(2).lower()
        spelled = f"{family.group(1) or family.group(3)}{family.group(2) or ''}-{number}".lower()
        try:
            return load_model(re.sub(r"^qwen2-", "qwen2.5-", spelled))
        except SpecError:
            pass
    try:
        return typical_model(
            parse_count(size.group(1).replace("_", ".") + size.group(2).upper(), "--model")
        )
    except SpecError:
        return None
