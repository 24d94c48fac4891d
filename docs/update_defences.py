"""Write docs/defences.md: the lessons' exercises and drills, planned and defended.

python docs/update_defences.py
"""

from __future__ import annotations

import re
from pathlib import Path

from meshwright.planner.plan import plan
from meshwright.planner.report import markdown_report
from meshwright.specs import Job, load_cluster, load_model
from meshwright.specs.quantities import parse_batch

QUESTIONS = (
    ("drill 14", "llama3-70b", "h100:8x8", 8192),
    ("drill 13", "30B", "a100-80g:4x8", 4096),
    ("exercise c", "200B", "h100:8x8", 4096),
    ("exercise a", "1B", "h100:1x8", 4096),
    ("exercise b", "30B", "a100-80g:1x8", 4096),
    ("exercise d", "13B", "a100-80g:2x8", 4096),
)
HEAD = """# Defended plans

The lessons' exercises and drills, answered by the planner: a batch of about four million tokens a
step, bf16 with AdamW, under the framework that does best. Written by `python docs/update_defences.py`.

"""


def main() -> None:
    sections = []
    for label, model, cluster, seq_len in QUESTIONS:
        job = Job(seq_len=seq_len, global_batch=parse_batch("4M-tokens", seq_len))
        made = plan(load_model(model), load_cluster(cluster), job)
        report = re.sub(r"^(#+) ", r"#\1 ", markdown_report(made), flags=re.M)
        first, _, rest = report.partition("\n")
        sections.append(f"{first} ({label})\n{rest}")
    page = Path(__file__).parent / "defences.md"
    page.write_text(HEAD + "\n".join(sections), "utf-8")


if __name__ == "__main__":
    main()
