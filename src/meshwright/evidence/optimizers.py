"""Which optimizer a row means, by the words of its columns and remarks."""

from __future__ import annotations

import re

from meshwright.evidence.rows import Row
from meshwright.evidence.software import SourceRule
from meshwright.specs.errors import shorten
from meshwright.specs.job import OPTIMIZERS, OTHER_OPTIMIZERS, OptimizerRecipe


def optimizer_of(row: Row, rule: SourceRule, assumed: list[str]) -> OptimizerRecipe:
    """Return the optimizer of a row: the one that `setup` names, else the source's, else AdamW, which stands for one
    whose state nobody knows, too."""
    if named := rule.default("optimizer"):
        return OPTIMIZERS[named]
    text = row["setup"]
    for pattern, name in _OPTIMIZERS:
        if re.search(pattern, text, re.IGNORECASE):
            return OPTIMIZERS.get(name) or OTHER_OPTIMIZERS[name]
    if (named := _NAMED_OPTIMIZER.search(text)) and not _ADAM.search(named[1]):
        assumed.append(f"the state of {shorten(named[1], str, 30)} is not known; AdamW's is priced")
    return OPTIMIZERS["adamw"]


_NAMED_OPTIMIZER = re.compile(
    r"(?:^|[;,] ?)optim(?:izer)?s?: ?([A-Za-z][\w.+-]*)(?=;|,|$)", re.IGNORECASE
)
"""What a column or a line named `optimizer` holds, where it is one word."""
_ADAM = re.compile(
    r"adam|^(?:distributed|sharded|zero\w*|fused|yes|true|none|default|offload\w*)$", re.IGNORECASE
)


_OPTIMIZERS = (
    (r"\bmuon\b", "muon"),
    (r"\blion(?:\b|_).{0,4}8-?bit|8-?bit.{0,4}\blion\b", "lion8bit"),
    (r"\blion(?:\b|_)", "lion"),
    (r"paged.{0,4}adam\w*?[-_ ]?8-?bit|8-?bit.{0,4}paged.{0,4}adam", "paged-adam8bit"),
    (r"paged.{0,4}adam", "paged-adamw"),
    (r"4-?bit adam|adam\w*[-_ ]?4-?bit", "adam4bit"),
    (r"8-?bit adam|adam\w*[-_ ]?8-?bit|bnb adam|adamw?[-_ ]?(?:fp8|float8)", "adam8bit"),
    (r"\blamb\b", "lamb"),
    (r"ademamix", "ademamix"),
    (r"ada-?factor", "adafactor"),
    (r"\bsgd\b.{0,12}moment", "sgd-momentum"),
    (r"\bsgd\b", "sgd"),
)
