"""How people head the columns of a table of runs, and which column of the schema each head means.

A head is first looked up as it is (`NAMES`), then by its words: `Mic-BS`, `# HPU`, `per-device batch size`,
`num-ckpt-layers`. One head may join several columns: `TP/PP/CP`, `bs: micro/global`.
"""

from __future__ import annotations

import re
from functools import cache

NAMES: dict[str, str] = {
    "id": "id run name row experiment",
    "source": "source url link reference",
    "gpu": "gpu device accelerator hardware gputype gpumodel gpuname devicetype card chip instance machine",
    "gpus": "gpus numgpus ngpus ngpu gpucount numberofgpus worldsize devices numdevices chips ofgpus",
    "gpus_per_node": "gpuspernode gpusnode gpupernode nprocpernode devicespernode",
    "interconnect": "interconnect network fabric",
    "model": "model modelname llm basemodel",
    "params_b": "paramsb params parameters size modelsize paramsbillion",
    "layers": "layers numlayers nlayers", "hidden": "hidden hiddensize dmodel hiddendim width",
    "heads": "heads numheads attentionheads nheads", "kv_heads": "kvheads numkvheads querygroups numquerygroups",
    "ffn": "ffn ffnhiddensize intermediatesize dff", "vocab": "vocab vocabsize",
    "seq_len": "seqlen seq sequence sequencelength seqlength contextlength context ctx ctxlen contextlen maxseqlen "
    "maxseqlength maxlength blocksize tokenspersample s",
    "precision": "precision dtype datatype mixedprecision",
    "tp": "tp tensorparallel tensorparallelsize tensorparallelism tpsize tpdegree",
    "pp": "pp pipelineparallel pipelineparallelsize pipelineparallelism ppsize ppdegree",
    "vpp": "vpp vp virtualpipeline virtualstages", "dp": "dp dataparallel dataparallelsize dpsize replicas",
    "cp": "cp contextparallel contextparallelsize cpsize", "ep": "ep expertparallel expertparallelsize epsize",
    "experts": "experts numexperts", "topk": "topk moetopk expertstoken",
    "zero_or_fsdp": "zeroorfsdp zero zerostage fsdp sharding strategy dpstrategy distributedstrategy shardingstrategy",
    "sequence_parallel": "sequenceparallel sp",
    "micro_batch": "microbatch mbs microbatchsize perdevicebatchsize perdevicetrainbatchsize batchsizepergpu "
    "batchpergpu bspergpu localbatchsize batchsizeperdevice bsgpu",
    "global_batch": "globalbatch gbs globalbatchsize totalbatchsize effectivebatchsize totalbatch",
    "recompute": "recompute recomputation activationcheckpointing gradientcheckpointing checkpointing ac gradckpt",
    "schedule": "schedule pipelineschedule ppschedule",
    "setup": "setup framework software library remarks details configuration config settings",
}  # fmt: skip
_COLUMNS = {name: column for column, names in NAMES.items() for name in names.split()}
"""Columns by how people head them, in small letters and figures alone."""

ACCUMULATION, NODES, BATCH = "_accumulation", "_nodes", "_batch"
"""Heads that no column of the schema has: micro-batches a step, hosts, a batch and not whose."""
BATCH_TOKENS, REPLICA_BATCH = "_batch_tokens", "_replica_batch"
"""A step's batch in tokens, and what one replica has of a step."""
CHECKPOINTED = "_checkpointed"
"""Layers that are computed again, of all."""
SAID = "_said"
"""Says something of the run that no column holds."""
MEASURED = "_measured"
"""What a run did, which no prediction may see, and who wrote it."""

_SAYS_NOTHING = re.compile(
    r"measured|memory|\bmem\b|vram|peak|time|second|throughput|through[- ]put|tok|sample|flop|\bmfu\b|\bhfu\b|\btgs\b|\btps\b|"
    r"speed|loss|accuracy|score|date|note|comment|outcome|status|oom|cost|price|\bdraw\b|step|util|power|author|performance|"
    r"hours|latency|\bs ?/ ?it(?:er)?\b|\bit(?:er)? ?/ ?s\b|improvement|\bgain|usage|result|\bgpu m$|\bbubble|\bhbm\b|\bwps\b|\bram\b|perplex|epoch|speedup|"
    r"nvidia-smi|rocm-smi|npu-smi|^\s*t\s*$|吞吐|显存|性能|耗时|占用|速度|用时|内存|时间",
    re.IGNORECASE,
)

