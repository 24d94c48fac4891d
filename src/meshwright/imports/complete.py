"""Complete what a file says with what the user says; ask for the rest, or guess and say so."""

from __future__ import annotations

import math
import re
from typing import Any

from meshwright.exports.bundle import STEPS
from meshwright.exports.canonical import canonical
from meshwright.exports.stamp import Stamp
from meshwright.imports.names import guess_model, model_named, refuse_other
from meshwright.imports.reading import Given, Imported, Reading
from meshwright.imports.seeing import say_images, train_encoder
from meshwright.planner.corners import largest_divisor
from meshwright.specs import load_cluster, load_model
from meshwright.specs.cluster import Cluster
from meshwright.specs.errors import SpecError
from meshwright.specs.job import Job
from meshwright.specs.layout import Layout
from meshwright.specs.model import Model
from meshwright.specs.models import model_names
from meshwright.specs.sharing import in_cores

_PRESET_SIZE = re.compile(r"[\w.-]{1,40}:\d{1,7}x\d{1,4}", re.ASCII)
"""How the clusters of presets are called in a stamp."""

_SHAPE = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "gated", "norm",
    "tied_embeddings", "qkv_bias", "attention_out_bias", "qk_norm", "positions", "window",
    "window_period", "latent_attention", "experts",
)  # fmt: skip
"""What a file with an architecture of its own must agree in with the preset that its stamp names."""


