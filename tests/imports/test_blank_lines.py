"""Files of many blank lines, which a pattern that runs over line ends would look at for minutes."""

import pytest

from meshwright.imports.files import import_file
from meshwright.imports.reading import Given
from meshwright.imports.script_refusals import starts_arguments
from meshwright.specs.clusters import load_cluster
from meshwright.specs.errors import SpecError


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.yaml", "a: 1\n"), ("a.py", "x = 1\n"), ("a.sh", "echo torchrun\n"), ("a.json5", "x\n")],
)
def test_blank_lines_cost_time_in_proportion(tmp_path, in_proportion, name, text):
    path = tmp_path / name
    given = Given(cluster=load_cluster("h100:1x8"))

    def read(lines):
        path.write_text("\n" * lines + text + " \n" * (lines // 2))
        with pytest.raises(SpecError):
            import_file(path, given)

    in_proportion(read, 40_000)


def test_a_launcher_of_many_variables_costs_time_in_proportion(in_proportion):
    """Each option with a variable could be read in two ways once: twelve of them took hours."""
    lines = {n: "torchrun " + "--a=$A " * n + 't.py "$@"' for n in (40_000, 5_000)}
    in_proportion(lambda n: starts_arguments(lines[n]), 40_000)
    assert not starts_arguments(lines[40_000])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('srun torchrun --nproc=$N -m $X "$@"', True),
        ("accelerate launch --config $B ${@}", True),
        ("torchrun 8 $1", True),
        ("torchrun --a=$A \\\n  $*", True),
        ("python train.py $@", False),
        ("# torchrun $@", False),
        ("bash x.sh $@", False),
    ],
)
def test_a_launcher_without_a_program_is_seen(line, found):
    assert starts_arguments(line) is found
