"""torchtitan compiles blocks and loss where it is told to: what is not compiled is priced as torch runs it."""

import pytest

from meshwright.costs.frameworks import behaviour
from meshwright.imports.files import import_text
from meshwright.imports.reading import Given
from meshwright.specs import load_cluster

ONE = Given(cluster=load_cluster("h100:1x8"))
TOML = """
[job]
dump_folder = "out"
[model]
name = "llama3"
flavor = "8B"
[training]
seq_len = 8192
local_batch_size = 2
[parallelism]
data_parallel_shard_degree = -1
[compile]
{compiled}
"""


@pytest.mark.parametrize(
    ("compiled", "block", "loss"),
    [
        ("", False, False),
        ("enable = false", False, False),
        ("enable = true", True, True),
        ('enable = true\ncomponents = ["loss"]', False, True),
        ('enable = true\ncomponents = ["model"]', True, False),
    ],
)
def test_what_a_table_compiles(compiled: str, block: bool, loss: bool) -> None:
    found = behaviour(import_text(TOML.format(compiled=compiled), "run.toml", ONE).job)
    assert found.fused_norm is block and found.fused_activation is block
    assert (found.kernels_per_layer < 20) is block
    assert (found.logits_bytes, found.loss_bytes) == ((4.0, 8.0) if loss else (12.0, 40.0))


def test_older_tables_say_it_beside_the_training() -> None:
    text = TOML.format(compiled="").replace("seq_len", "compile = true\nseq_len", 1)
    assert import_text(text, "run.toml", ONE).job.framework_options == {}
