"""Run Megatron-LM's own argument parser and validation, on a CPU and Python 3.11.

Usage: megatron_arguments.py FOLDER            reads JSON lines {"world": n, "words": [...], "variables": {...}},
                                               answers with all flags on the first line,
                                               then JSON lines {"error": text or null, ...}
       megatron_arguments.py FOLDER --flags    prints every flag and how many values it takes

FOLDER holds megatron-core 0.19.2 unpacked (its wheel asks for Python 3.12 only for
`typing.override`). What needs a GPU is answered as an H100 would.
"""

import argparse
import contextlib
import io
import json
import os
import sys
import types
import typing

_ASKED = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "NCCL_GRAPH_REGISTER",
    "NVTE_CPU_OFFLOAD_V1",
    "PYTORCH_CUDA_ALLOC_CONF",
)
"""Variables that its validation looks at."""


def _once(method):
    """A method of one argument that works once for each value, whatever the object; its answers are copied out."""
    known = {}

    def answered(self, value):
        if value not in known:
            known[value] = method(self, value)
        return dict(known[value])

    return answered


class _Stub(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *a, **k: None


def _prepare(folder):
    if not hasattr(typing, "override"):
        typing.override = lambda function: function
    # The one module that imports triton without a guard.
    name = "megatron.core.transformer.moe.ops.paged_stash"
    sys.modules[name] = _Stub(name)
    sys.path.insert(0, folder)
    import torch

    # Nothing is computed here: its fusions stay Python, and the compiler, which takes seconds to import, is left out.
    torch.compile = lambda function=None, **options: function or (lambda found: found)

    class Properties:
        major, minor, name, total_memory, multi_processor_count = 9, 0, "H100", 80 << 30, 132

    import megatron.core.utils
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.training.argument_utils import ArgumentGroupFactory
    from packaging.version import Version

    megatron.core.utils._te_version = Version("2.8.0")
    # Its kernel is only asked for here, never run.
    rope_utils.fused_apply_rotary_pos_emb = lambda *a, **k: None
    # The parser is built for every question; the texts of its help are read from source files once.
    ArgumentGroupFactory._get_field_docstrings = _once(ArgumentGroupFactory._get_field_docstrings)
    torch.cuda.get_device_capability = lambda *a, **k: (9, 0)
    torch.cuda.get_device_properties = lambda *a, **k: Properties()


def _flags():
    from megatron.training.arguments import add_megatron_arguments

    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    found = {}
    for action in parser._actions:
        for option in action.option_strings:
            if option.startswith("--"):
                takes = "1" if action.nargs is None else str(action.nargs)
                found[option[2:]] = takes
    found.pop("help", None)
    return dict(sorted(found.items()))


def _check(words, world, variables):
    from megatron.training.arguments import (
        core_transformer_config_from_args,
        parse_args,
        validate_args,
    )

    os.environ["WORLD_SIZE"], os.environ["RANK"] = str(world), "0"
    for name in _ASKED:
        os.environ.pop(name, None)
    os.environ.update({name: value for name, value in variables.items() if name in _ASKED})
    sys.argv = ["pretrain_gpt.py", *words]
    arguments = parse_args()
    validate_args(arguments)
    config = core_transformer_config_from_args(arguments)
    layout = config.pipeline_model_parallel_layout
    split = None
    if layout is not None:
        layout.validate_layer_layout(arguments.num_layers, arguments.mtp_num_layers)
        split = [
            sum(kind.name == "decoder" for kind in layout.layout[rank][chunk])
            for chunk in range(layout.virtual_pipeline_model_parallel_size)
            for rank in range(layout.pipeline_model_parallel_size)
        ]
    return {
        "dp": arguments.data_parallel_size,
        "virtual": arguments.virtual_pipeline_model_parallel_size,
        "split": split,
        "modules": {
            name: list(getattr(arguments, name, None) or ())
            for name in ("recompute_modules", "offload_modules")
        },
        "moe": getattr(arguments, "moe_layer_freq", None),
    }


def main():
    folder = sys.argv[1]
    _prepare(folder)
    if "--flags" in sys.argv[2:]:
        print(json.dumps({"version": "0.19.2", "flags": _flags()}, indent=0))
        return
    print(json.dumps(_flags()))
    for line in sys.stdin:
        question = json.loads(line)
        answer = {"error": None}
        noise = io.StringIO()
        try:
            with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
                answer |= _check(question["words"], question["world"], question["variables"])
            if question.get("log"):
                answer["log"] = noise.getvalue()
        except (Exception, SystemExit) as error:
            text = str(error) if not isinstance(error, SystemExit) else noise.getvalue()
            answer["error"] = f"{type(error).__name__}: {text}"[-400:] or repr(error)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
