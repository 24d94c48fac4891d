"""Plans to export: random legal ones, with an estimate that no test looks at."""

from hypothesis import strategies as st

from meshwright.exports.canonical import DEFAULT_ORDER, even_split
from meshwright.exports.limits import Limits, problems
from meshwright.specs import Estimate, Job, Layout, Plan, load_cluster, load_model
from meshwright.specs.job import RECIPES

MODELS = ("llama3-8b", "llama3-70b", "mixtral-8x7b", "qwen2.5-7b", "gpt2-xl", "deepseek-v3")
TITAN = ("llama3.1-8b", "llama3.1-70b", "qwen3-4b", "qwen3-30b-a3b", "deepseek-v3")
NO_ESTIMATE = Estimate(
    step_time_s=1, tokens_per_s_per_gpu=1, mfu=0.5, hfu=0.5, bubble_fraction=0, peak_memory_bytes=1,
    capacity_bytes=2, fits=True, memory_parts={"all": 1.0}, time_parts={"all": 1.0},
)  # fmt: skip


HOSTS = {"nvidia": ("h100", 8), "amd": ("mi300x", 8), "google": ("tpu-v5p", 4)}


def hosts_of(can, world):
    """A cluster of the devices that a framework's files are for, with so many of them."""
    device, host = HOSTS[can.exported_on[0]]
    return f"{device}:{max(1, -(-world // host))}x{min(host, world)}"


def make_plan(model="llama3-8b", cluster=None, job=None, **layout) -> Plan:
    chosen = Layout(**layout)
    if cluster is None:
        cluster = f"h100:{max(1, -(-chosen.world // 8))}x{min(8, chosen.world)}"
    job = job or Job(seq_len=4096, global_batch=chosen.dp * chosen.micro_batch * 8)
    return Plan(
        model=load_model(model), cluster=load_cluster(cluster), job=job, layout=chosen,
        estimate=NO_ESTIMATE, fits=True,
    )  # fmt: skip


@st.composite
def plans(draw, limits: Limits, models=MODELS) -> Plan:
    """Random plans that a target says it can express."""
    name = draw(st.sampled_from(models))
    model = load_model(name)
    power = st.sampled_from((1, 2, 4, 8))
    able = limits.can
    can = able.has
    tp = draw(power.filter(lambda n: model.kv_heads % n == 0)) if can("tp") else 1
    pp = draw(power) if can("pp") else 1
    cp = draw(st.sampled_from((1, 2, 4))) if can("cp") else 1
    dp = draw(st.sampled_from((1, 2, 3, 8, 16)))
    host = HOSTS[able.exported_on[0]][1]
    while (dp * tp * pp * cp) % host and dp * tp * pp * cp > host:
        dp += 1
    virtual = draw(st.sampled_from((1, 2, 3))) if pp > 1 and can("virtual_stages") else 1
    ep = etp = 1
    if model.experts and can("ep"):
        ep = draw(st.sampled_from([n for n in (1, 2, 4, 8) if (dp * cp) % n == 0]))
        etp = draw(st.sampled_from((1, tp)))
    zero = draw(st.sampled_from(able.zero))
    shard = 0
    if zero and able.hybrid_shard:
        shard = draw(st.sampled_from([0, *(n for n in (2, 4, 8) if (dp * cp) % n == 0)]))
    split = None
    if pp > 1 and able.stage_layers and draw(st.booleans()):
        even = list(even_split(model.layers, pp, virtual))
        moved = draw(st.integers(0, len(even) - 1))
        if even[moved] > 1:
            even[moved] -= 1
            even[draw(st.integers(0, len(even) - 1))] += 1
        split = tuple(even)
    recompute = draw(st.sampled_from(able.recompute))
    layers = 0
    if recompute == "full" and able.recompute_layers and draw(st.booleans()):
        layers = draw(st.integers(1, 3)) * virtual
    micro = draw(st.sampled_from((1, 2, 3)))
    schedule = "interleaved" if virtual > 1 else "1f1b"
    if pp > 1:
        allowed = [
            s
            for s in able.schedules
            if (s in ("interleaved", "looped-bfs")) == (virtual > 1)
            and s not in ("zb-v", "dualpipe-v")
        ]
        schedule = draw(st.sampled_from(allowed or [schedule]))
    precision = draw(st.sampled_from(("bf16", "bf16-fp32-grads", "fp16", "fp8", "fp32")))
    world = dp * tp * pp * cp
    plan = make_plan(
        name, hosts_of(able, world), job=Job(seq_len=draw(st.sampled_from((2048, 4096))), global_batch=dp * micro
                      * pp * draw(st.integers(1, 4)), precision=RECIPES[precision]),
        dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, virtual_stages=virtual, zero=zero, shard=shard,
        micro_batch=micro, recompute=recompute, recompute_layers=layers, stage_layers=split,
        sequence_parallel=draw(st.booleans()) if able.sequence_parallel == "free"
        else able.sequence_parallel == "always" and tp > 1,
        schedule=schedule, rank_order=draw(st.sampled_from(able.rank_orders or (DEFAULT_ORDER,))),
    )  # fmt: skip
    from hypothesis import assume

    assume(not problems(plan, limits))
    return plan
