"""An uncaught error that no table knows, by what kind of thing it says: its class, its words, the frame it came from.

Frameworks refuse what they are given in thousands of sentences (25,601 that PyTorch, Megatron-LM, DeepSpeed, NeMo, Transformers, TRL,
accelerate, nanotron, torchtitan, Lightning, Transformer Engine and others can print were listed to make these rules), but in few
kinds: a combination that they do not have, a value out of range, sizes that differ, a file, package or name that is not there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshwright.diagnose.records import Evidence, Finding, Kind, of


@dataclass(slots=True)
class Failure:
    """One error of a program, as it printed it."""

    line: int
    text: str
    """Class and message."""
    rank: int | None = None
    frame: str = ""
    """Where it was raised: function, file and line."""
    wrapped: bool = False
    """Another error was raised from it, which says what it means."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What an error says whose class or words match."""

    pattern: re.Pattern[str]
    kind: Kind
    sentence: str
    remedy: str
    where: str
    confidence: float


def _rule(pattern: str, kind: Kind, sentence: str, remedy: str, where: str, confidence: float = 0.55) -> Rule:  # fmt: skip
    return Rule(re.compile(pattern), kind, sentence, remedy, where, confidence)


_WORDS = (
    _rule(r"NoneType' object|^(?:ZeroDivision|Recursion|Name|UnboundLocal|StopIteration)\w*Error?", "unknown",
          "The program stopped with an error of its own", "read the traceback above that line; it is not a fault of speed, memory or "
          "communication that this text shows", "program", 0.5),
    _rule(r"(?i)^(?:Import|ModuleNotFound|PackageNotFound)Error|\bpip install\b|(?:is|are) not installed|requires? .{0,60}to be installed|could not import"
          r"|please install|must be installed|version .{0,40}(?:is required|or (?:newer|higher|later|greater|above))|requires? .{0,40}(?:>=|version)|too old|upgrade to",
          "wrong-configuration", "A package is missing, or of another version than is asked for",
          "install what the message names, in the version it names, on every host", "start-up: versions", 0.7),
    _rule(r"(?i)^FileExistsError|\[Errno (?:17|39|66)\]|Directory not empty", "wrong-configuration", "Something that the run wants to make is there already",
          "several ranks make or rename one folder at once (only the main process may: on a shared file system one of all hosts, else one a host), or an earlier run left it: remove or "
          "name it anew; newer releases of the trainer make checkpoints' folders on one rank alone", "files", 0.65),
    _rule(r"(?i)^(?:FileNotFound|NotADirectory|IsADirectory)Error|no such file|(?:does|do) not exist|doesn't exist|(?:was|were|is|are) not found (?:at|in) \S*/|not a valid (?:path|file|directory)|(?:could not|cannot|can't|unable to) (?:open|read|load|find) .{0,40}(?:file|path|director|folder|checkpoint)",
          "wrong-configuration", "A file or folder that the run needs is not there, or not readable",
          "see that the path exists on every host (a shared file system, or a copy on each), and the working folder", "files", 0.7),
    _rule(r"(?i)unexpected keyword argument|missing \d+ required positional|takes (?:from )?\d+ (?:to \d+ )?positional|^AttributeError: (?!'NoneType)|^ImportError|has no attribute",
          "wrong-configuration", "Caller and library do not go together: the one uses what this version of the other does not have",
          "install the versions that the program was written for (its requirements), all of one release of the framework", "versions", 0.6),
    _rule(r"(?i)^(?:Connection|BrokenPipe|ConnectionReset|EOF)\w*Error|broken pipe|connection (?:reset|refused|aborted|closed)|remote end closed", "unknown",
          "A process or service that this one talked to went away, or was not reached", "read the log of the other side (another rank, the store, a data or "
          "tracking service) from before this line", "connection to a process", 0.5),
    _rule(r"(?i)^Timeout\w*|time[ds]? ?out|deadline exceeded", "unknown", "Something was waited for longer than allowed",
          "see what the frame waits for, and the state of the other side at that time; a longer limit only helps what is slow", "time-out", 0.5),
    _rule(r"(?i)checkpoint|state[_ ]?dict|(?:missing|unexpected) keys?\b|safetensors|pickle|deserializ", "wrong-configuration",
          "A checkpoint (or what is saved in it) does not fit the run that is to take it",
          "load it with the model, wrapping and parallel sizes it was saved with, or convert it first; see that it is whole", "checkpoint", 0.55),
    _rule(r"(?i)(?:shape|size|dimension|length|number of \w+|numel|rows|columns|elements?)\b.{0,80}(?:mismatch|must match|do(?:es)? not match|don't match|unequal|expected|should be|inconsistent|differ|!=)"
          r"|mismatch.{0,40}(?:shape|size|dimension|length)|expected .{0,60}(?:shape|size|dimension|length|elements?)\b|(?:the same|equal) (?:shape|size|length|dimension)",
          "wrong-configuration", "Sizes that have to agree differ",
          "compare the configuration (hidden size, heads, vocabulary, sequence length, parallel sizes) with what the data and the checkpoint have; the frame names "
          "the place", "shapes", 0.6),
    _rule(r"(?i)^NotImplementedError|not (?:yet |currently |been )?(?:supported|implemented|compatible|allowed|available|permitted|valid|possible)|un(?:supported|implemented)|(?:only|doesn't|does not|do not|don't|cannot|can't|can not|can only|may not) (?:\w+ )?(?:support|be (?:used|set|combined|enabled|mixed|specified|both)|work|handle|use)"
          r"|supports? only|only (?:works?|implemented|available|possible|valid|allowed)|incompatible|mutually exclusive|conflict|at the same time|in combination|together with", "wrong-configuration",
          "The framework does not have this combination of options (or not on this device)",
          "change one of the options that the message names, or take a release of the framework that has it", "options", 0.65),
    _rule(r"(?i)\b(?:must|should|shall|needs? to|ha(?:s|ve) to|expect(?:s|ed|ing)?|require[sd]?|please|invalid|unknown|unrecognized|unexpected|out of range|at least|at most|greater than|less than|between|exactly|"
          r"is not set|not set|not specified|not provided|not (?:in|one of)|(?:be|is) None|missing|duplicate|already|disable|enable|turn (?:on|off)|use|add|remove|increase|decrease|reduce|make sure|ensure|specify|provide|set (?:the|`|'|--)|got\b|but|cannot|can't|could not|unable|no \w+)\b"
          r"|--[a-z][\w-]+", "wrong-configuration", "The framework refuses a value or a state that it was given",
          "the message names what it accepts: correct that option, argument or call", "options", 0.6),
    _rule(r"^KeyError|^LookupError", "wrong-configuration", "A name that the program looks up is not there (a column of the data, a key of the configuration or checkpoint)",
          "compare the name with what the data, the configuration or the checkpoint hold", "names", 0.5),
    _rule(r"^(?:ValueError|AssertionError|TypeError|NotImplementedError|MisconfigurationException|IndexError)", "wrong-configuration",
          "A check of the program refuses what it was given", "read the condition in the frame above: the message says what it met, not always what it wants", "program", 0.45),
)  # fmt: skip

