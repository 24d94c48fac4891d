"""TRL's own command: `trl sft --accelerate_config zero3 --num_processes 4 …` starts accelerate (trl/cli, 0.14 to 1.x).

Options of `accelerate launch` stand between the script's, and a name says one of TRL's own configurations.
"""

import re

_EIGHT = ["--num_processes", "8", "--mixed_precision", "bf16"]
_OWN = {
    "fsdp1": ["--use_fsdp", "--fsdp_sharding_strategy", "FULL_SHARD", *_EIGHT],
    "fsdp2": ["--use_fsdp", "--fsdp_version", "2", *_EIGHT],
    "zero1": ["--use_deepspeed", "--zero_stage", "1", *_EIGHT],
    "zero2": ["--use_deepspeed", "--zero_stage", "2", *_EIGHT],
    "zero3": ["--use_deepspeed", "--zero_stage", "3", *_EIGHT],
    "multi_gpu": ["--multi_gpu", *_EIGHT],
    "single_gpu": ["--num_processes", "1", "--mixed_precision", "bf16"],
}
"""What the files in trl/accelerate_configs say."""
_OF_ACCELERATE = re.compile(
    r"--(?:num_processes|num_machines|machine_rank|main_process_(?:ip|port)|mixed_precision|gpu_ids|zero_stage|"
    r"offload_(?:optimizer|param)_device|fsdp_\w+(?<!fsdp_config))$"
)


def as_launched(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of accelerate's launcher, none where the command names none, and those of the script."""
    said: list[str] = []
    named: list[str] = []
    rest: list[str] = []
    index = 0
    while index < len(words):
        name, equals, value = words[index].partition("=")
        name = name.replace("-", "_").replace("__", "--", 1)
        wide = 1
        if not equals and index + 1 < len(words):
            value, wide = words[index + 1], 2
        if name in ("--accelerate_config", "--config_file") and value:
            named = _OWN.get(value, ["--config_file", value])
        elif _OF_ACCELERATE.match(name) and value:
            said += [name, value]
        else:
            wide = 1
            rest.append(words[index])
        index += wide
    if not (said or named):
        return [], words
    over = set(said[::2])
    kept = [
        word
        for at, word in enumerate(named)
        if word not in over and not (at and named[at - 1] in over)
    ]
    return ["accelerate", "launch", *kept, *said], rest