def complete(reading: Reading, given: Given, stamp: Stamp) -> Imported:
    """Return the run that a file describes.

    Raises:
        SpecError: the model or the cluster is not known (one sentence asks for both), or numbers
            contradict each other.
    """
    model, cluster = _model_and_cluster(reading, given, stamp)
    if reading.jax:
        _count_chips(reading, cluster.device.jax_devices)
    if reading.cores > 1 and cluster.device.vendor == "aws":
        cluster = in_cores(cluster, reading.cores)
    world = _world(reading, given, cluster)
    cluster, world = _enough(reading, given, model, cluster, world)
    fields = dict(reading.layout)
    split = [int(fields.get(axis, 1)) for axis in ("tp", "pp", "cp")]
    inner = split[0] * split[1] * split[2]
    if inner < 1 or world % inner:
        raise SpecError(
            "world",
            world,
            "a multiple of tp · pp · cp = "
            f"{split[0]} · {split[1]} · {split[2]} devices is expected",
        )
    if split[1] > model.layers and not fields.get("stage_layers"):
        raise SpecError("pp", split[1], f"at most the {model.layers} layers are expected")
    dp = world // inner
    micro = given.micro_batch or reading.micro_batch or stamp.micro_batch
    steps = dp * reading.accumulation
    if not micro and reading.accumulation > 1 and reading.global_batch % steps == 0:
        micro = reading.global_batch // steps  # the file says the step's batch and its parts
    if not micro:
        micro = 1
        reading.guess("--micro-batch", "the file holds no micro-batch; 1 is taken")
    seq_len = _seq(reading, given, stamp, model)
    seq_len = _padded(reading, fields, seq_len)
    batch = _batch(reading, given, stamp, dp, micro, seq_len)
    if reading.floors and batch % (dp * micro) and batch >= dp * micro:
        whole = batch // dp // micro * micro * dp
        reading.guess("--global-batch", f"the program divides {batch} sequences without a rest among {dp} copies and passes of {micro}: {whole} are left")  # fmt: skip
        batch = whole
    fields |= {"dp": dp, "micro_batch": micro, "shard": _shard(reading, fields, dp * split[2])}
    if batch % (dp * micro) and batch % dp == 0 and _guessed(reading, "--micro-batch"):
        micro = largest_divisor(batch // dp, micro)
        fields["micro_batch"] = micro
        reading.guess("--micro-batch", f"{micro} is the largest up to that which divides the batch")
    if int(fields.get("ep", 1)) > 1 and model.experts is None:
        reading.note(f"ep = {fields['ep']} is left out: {model.name} has no experts", "--model")
    fields.setdefault("offload", sorted(reading.offload))
    layout = Layout.parse(fields, "layout")
    reading.job |= _made_for(stamp, reading.job.get("framework", ""))
    if not stamp.target:
        _accumulation(reading, fields, batch // (dp * micro))
    if reading.steps > STEPS:
        # A thousand and fewer are what files hold that measure or show something, ours among them.
        reading.job.setdefault("token_budget", float(reading.steps) * batch * seq_len)
    train_encoder(reading, model)
    job = Job.parse({**reading.job, "seq_len": seq_len, "global_batch": batch}, "job")
    say_images(reading, model, job)
    if batch % (dp * micro):
        raise SpecError(
            "global_batch",
            batch,
            f"a multiple of dp · micro_batch = {dp} · {micro} is expected; "
            "--global-batch, --micro-batch or --cluster says otherwise",
        )
    _check_experts(layout, model)
    return Imported(
        reading.format, model, cluster, job, canonical(layout, model), tuple(reading.remarks),
        frozenset(reading.offload), reading.task, reading.reference, reading.options,
    )  # fmt: skip


def _count_chips(reading: Reading, devices: int) -> None:
    """Turn counts of JAX's devices into counts of chips that have several."""
    reading.micro_batch = max(1, round(reading.each * devices))
    if reading.layout.get("zero") == 3 and not reading.dp:
        return  # shards take the devices that are left; copies are counted as they are
    if reading.dp % devices == 0 and reading.replicate % devices == 0:
        reading.dp, reading.replicate = reading.dp // devices, reading.replicate // devices


_ACCUMULATES = frozenset({"trl", "trainer", "axolotl", "llama-factory", "accelerate"})
"""Tools on transformers' Trainer or accelerate, whose FSDP reduces gradients after the last micro-batch alone."""


def _accumulation(reading: Reading, fields: dict[str, Any], micro_batches: int) -> None:
    """Say that gradients are summed whole while batches accumulate, where FSDP shards them."""
    fsdp = reading.job.get("framework") in _ACCUMULATES and int(fields.get("zero", 0)) >= 2
    if not fsdp or micro_batches < 2 or reading.reduces_each:
        return
    options = reading.job.get("framework_options", {})
    reading.job["framework_options"] = {**options, "accumulates_whole": True}
    tune = reading.job.get("finetune")
    if tune is None or not tune.adapts:
        reading.note(
            "under FSDP gradients are summed whole on every device until the last micro-batch; "
            "accelerator_config: {gradient_accumulation_kwargs: {sync_each_batch: true}} keeps them sharded",
            "gradient_accumulation_steps",
        )


def _made_for(stamp: Stamp, read: str) -> dict[str, str]:
    """The framework that an exported file was made for, unless its words are of what shards in that one's place."""
    from meshwright.exports.targets import FRAMEWORKS

    for target in FRAMEWORKS.values():
        if f"{target.title} {target.version}" in stamp.target:
            return (
                {}
                if target.limits.can.shards_as == read
                else {"framework": target.limits.framework}
            )
    return {}


def _guessed(reading: Reading, option: str) -> bool:
    return any(one.kind == "guess" and one.option == option for one in reading.remarks)


def _needed(reading: Reading, model: Model) -> int:
    """Devices that a file's degrees need at least."""
    fields = reading.layout
    inner = _inner(reading)
    ep, etp = int(fields.get("ep", 1)), int(fields.get("etp", 1))
    if ep == 1 or model.experts is None:
        return inner
    pp = int(fields.get("pp", 1))
    return pp * math.lcm(inner // pp, ep * etp)


def _enough(
    reading: Reading, given: Given, model: Model, cluster: Cluster, world: int
) -> tuple[Cluster, int]:
    """The cluster and its devices; asks where a file starts fewer than its own degrees need."""
    needed = _needed(reading, model)
    if given.cluster is not None or needed < 1 or world % needed == 0 or needed > 1_000_000:
        return cluster, world
    per_host = min(_most(reading) * reading.cores, reading.per_host or 8 * reading.cores)
    hosts = -(-needed // per_host)
    more = hosts * per_host if (hosts * per_host) % needed == 0 else needed * per_host
    why = f"the file starts {world} devices, " if reading.world() else ""
    offer = (
        f"{reading.device or reading.likely}:{more // per_host}x{max(per_host // reading.cores, 1)}"
    )
    if not given.guess:
        raise SpecError(
            "--cluster",
            None,
            f"{why}its degrees need a multiple of "
            f"{needed} devices: say what it runs on, as {offer} (a guess, taken with --guess)",
        )
    reading.guess(
        "--cluster", f"{why}its degrees need a multiple of {needed} devices; {offer} is taken"
    )
    taken = load_cluster(offer)
    return (in_cores(taken, reading.cores) if reading.cores > 1 else taken), more


def _check_experts(layout: Layout, model: Model) -> None:
    if (
        layout.ep > 1
        and model.experts is not None
        and (layout.dp * layout.cp * layout.tp) % (layout.ep * layout.etp)
    ):
        raise SpecError(
            "ep",
            layout.ep,
            f"ep · etp = {layout.ep} · {layout.etp} must divide dp · cp · tp = "
            f"{layout.dp} · {layout.cp} · {layout.tp}",
        )


def _model_and_cluster(reading: Reading, given: Given, stamp: Stamp) -> tuple[Model, Cluster]:
    asked: list[SpecError] = []
    model = given.model or _stamped(reading, stamp)
    if model is None and reading.model_name:
        model = model_named(reading.model_name)
        if model is None:
            refuse_other(reading.model_name)
        guessed = guess_model(reading.model_name) if model is None else None
        if guessed is not None and guessed.experts is None and int(reading.layout.get("ep", 1)) > 1:
            guessed = None  # a model of that size, but without the experts that the file splits
        if model is None and guessed is not None and given.guess:
            model = guessed
            reading.guess(
                "--model",
                f"{reading.model_name} is no preset; "
                + (
                    "a typical shape of its size is taken"
                    if guessed.name.startswith("typical-")
                    else f"{guessed.name}, of that family and size, is taken"
                ),
            )
        if model is None:
            offer = (
                f" (a guess by its size: --model {guessed.name.removeprefix('typical-')}"
                ", taken with --guess)"
                if guessed is not None
                else ""
            )
            asked.append(SpecError(
                "--model", None, f"the file names {reading.model_name[:80]}, which is no preset: "
                f"give a preset, its config.json or a size{offer}",
            ))  # fmt: skip
    elif model is None:
        asked.append(SpecError("--model", None, _unnamed(reading)))
    cluster = given.cluster or _stamped_cluster(stamp)
    if cluster is None:
        cluster = _asked_cluster(reading, given, asked)
    if asked:
        first, *more = asked
        also = f"; also {more[0].field}: {more[0].remedy}" if more else ""
        raise SpecError(first.field, first.value, first.remedy + also)
    assert model is not None and cluster is not None  # noqa: PT018
    return model, cluster


def _unnamed(reading: Reading) -> str:
    """How to say the model of a file that names none, or leaves it to what it is started with."""
    option, left = reading.model_left
    if not option:
        return "this format does not describe the model: name it, as llama3-8b"
    name = left.lstrip("$").partition("=")[0]
    how = (
        f'the script takes it as its argument {left}: --args "…" gives all of them'
        if left.isdigit()
        else f"{option} leaves it to {name}: --set {name}=… gives it"
    )
    return f"{how}; or name it, as llama3-8b"


def _asked_cluster(reading: Reading, given: Given, asked: list[SpecError]) -> Cluster | None:
    world = -(-(reading.world() or reading.dp * _inner(reading)) // reading.cores)
    per_host = min(_most(reading), reading.per_host // reading.cores or world or 8)
    if world % per_host:
        per_host = largest_divisor(
            world, per_host
        )  # ten devices are two hosts of five, not two of eight
    hosts = max(1, -(-(world or 8) // per_host)) if world or not reading.hosts else reading.hosts
    if not world:
        per_host = _divides(reading, per_host, hosts)
    offer = f"{reading.device or reading.likely}:{hosts}x{per_host}"
    if not reading.device and not _is_known(reading.likely):
        reading.note(f"it speaks of {reading.likely}, which is no preset", "--cluster")
        offer = f"h100:{hosts}x{per_host}"
    if reading.device:
        try:
            known = load_cluster(offer)
        except SpecError:
            offer = f"h100:{hosts}x{per_host}"
            reading.note(f"it runs on {reading.device}, which is no preset", "--cluster")
        else:
            if world:
                return known
    if given.guess:
        reading.guess("--cluster", f"the file does not say what it runs on; {offer} is taken")
        return load_cluster(offer)
    hint = f" ({world} {'chips' if reading.cores > 1 else 'devices'} are started)" if world else ""
    asked.append(SpecError(
        "--cluster", None, f"say what it runs on{hint}, as {offer} (a guess, taken with --guess)"
    ))  # fmt: skip
    return None


def _is_known(device: str) -> bool:
    try:
        load_cluster(f"{device}:1x1")
    except SpecError:
        return False
    return True


def _most(reading: Reading) -> int:
    """Devices of the usual host of what is offered."""
    device = reading.device or reading.likely
    few = device.startswith(("tpu-", "gb200", "gb300")) and device != "tpu-v6e"
    return 16 if device.startswith("trainium") else 4 if few else 8


def _divides(reading: Reading, most: int, hosts: int) -> int:
    """Devices of each host whose replicas share the batch that the file states evenly."""
    micro, inner = reading.micro_batch or 1, _inner(reading)
    batch = reading.global_batch or reading.batch_tokens // max(reading.seq_len, 1)
    if not batch or batch % (micro * hosts) or inner > most:
        return most
    return largest_divisor(batch // micro // hosts, most // inner) * inner


def _inner(reading: Reading) -> int:
    fields = reading.layout
    return int(fields.get("tp", 1)) * int(fields.get("pp", 1)) * int(fields.get("cp", 1))


def _stamped(reading: Reading, stamp: Stamp) -> Model | None:
    """The file's model: the stamped preset where the file's shape is that preset's."""
    if stamp.model not in model_names():
        # A stamp names a preset, never a file to be opened.
        return reading.model
    known = load_model(stamp.model)
    if reading.model is None:
        return known
    same = all(getattr(known, name) == getattr(reading.model, name) for name in _SHAPE)
    return known if same else reading.model


def _stamped_cluster(stamp: Stamp) -> Cluster | None:
    if not _PRESET_SIZE.fullmatch(stamp.cluster):
        return None
    try:
        return load_cluster(stamp.cluster)
    except SpecError:
        return None


def _world(reading: Reading, given: Given, cluster: Cluster) -> int:
    """Devices of the run: what the user says it runs on, before what a file happens to start."""
    stated = reading.world() or reading.dp * _inner(reading)
    if not stated:
        return cluster.gpus
    if given.cluster is not None and cluster.gpus != stated:
        if reading.dp and not reading.world():
            return stated if stated <= cluster.gpus else cluster.gpus
        reading.note(f"the file starts {stated} devices; --cluster says {cluster.gpus}")
        return cluster.gpus
    return stated


def _seq(reading: Reading, given: Given, stamp: Stamp, model: Model) -> int:
    found = given.seq_len or reading.seq_len or stamp.seq_len
    if found:
        return found
    length = min(4096, model.max_positions or 4096) if model.positions == "learned" else 4096
    reading.guess("--seq", f"the file holds no sequence length; {length} is taken")
    return length


def _padded(reading: Reading, fields: dict[str, Any], seq_len: int) -> int:
    """A length that is a bound, rounded up to what ranks that share a sequence divide evenly: their tool pads it."""
    ring, split = int(fields.get("cp", 1)), int(fields.get("tp", 1)) if fields.get("sequence_parallel") else 1  # fmt: skip
    parts = (2 * ring if ring > 1 else 1) * split
    if seq_len % parts == 0 or not _guessed(reading, "--seq"):
        return seq_len
    whole = -(-seq_len // parts) * parts
    reading.guess("--seq", f"{ring * split} ranks share a sequence, which is padded: {whole} tokens are priced")  # fmt: skip
    return whole


def _batch(reading: Reading, given: Given, stamp: Stamp, dp: int, micro: int, seq_len: int) -> int:
    if given.global_batch:
        return given.global_batch
    if reading.global_batch:
        return reading.global_batch
    if reading.batch_tokens:
        return max(1, reading.batch_tokens // seq_len)
    if reading.accumulation:
        return reading.accumulation * micro * dp
    if stamp.global_batch:
        return stamp.global_batch
    reading.guess(
        "--global-batch",
        f"the file holds no global batch; one micro-batch per replica, {micro * dp}, is taken",
    )
    return micro * dp


def _shard(reading: Reading, fields: dict[str, Any], ranks: int) -> int:
    if not fields.get("zero"):
        return 0
    if reading.replicate > 1:
        if ranks % reading.replicate:
            raise SpecError(
                "replicate", reading.replicate, f"a divisor of dp · cp = {ranks} is expected"
            )
        return ranks // reading.replicate
    return reading.shard if reading.shard and reading.shard < ranks else 0