_COUNT = r"(?:#|n|no|num|nr|number|count|total)"
_DEVICE = r"(?:gpu|npu|hpu|tpu|xpu|device|chip|accelerator|card|gcd)"
_BS = r"(?:b ?sz?|bsz|bs|batch(?: ?size)?)"
_DEGREE = r"(?: ?(?:size|degree|deg|ways?|dim|world size|num|ranks|stages?))?"
_PARALLEL = r"(?: model)?(?: parallel(?:ism|ization)?)?"
_EACH = r"(?: |/| per | each )(?:per )?(?:gpu|device|npu|hpu|card|rank|chip|worker)"

_WORDS: tuple[tuple[str, str], ...] = (
    (BATCH_TOKENS, rf"(?:global |total )?{_BS} ?(?:in )?tokens|tokens ?(?:per |/ ?)(?:global )?(?:batch|step|update|iteration)|(?:global )?batch tokens"),
    (REPLICA_BATCH, rf"{_BS}(?: |/| per )+(?:dp|replica|data parallel(?: rank| group)?)"),
    (ACCUMULATION, r"(?:grad(?:ient)?s? ?)?acc(?:um\w*)?(?: (?:mini|micro))?(?: ?steps?| num)?|gas?|(?:num |n |# )?micro ?batch(?:es)? ?(?:num|count|number)?|pp chunks|num microbatches"),
    ("micro_batch", rf"(?:mic(?:ro)?|local|per (?:gpu|device|npu|rank|card)|device|gpu)(?: train(?:ing)?)? ?{_BS}(?: tokens)?|m{_BS}|(?:train )?{_BS}{_EACH}"),
    ("global_batch", rf"(?:glob(?:al)?|total|eff(?:ective)?|overall|g)(?: train(?:ing)?)? ?{_BS}"),
    (BATCH, rf"(?:train(?:ing)? )?{_BS}"),
    ("gpus_per_node", rf"(?:{_COUNT} )?(?:of )?{_DEVICE}s?(?: |/| per )+(?:node|host|server|machine)"),
    ("gpus", rf"{_COUNT} ?(?:of )?{_DEVICE}s?(?: used)?|{_DEVICE}s? ?(?:count|number|num|#)|{_DEVICE}s|world size|gpu cnt|卡数"),
    (NODES, rf"(?:{_COUNT} ?)?(?:of )?(?:nodes|hosts|servers|machines|instances)|(?:{_COUNT} ?)(?:of )?(?:node|host|server|machine|instance)|nnodes?"),
    ("gpu", rf"{_DEVICE}(?: ?(?:type|model|name|kind|spec))?|hardware|machines?|accelerator|cluster|system|platform|instance(?: type)?|runnable on|(?:run|trained|tested) on|device type|gpu ?s|设备|硬件|芯片"),
    ("interconnect", r"(?:inter|intra)[ -]?(?:node|connect\w*|host)?(?: (?:bandwidth|network|link))?|network(?: type| bandwidth)?|fabric|nics?|links?"),
    ("model", r"(?:base |llm |pretrained )?model(?: ?(?:name|id|path|name or path|type|card))?|llm|network architecture|checkpoint name|模型"),
    ("params_b", r"(?:# ?|n |num |total )?param(?:eter)?s?(?: count| num| b| billions?)?|model size|size|model size b|参数量?"),
    ("layers", rf"(?:{_COUNT} ?)?(?:of )?(?:hidden |transformer |decoder )?(?:layers?|blocks)|depth|n layers?"),
    ("hidden", r"(?:n ?)?(?:hidden|embed\w*|emb|d ?model|model dim\w*)(?: ?(?:dim\w*|size|width))?|n ?embd|width|dim"),
    ("kv_heads", rf"(?:{_COUNT} ?)?(?:of )?(?:kv|key value|k v) ?heads?|(?:{_COUNT} )?(?:query|gqa) groups"),
    ("heads", rf"(?:{_COUNT} ?)?(?:of )?(?:attention |attn |query |q )?heads?"),
    ("ffn", r"(?:ffn|ff|mlp|feed ?forward|intermediate|inner)(?: (?:hidden|inner|intermediate))?(?: ?(?:dim\w*|size|width))?"),
    ("vocab", r"vocab(?:ulary)?(?: ?size)?"),
    ("seq_len", r"(?:max(?:imum)? |packed |train(?:ing)? |encoder |decoder |model )?(?:max )?(?:seq(?:uence)?s?|context|ctx|cut ?off|sample|input|block)(?: ?(?:len(?:gth)?s?|size|window))|(?:model )?(?:max )?(?:length|seq(?:uence)?|ctx|context)|tokens per sample|max len|序列(?:长度)?"),
    ("precision", r"(?:compute |training |model )?(?:precision|d ?type|data ?type|numerics|number format)(?: .*)?|精度"),
    ("tp", rf"(?:tensor{_PARALLEL}|t ?p|model parallel(?:ism)?|mp){_DEGREE}"),
    ("pp", rf"(?:pipeline{_PARALLEL}|pp){_DEGREE}"),
    ("vpp", r"(?:virtual(?: pipeline)?(?: parallel\w*| stages?)?|interleav\w*|v ?pp?)(?: ?(?:size|degree|num|stages?))?"),
    ("dp", rf"(?:data{_PARALLEL}|dp){_DEGREE}"),
    ("cp", rf"(?:context{_PARALLEL}|cp|ulysses|ring|sequence parallel size|sp (?:size|degree)){_DEGREE}"),
    ("ep", rf"(?:expert{_PARALLEL}|ep){_DEGREE}"),
    ("experts", rf"(?:{_COUNT} ?)?(?:of )?(?:routed |total )?experts"),
    ("topk", r"(?:moe )?top ?k|(?:active|activated) experts|experts (?:per|/) token|router topk"),
    ("zero_or_fsdp", r"(?:deepspeed |ds )?zero(?: ?stage)?|fsdp\d?(?: ?(?:size|degree|shard\w*|dim))?|(?:data )?shard(?:ing)?(?: ?(?:strategy|degree|size))?|(?:dp|distributed|sharding|parallel)? ?strategy|(?:enable )?parallel optimizer"),
    (CHECKPOINTED, r"(?:num(?:ber)? (?:of )?|n )?(?:ckpt|check ?point(?:ed|ing)?|recomputed?|remat) layers?(?: num)?|recompute num layers"),
    ("recompute", r"(?:selective |full )?(?:re ?comput\w*|remat)(?: .*)?|(?:activation|gradient|grad|act|selective)s? ?(?:check ?point\w*|ckpt|re ?comput\w*|remat)(?: .*)?|check ?point(?:s|ing)?|ckpt|ac|gc|重计算"),
    ("schedule", r"(?:pipeline |pp )?(?:schedule|algorithm)"),
    ("setup", r"(?:framework|software|library|lib|config\w*|settings?|setup|remarks?|details|stack|code ?base|trainer|engine|backend|框架|配置)(?: version)?"),
    ("id", r"(?:run|exp(?:eriment)?|row|config)(?: ?(?:id|name|#))|#|id"),
)  # fmt: skip
"""Columns by the words of a head, units and punctuation aside; the first that matches the whole head counts."""