_AREAS = (
    _rule(r"(?i)argument|config|initialize|parallel_state|validat|\bargs?\b|setup|parser", "wrong-configuration", "A check of the configuration failed, without words",
          "read the condition at that line: it compares options with each other or with the number of GPUs", "options", 0.6),
    _rule(r"(?i)checkpoint|serializ|state_dict|load_|convert|resum", "wrong-configuration", "A check while loading or saving failed, without words",
          "read the condition at that line: most often the checkpoint is of another model or layout", "checkpoint", 0.55),
    _rule(r"(?i)data|sampler|loader|collat|tokeniz|packing", "wrong-configuration", "A check of the data failed, without words",
          "read the condition at that line and print the sample or index that it refuses", "data", 0.55),
    _rule(r"(?i)zero|stage_?\d|fsdp|partition|param_and_grad|flat_param|distrib_optimizer|bucket", "wrong-configuration", "A check of sharded parameters or gradients failed, without words",
          "read the condition at that line: a parameter that is used, frozen or reduced otherwise than when it was wrapped", "sharded parameters", 0.5),
    _rule(r"(?i)p2p|schedules?|pipelin|communicat|collective|mappings|distributed_c10d|comm\b", "wrong-configuration", "A check of what ranks send each other failed, without words",
          "read the condition at that line: shapes, micro-batches and stages have to be the same on both sides", "communication", 0.5),
    _rule(r"(?i)layers?|attention|linear|embedding|norm|moe|experts?|rope|rotary|model", "wrong-configuration", "A check of a layer's input or sizes failed, without words",
          "read the condition at that line: sizes that do not divide or agree (heads, hidden size, sequence, experts, parallel sizes)", "shapes", 0.5),
    _rule(r"(?i)kernel|triton|ops?/|fused|cuda|gemm|quant|fp8", "wrong-configuration", "A kernel's check of its input failed, without words",
          "read the condition at that line: a type, shape or alignment that the kernel does not take; take the other implementation", "kernel", 0.5),
)  # fmt: skip
_OPTION = re.compile(r"(--[a-z][\w-]{2,60}|[`'\"][a-z]\w*_\w{1,60}[`'\"=])")
_TRUNCATE = 200


def judge(failure: Failure, file: str) -> Finding:
    """Say of which kind an error is, as far as its words and its frame tell."""
    bare = not failure.text.partition(": ")[2].strip()
    if bare:
        rule = next((one for one in _AREAS if one.pattern.search(failure.frame)), None)
        rule = rule if failure.text.startswith("AssertionError") else None
    else:
        rule = next((one for one in _WORDS if one.pattern.search(failure.text)), None)
    said = failure.text[:_TRUNCATE]
    if bare and failure.frame and failure.frame not in said:
        said += f" in {failure.frame}"
    if rule is None:
        rule = _WORDS[0]
    options = list(dict.fromkeys(one.strip("`'\"=") for one in _OPTION.findall(failure.text)))
    where = rule.where
    if where == "options" and options:
        where = "option " + ", ".join(options[:4])
    return of(
        rule.kind, f"{rule.sentence}: {said}", rule.remedy, confidence=rule.confidence, where=where,
        ranks=() if failure.rank is None else (failure.rank,),
        evidence=(Evidence(file=file, line=failure.line, text=failure.text, rank=failure.rank),),
    )  # fmt: skip
