"""Options that several commands share, each written once, and groups of them.

A command takes a group as one parameter annotated with the group's class; `expand` gives Typer the
group's options in its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from meshwright.engine.training_options import TRAINING
from meshwright.specs.job import OPTIMIZERS, RECIPES
from meshwright.specs.writing import check_writable


def training(name: str) -> Any:
    """Return an option of a training as Typer takes it; `engine.training_options` says what it is."""
    known = TRAINING[name]
    shown = str(known.default) if known.held and known.default is not None else True
    return typer.Option(
        known.unasked, min=known.least, max=known.most, help=known.help, show_default=shown
    )


def writable(asked: typer.CallbackParam, value: Any) -> Any:
    """Refuse a file that could not be written before the work whose result it takes."""
    if value and str(value) != "-":
        check_writable(value, asked.opts[-1])
    return value


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Output = Annotated[
    str | None, typer.Option("-o", "--output", callback=writable, help="Write to this file.")
]
What = Annotated[str, typer.Argument(help="A plan file, or a model: toy, a preset, a config.json.")]
ForeignConfig = Annotated[
    str,
    typer.Option(
        "--transformers",
        help="A config.json whose model transformers' modules compute; they do unasked for a "
        "config.json that the engine's decoder lacks.",
    ),
]
PredictLayers = Annotated[
    int | None,
    typer.Option(
        "--predict-layers",
        min=0,
        max=8,
        help="Layers that each predict one token further (multi-token prediction); default the model's, 0.",
    ),
]
RankCount = Annotated[
    str | None, typer.Option("--cluster", "-c", help="Only to count ranks: cpu:1x8 has 8.")
]
Csv = Annotated[str, typer.Option(help="A schedule file in torch's CSV format, instead of a name.")]
DropoutRate = Annotated[
    float | None,
    typer.Option(
        "--dropout", min=0.0, max=0.99, help="Chance that a residual is dropped; default the job's."
    ),
]
DocumentMasking = Annotated[
    bool | None,
    typer.Option(
        "--document-masking/--no-document-masking",
        help="Keep attention, positions and loss inside packed documents; default the job's.",
    ),
]
Tp = Annotated[int | None, typer.Option(min=1, help="Tensor-parallel degree.")]
Pp = Annotated[int | None, typer.Option(min=1, help="Pipeline-parallel degree.")]
Dp = Annotated[
    int | None,
    typer.Option(min=1, help="Data-parallel degree; default: what is left of --cluster."),
]
Zero = Annotated[int | None, typer.Option(min=0, max=3, help="ZeRO stage.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOptions:
    """A model, a cluster and a job, as `plan` and `estimate` take them."""

    model: Annotated[
        str, typer.Argument(help="Preset, size such as 30B, or a config.json / TOML file.")
    ]
    cluster: Annotated[
        str, typer.Option("--cluster", "-c", help="device:nodesxgpus such as h100:8x8, or a file.")
    ]
    job: Annotated[
        str | None, typer.Option(help="A TOML file with the job; other options override it.")
    ] = None
    seq: Annotated[
        str | None, typer.Option(help="Sequence length in tokens: 8192, or 8k for the same.")
    ] = None
    global_batch: Annotated[
        str | None, typer.Option(help="Per step: 512 sequences or 4M-tokens.")
    ] = None
    precision: Annotated[str | None, typer.Option(help=f"Recipe: {', '.join(RECIPES)}.")] = None
    optimizer: Annotated[str | None, typer.Option(help=f"One of {', '.join(OPTIMIZERS)}.")] = None
    finetune: Annotated[
        str | None, typer.Option(help="Train further: full, lora, dora or qlora.")
    ] = None
    rank: Annotated[int | None, typer.Option(min=1, help="Rank of the adapters.")] = None
    targets: Annotated[
        str | None, typer.Option(help="Adapted matrices: all-linear, attention, q_proj,v_proj…")
    ] = None
    loss: Annotated[
        str | None, typer.Option(help="Cross-entropy: framework, full, chunked, liger or cut.")
    ] = None
    framework: Annotated[str | None, typer.Option(help="Keep to what this framework can run.")] = (
        None
    )
    tokens: Annotated[str | None, typer.Option(help="Token budget of the whole run, as 15T.")] = (
        None
    )
    reserve: Annotated[
        str | None, typer.Option(help="Memory to leave free on every device, as 4GiB.")
    ] = None
    dispatcher: Annotated[
        str | None, typer.Option(help="Keep experts' tokens to alltoall, deepep or hybridep.")
    ] = None
    cuda_graphs: Annotated[
        str | None, typer.Option(help="What CUDA graphs capture: none, layers or all (iterations).")
    ] = None
    capacity_factor: Annotated[
        float | None,
        typer.Option(help="Drop tokens beyond this many times an expert's even share, as 1.25."),
    ] = None
    images: Annotated[
        float | None,
        typer.Option(
            min=0, help="Images (or sounds) in a sequence, for a model that sees; 0: text alone."
        ),
    ] = None
    image_patches: Annotated[
        int | None,
        typer.Option(min=1, help="Patches of an image; default: the model's usual size."),
    ] = None
    routing: Annotated[
        str | None,
        typer.Option(
            help="Tokens to experts: balanced, power:0.5, or a CSV/JSON file of counts per expert."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintOptions:
    """What `plan` is told to keep to; see `planner.space.Constraints`."""

    tp: Annotated[int | None, typer.Option(min=1, help="Fix the tensor-parallel degree.")] = None
    pp: Annotated[int | None, typer.Option(min=1, help="Fix the pipeline-parallel degree.")] = None
    dp: Annotated[int | None, typer.Option(min=1, help="Fix the data-parallel degree.")] = None
    cp: Annotated[int | None, typer.Option(min=1, help="Fix the context-parallel degree.")] = None
    ep: Annotated[int | None, typer.Option(min=1, help="Fix the expert-parallel degree.")] = None
    zero: Annotated[int | None, typer.Option(min=0, max=3, help="Fix the ZeRO stage.")] = None
    shard: Annotated[
        int | None, typer.Option(min=0, help="Fix the ZeRO shard degree (HSDP); 0: all of dp · cp.")
    ] = None
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Fix the micro-batch.")] = None
    virtual_stages: Annotated[int | None, typer.Option(min=1, help="Fix the virtual stages.")] = (
        None
    )
    schedule: Annotated[str | None, typer.Option(help="Fix the pipeline schedule.")] = None
    rank_order: Annotated[
        str | None, typer.Option(help="Fix the rank order, fastest digit first, as tp-cp-ep-pp-dp.")
    ] = None
    recompute: Annotated[
        str | None, typer.Option(help="Fix recomputation: none, selective, full.")
    ] = None
    recompute_modules: Annotated[
        str | None,
        typer.Option(help="Fix what selective recomputation runs again, as layernorm,moe_act."),
    ] = None
    offload: Annotated[
        str | None,
        typer.Option(help="Keep in host memory: activations, optimizer, parameters; or none."),
    ] = None
    cp_method: Annotated[
        str | None, typer.Option(help="Fix it: all-gather, ring, ulysses or hierarchical.")
    ] = None
    max_tp: Annotated[int | None, typer.Option(min=1, help="Largest tensor-parallel degree.")] = (
        None
    )
    max_pp: Annotated[int | None, typer.Option(min=1, help="Largest pipeline-parallel degree.")] = (
        None
    )
    no_recompute: Annotated[bool, typer.Option("--no-recompute", help="Never recompute.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLayoutOptions:
    """The layout of `train`, `verify` and their kin; None keeps the plan's, or Layout's default."""

    tp: Tp = None
    pp: Pp = None
    dp: Dp = None
    cp: Annotated[int | None, typer.Option(min=1, help="Context-parallel degree.")] = None
    cp_method: Annotated[
        str | None, typer.Option(help="all-gather, ring, ulysses or hierarchical.")
    ] = None
    ep: Annotated[int | None, typer.Option(min=1, help="Expert-parallel degree.")] = None
    etp: Annotated[
        int | None, typer.Option(min=1, help="Tensor parallel inside an expert: 1, or tp.")
    ] = None
    zero: Zero = None
    shard: Annotated[
        int | None, typer.Option(min=0, help="ZeRO shard degree (HSDP); 0: all of dp · cp.")
    ] = None
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Sequences per micro-batch.")] = (
        None
    )
    virtual_stages: Annotated[int | None, typer.Option(min=1, help="Model chunks per rank.")] = None
    schedule: Annotated[
        str | None, typer.Option(help="Pipeline schedule; default 1f1b or interleaved.")
    ] = None
    recompute: Annotated[str | None, typer.Option(help="none, selective or full.")] = None
    stage_layers: Annotated[
        str | None, typer.Option(help="Layers of each virtual stage, as 3,4,4,3.")
    ] = None
    stage_recompute_layers: Annotated[
        str | None,
        typer.Option(help="Layers that each virtual stage recomputes in full, as 2,1,0,0."),
    ] = None
    sequence_parallel: Annotated[
        bool | None,
        typer.Option("--sequence-parallel/--no-sequence-parallel", help="Default: on when tp > 1."),
    ] = None


def chosen(group: object) -> dict[str, Any]:
    """The options of a group that were given: all that are not None."""
    values = {one.name: getattr(group, one.name) for one in fields(group)}  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if value is not None}


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with every group of options replaced by the options themselves."""
    hints = get_type_hints(command, include_extras=True)
    options: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind):
            groups[parameter.name] = kind
            kinds = get_type_hints(kind, include_extras=True)
            options += [_option(one, kinds[one.name]) for one in fields(kind)]
        else:
            options.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind))

    def expanded(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
        command(**given)

    expanded.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    expanded.__annotations__ = {option.name: option.annotation for option in options}
    return expanded


def _option(one: Field[Any], kind: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if one.default is MISSING else one.default
    return inspect.Parameter(
        one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
    )
