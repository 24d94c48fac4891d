"""What one file says of a run, before what it leaves open is asked for or guessed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError, nearest
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model

if TYPE_CHECKING:
    from meshwright.imports.options import Options

Kind = Literal["guess", "unmodelled", "unread", "note"]


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing a reader of the file should know.

    `guess`: the file does not say it, and what was taken instead; `unmodelled`: understood, but
    the estimate has no term for it; `unread`: an option that is not known; `note`: anything else.
    """

    kind: Kind
    option: str
    text: str

    def sentence(self) -> str:
        """The remark as it is printed after its kind."""
        return f"{self.option}: {self.text}" if self.option else self.text


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says beside the file.

    Args:
        config: which configuration, where a file registers several.
        variables: of the environment that a script reads.
        arguments: of the script itself (`$1`, `$2`…).
        guess: take the offered guess where the file does not say what it runs on, or which model.
        strict: refuse options that are not known instead of naming them.
    """

    model: Model | None = None
    cluster: Cluster | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    config: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    guess: bool = False
    strict: bool = False

    def chosen(self, known: Collection[str], holds: str) -> str:
        """The configuration that is read of a file with several: its only one, or what --config names.

        Args:
            holds: what the file does to how many of what, `{}` for the number.

        Raises:
            SpecError: there are several and none is chosen, or none with that name.
        """
        name = self.config or (next(iter(known)) if len(known) == 1 else "")
        if not name:
            first = f"{', '.join(list(known)[:12])}{'…' if len(known) > 12 else ''}"
            says = f"{holds.format(len(known))}: say which with --config, one of {first}"
            raise SpecError("--config", None, says)
        if name not in known:
            raise SpecError("--config", name, nearest(name, known))
        return name


PROJECTOR = "the projector trains beside a frozen encoder; it is priced as frozen, too"
"""Said where a file trains that part of a multimodal model alone."""


@dataclass(slots=True)
class Reading:
    """What a file says. Zero and empty mean that it does not.

    `model_left`: the option that names the model, and the variable or argument that it leaves it to.
    `layout` holds fields of Layout but dp, micro_batch and shard; `job` fields of Job but seq_len
    and global_batch. `likely` is the device that is offered where the file says none. `replicate` is the number of copies that a hybrid-sharded state is held in;
    `shard` the ranks of one shard group, where the format says that instead. `jax`: devices are counted as
    JAX shows them, of which some chips have two; `cores`: as cores, so many a chip. `steps` are optimizer steps of the
    whole run. `counts_itself`: the program says on how many devices it trains, whatever a launcher or a batch system starts.
    `task` is what it trains for beside the next token (`dpo`,
    `grpo`…), `reference` whether the untrained model is held beside; `reduces_each`
    whether gradients are reduced every micro-batch where the tool's FSDP waits for the last. `encoder_frozen`:
    where the model has an encoder of images or sound, it does not train; `image_pixels` are the most of an image.
    `floors`: the program divides its batch without a rest, and drops what is left.
    """

    format: str
    model: Model | None = None
    model_name: str = ""
    model_left: tuple[str, str] = ("", "")
    devices: int = 0
    hosts: int = 0
    per_host: int = 0
    device: str = ""
    likely: str = "h100"
    dp: int = 0
    replicate: int = 0
    shard: int = 0
    micro_batch: int = 0
    global_batch: int = 0
    batch_tokens: int = 0
    accumulation: int = 0
    each: float = 0.0
    jax: bool = False
    cores: int = 1
    seq_len: int = 0
    steps: int = 0
    counts_itself: bool = False
    layout: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    task: str = ""
    reference: bool = False
    reduces_each: bool = False
    encoder_frozen: bool = False
    floors: bool = False
    image_pixels: int = 0
    offload: set[str] = field(default_factory=set)
    remarks: list[Remark] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)

    def unmodelled(self, option: str, text: str) -> None:
        """Name an option that is understood but has no term in the estimate."""
        self.remarks.append(Remark("unmodelled", option, text))

    def note(self, text: str, option: str = "") -> None:
        """Say something that a reader of the file should know."""
        self.remarks.append(Remark("note", option, text))

    def guess(self, option: str, text: str) -> None:
        """Say what was taken where the file is silent."""
        self.remarks.append(Remark("guess", option, text))

    def count_steps(self, options: Options, *names: str) -> None:
        """Note the optimizer steps of the whole run; none where no count stands there (-1, or a variable)."""
        try:
            self.steps = max(0, int(options.number(*names)))
        except (SpecError, OverflowError):
            self.steps = 0

    def world(self) -> int:
        """Devices that the file starts; 0 where it does not say."""
        return self.devices or self.hosts * self.per_host


@dataclass(frozen=True, slots=True)
class Imported:
    """What a file runs, and what was assumed to complete it."""

    format: str
    model: Model
    cluster: Cluster
    job: Job
    layout: Layout
    remarks: tuple[Remark, ...] = ()
    offload: frozenset[str] = frozenset()
    task: str = ""
    reference: bool = False
    options: dict[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """The remarks as sentences, each after its kind."""
        return tuple(
            one.sentence() if one.kind == "note" else f"{_TITLES[one.kind]}: {one.sentence()}"
            for one in self.remarks
        )


_TITLES = {"guess": "a guess", "unmodelled": "not modelled", "unread": "not understood"}