_AXES = {
    "tp": "tp", "mp": "tp", "pp": "pp", "dp": "dp", "cp": "cp", "ep": "ep", "vpp": "vpp", "vp": "vpp",
    "sp": "", "etp": "", "mbs": "micro_batch", "micro": "micro_batch", "gbs": "global_batch", "global": "global_batch",
    "nodes": NODES, "gas": ACCUMULATION, "ga": ACCUMULATION,
}  # fmt: skip
"""Parts of a head that joins several columns; those of an empty column are passed over."""
_UNIT = re.compile(r"[(\[（][^)\]）]{0,40}[)\]）]")


def words_of(head: str) -> str:
    """A head's words in small letters, one blank between two: `Mic-BS` is `mic bs`, `SeqLength` `seq length`."""
    text = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", head)
    text = re.sub(r"[^a-z0-9#/\u4e00-\u9fff]+", " ", text.lower())
    return re.sub(r" ?# ?", "# ", text).strip() if "#" in text else text.strip()


@cache
def column_of(head: str) -> str:
    """The column of the schema that a head means, one of this module's own names, or `SAID`."""
    if head in NAMES or head.startswith("measured_"):
        return head
    short = re.sub(r"[^a-z0-9]", "", head.lower().replace("#", "num"))
    short = short if short in _COLUMNS else re.sub(r"^num(?=gpus$|nodes$)|of$", "", short)
    if short in _COLUMNS:
        return _COLUMNS[short]
    for text in dict.fromkeys((words_of(head), words_of(_UNIT.sub(" ", head)))):
        for column, pattern in _WORDS:
            if text and re.fullmatch(pattern, text):
                return column
    return MEASURED if _SAYS_NOTHING.search(head) else SAID


@cache
def joined(head: str) -> tuple[str, ...]:
    """The columns that a head joins, in order: `TP/PP/CP`, `分布式策略（TP/PP/CP）`, `bs: micro/global`; else nothing."""
    parts = re.split(r"[^A-Za-z]+", head)
    found = [_AXES[part.lower()] for part in parts if part.lower() in _AXES]
    others = [part for part in parts if part and part.lower() not in _AXES and part.lower() != "x"]
    known = [column for column in found if column]
    if len(known) < 2 or len(known) != len(set(known)) or len(" ".join(others)) > 24:
        return ()
    return tuple(found)
