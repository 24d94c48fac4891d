"""Import real configurations of other projects and write what became of each to docs/imports.md.

    python benchmarks/imports.py CORPUS_DIR... [--write docs/imports.md [--keep]] [--split seen|held|fresh] [--show]

CORPUS_DIR holds `manifest.tsv` (repository, path, format, split; tab-separated) and each
repository's files under `owner+name/`. A file that asks for what it does not say is asked again
with `--guess`; a registry of several configurations is read at its first one. The files are
others' and stay outside the project.
"""

from __future__ import annotations

import argparse
import re
import time
import tomllib
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshwright.imports.critique import price
from meshwright.imports.files import import_file
from meshwright.imports.reading import Given, Imported
from meshwright.specs import load_model
from meshwright.specs.errors import SpecError

# Refusals for a stated reason that is true of the file, not of the reader.
_RIGHTLY = re.compile(
    r"takes model and batch from|does not train|not modelled|meshwright plans|trains an? |trains a |no command that trains|serves|"
    r"describes no training run|is not Python that can be read|names: import the command|configuration is not here|decoder-only|an inference run|is not valid (?:YAML|JSON|TOML|Python)|an image model|exports weights|no optimizer|no training data|by a search or an autotuner|is of no known framework, and names no|no function that returns a trainer|describes no decoder that is known|starts no training that can be followed|is a sweep|is a record of what a run came to|is a part that others include|sets variables for a NeMo configuration|only what differs from its Hydra defaults"
)


@dataclass
class Case:
    """One file, what it asked for, and what became of it."""

    repository: str
    path: str
    kind: str
    split: str
    asked: list[str] = field(default_factory=list)
    found: Imported | None = None
    reason: str = ""
    verdict: str = ""
    model_asked: bool = False


def run(case: Case, root: Path) -> Case:
    """Import one file, answering what it asks with its own guess where it offers one."""
    path = root / case.repository.replace("/", "+") / case.path
    given = Given()
    for _ in range(6):
        try:
            case.found = import_file(path, given)
            price(case.found)
            case.verdict = (
                "accepted" if not case.asked else f"accepted, asks {', '.join(case.asked)}"
            )
            return case
        except SpecError as error:
            sentence = _bare(str(error))
            answered = _answer(error, sentence, given)
            if answered is None:
                case.reason = sentence
                case.verdict = _verdict(case, error, sentence)
                return case
            given, what = answered
            case.model_asked |= "--model" in what
            case.asked += [one for one in what if one not in case.asked]
        except Exception:  # the point of this command is to find these
            case.reason = traceback.format_exc()
            case.verdict = "TRACEBACK: " + case.reason.strip().splitlines()[-1]
            return case
    case.verdict = "FAILED: asks again and again"
    return case


def _verdict(case: Case, error: SpecError, sentence: str) -> str:
    """Whether a refusal asks for what the file lacks, is true of the file, or is the reader's fault."""
    lacks = any(
        word in sentence
        for word in ("says otherwise", "--set", "--args", "--guess", "left for its reader")
    )
    # A model was given that the file does not name; what the file says of its own contradicts it.
    mismatch = case.model_asked and "layers" in sentence
    if mismatch:
        return "asks: --model: the file names a model that is no preset, and splits its layers"
    if lacks or (error.field.startswith("--") and error.value is None):
        return "asks: " + sentence
    return ("refused: " if _RIGHTLY.search(sentence) else "FAILED: ") + sentence


def _bare(sentence: str) -> str:
    """A refusal without the place of the file on this machine."""
    sentence = re.sub(r"^file = '[^']*'(?:\.\.\.)?: |^file = '\S*: ", "", sentence)
    return re.sub(r"/\S*/(?=[\w.$-]+)", "", sentence)


def _answer(error: SpecError, sentence: str, given: Given) -> tuple[Given, list[str]] | None:
    if error.field == "--config" and "one of " in sentence and not given.config:
        first = sentence.split("one of ", 1)[1].split(",")[0].rstrip("…").strip()
        return replace(given, config=first), ["--config"]
    if "--guess" in sentence and not given.guess:
        asked = [name for name in ("--model", "--cluster", "--set", "--args") if name in sentence]
        return replace(given, guess=True), asked
    if "state-space" in sentence:
        return None  # another model would stand for it
    if given.model is None and (error.field == "--model" or "give --model" in sentence):
        return replace(given, model=load_model("llama3-8b")), ["--model"]
    return None


