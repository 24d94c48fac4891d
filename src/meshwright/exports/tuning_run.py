"""What one fine-tuning file says, and the table of settings that notes which were read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.quantities import parse_count

Data = Mapping[str, Any]

MATTERS = re.compile(
    r"lora|quant|bit|batch|length|seq|grad|optim|offload|zero|fsdp|deepspeed|pack|freeze|unfrozen"
    r"|checkpointing|liger|loss|parallel|adapter|precision|dtype|bf16|fp16|cutoff|galore|badam|neftune"
)
"""Words in keys that may change memory."""

INERT = re.compile(
    r"dir|path|name|steps|epoch|log|save|eval|warmup|seed|wandb|report|hub|push|schedul|rate|decay"
    r"|beta|eps|max_norm|clip|workers|timeout|port|group_by|drop_last|strategy$|tokeni|template|dataset|plot|completion|val|max_grad|layer_cls|mixed_precision|transformer_layer"
    r"|shuffle|prompt|response|reward|temperature|alpha|bias|init|metric|resume|sync|cache|fan_in|mask|liger_(?:rope|rms|glu|layer)|watchdog|multipack_|checkpointing_kwargs|dpo_|kto_|simpo|rl_"
    r"|label|special|version|debug|main_process|machine|rdzv|same_network|downcast|env|ddp_|nccl|auto_wrap"
    r"|state_dict|cpu_ram|use_orig|policy|prefetch|min_|columns|field|type$|text|chat|train_on|val_"
)


@dataclass
class Tuning:
    """What one file says, as the planner's nouns and the facts of its layout."""

    tool: str
    model: str = ""
    job: Job = field(default_factory=Job)
    micro_batch: int = 1
    accumulate: int = 1
    gpus: int = 0
    cp: int = 1
    """Ranks that a sequence is split over, keys and values going round them."""
    zero: int = 0
    recompute: bool = False
    checkpoints: bool = False
    """Recomputation switched on beside the sharding."""
    offload: tuple[str, ...] = ()
    beside_bytes: float = 0.0
    """Bytes per parameter of another model that is held beside: a reference."""
    assumed: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


class Keys:
    """A flat table of settings that notes which keys were asked for."""

    def __init__(self, data: Data) -> None:
        self.data = dict(data)
        self.seen: set[str] = set()

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of several spellings that is given."""
        self.seen.update(names)
        for name in names:
            if self.data.get(name) is not None:
                return self.data[name]
        return default

    def flag(self, *names: str, default: bool = False) -> bool:
        """A true or false, also written as text."""
        value = self.get(*names, default=default)
        if isinstance(value, str):
            return value.strip().lower() in ("true", "yes", "1", "on")
        return bool(value)

    def whole(self, *names: str, default: int) -> int:
        """A whole number of at least 1, also with a suffix (4k) or as text; `auto` is the default.

        Raises:
            SpecError: something else.
        """
        value = self.get(*names, default=default)
        if isinstance(value, str) and value.strip().lower() in ("auto", "", "none"):
            return default
        number = parse_count(value, names[0])
        if number < 1:
            raise SpecError(names[0], value, "a whole number of at least 1 is expected")
        return number

    def unread(self) -> list[str]:
        """Keys that may change memory and that nobody asked for."""
        return sorted(
            key for key, value in self.data.items()
            if key not in self.seen and value not in (None, False, "", [], {}, 0)
            and MATTERS.search(key.lower()) and not INERT.search(key.lower())
        )  # fmt: skip