def main() -> None:
    """Run the corpus and print or write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, nargs="+")
    parser.add_argument("--write", type=Path)
    parser.add_argument(
        "--keep", action="store_true", help="rows of files that are not at hand stay as they are"
    )
    parser.add_argument("--split", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    cases: list[Case] = []
    roots: list[Path] = []
    for root in options.corpus:
        for line in (root / "manifest.tsv").read_text().splitlines():
            repository, path, kind, split = line.split("\t")
            if options.split in ("", split) and re.search(
                options.only or ".", f"{repository} {path} {kind}"
            ):
                cases.append(Case(repository, path, kind, split))
                roots.append(root)
    begun = time.monotonic()
    for case, root in zip(cases, roots, strict=True):
        run(case, root)
        if options.show or not case.verdict.startswith("accepted"):
            print(f"{case.repository} {case.path}: {case.verdict[:260]}")
        if options.show and case.found is not None:
            _print(case.found)
    counts = Counter(case.verdict.split(",")[0].split(":")[0] for case in cases)
    unread = Counter(
        f"{case.kind} {remark.option}"
        for case in cases if case.found is not None for remark in case.found.remarks if remark.kind == "unread"
    )  # fmt: skip
    print(dict(counts), f"{len(cases)} files, {time.monotonic() - begun:.0f} s")
    for name, count in unread.most_common(400 if options.show else 60):
        print(f"  not understood {count:3} {name}")
    if options.write:
        before = options.write.read_text() if options.keep else ""
        options.write.write_text(_page(cases, before))


def _print(found: Imported) -> None:
    job, model = found.job, found.model
    print(
        f"    {found.format} | {model.name} {model.layers}x{model.hidden}/{model.heads}kv{model.kv_heads} ffn{model.ffn} v{model.vocab} "
        f"{model.positions} gated={model.gated} exp={model.experts and (model.experts.experts, model.experts.top_k, model.experts.ffn)} | {found.cluster.name} "
        f"| {found.layout.label()} order={found.layout.schedule} | seq {job.seq_len} gb {job.global_batch} {job.precision.name} {job.optimizer.name} "
        f"{job.framework} tune={job.finetune and job.finetune.label()} drop={job.dropout} docs={job.document_masking} kernel={job.attention_kernel} off={sorted(found.offload)}"
    )
    for remark in found.remarks:
        print(f"      - {remark.kind}: {remark.sentence()[:170]}")


_DRAW = re.compile(r"(?m)^\| (blind\d*) \|(?: [^|]* \|){7}$")
_OF = re.compile(r"(\d+) of (\d+)$")


def _draws(cases: list[Case], before: str) -> list[str]:
    """The table of files that were drawn from repositories that no reader had been tried on: how they fared."""
    told = tomllib.loads((Path(__file__).parent / "data" / "import_draws.toml").read_text())
    rows = {found[1]: found[0] for found in _DRAW.finditer(before)}
    for split in {case.split for case in cases if case.split.startswith("blind")}:
        fresh = [case for case in cases if case.split == split]
        read = sum(case.verdict.startswith("accepted") for case in fresh)
        right = sum(case.verdict.startswith("refused") for case in fresh)
        score, repositories = told[split], len({case.repository for case in fresh})
        rows[split] = (
            f"| {split} | {len(fresh)} | {repositories} | {score.get('drawn', 'drawn by a hash')} | "
            f"{score['compared']} | {score['faithful']} | {read} | {right} |"
        )
    if not rows:
        return []
    counted = [found for name in rows if (found := _OF.search(told[name]["faithful"]))]
    right, drawn = (sum(int(found[at]) for found in counted) for at in (1, 2))
    return [
        f"Of {drawn} files that were drawn and counted one by one, {right} ({right / drawn:.0%}) were faithful at "
        "first sight; then the faults", "were mended by kind.", "",
        "| draw | files | repositories | how | compared | faithful at first sight | read now | refused now |",
        "|---|--:|--:|---|---|--:|--:|--:|",
        *(rows[name] for name in sorted(rows, key=lambda name: int(name[5:] or 1))), "",
    ]  # fmt: skip


def _kept(before: str, cases: list[Case]) -> dict[tuple[str, str], str]:
    """Rows of an earlier page by repository and path that are not run now."""
    now = {(case.repository, case.path) for case in cases}
    return {
        (found.group(1), found.group(2)): found.group(0)
        for found in re.finditer(r"(?m)^\| ([^| ]+/[^| ]+) \| ([^|]+) \|.*\|$", before)
        if (found.group(1), found.group(2)) not in now
    }


def _page(cases: list[Case], before: str = "") -> str:
    rows = _kept(before, cases)
    verdicts = [case.verdict for case in cases]
    verdicts += [row.removesuffix(" |").split(" | ", 3)[3] for row in rows.values()]
    accepted, refused, asks = (
        sum(one.startswith(word) for one in verdicts) for word in ("accepted", "refused", "asks")
    )
    repositories = {case.repository for case in cases} | {repository for repository, _path in rows}
    lines = [
        "# Imports tried on other projects' files", "",
        "Written by `python benchmarks/imports.py CORPUS_DIR... --write docs/imports.md`. The files are others'",
        "and not part of this project; each was read as it stands in the repository named. *Asks* names what",
        "the file does not say and the options that give it; the guess that the import offers was taken, and",
        "llama3-8b given where a file names no model, or none that is a preset.", "",
        "Which option says nothing of memory, time or numerics was judged name by name in the frameworks' own parsers",
        "(`imports/data/options.toml`, `options_tables.toml`); what is in no list is named. Known to be left: programs of one's own whose model and",
        "batch come from what calls them, and whether one task or eight start under a bare `srun`. Pax's registries and trainers of a",
        "repository's own package (minGPT's, benchopt's) train and are refused as describing no run: they count as refused, rightly or not.", "",
        f"{len(verdicts)} files of {len(repositories)} repositories: {accepted} read, {refused} refused because they are "
        f"no training run of a decoder-only", f"transformer, {asks} left asking, "
        f"{len(verdicts) - accepted - refused - asks} that should have been read.",
        *([f"{len(rows)} of them were not at hand when this page was last written and stand as they were read before."] if rows else []),
        "", *_draws(cases, before),
        "| repository | path | read as | verdict |", "|---|---|---|---|",
    ]  # fmt: skip
    rows |= {(case.repository, case.path): _row(case) for case in cases}
    lines += [rows[key] for key in sorted(rows, key=lambda key: (key[0].lower(), key[1]))]
    return "\n".join(lines) + "\n"


def _row(case: Case) -> str:
    format_ = case.found.format if case.found is not None else ""
    layout = (
        f": {case.found.layout.label()}, {case.found.model.name}" if case.found is not None else ""
    )
    verdict = (case.verdict + layout).replace("|", "\\|").replace("\n", " ")
    return f"| {case.repository} | {case.path} | {format_} | {verdict[:230]} |"


if __name__ == "__main__":
    main()
