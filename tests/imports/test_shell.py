"""Shell scripts followed statically: against bash itself, and what it must never do."""

import contextlib
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.imports.launch import find_launch
from meshwright.imports.shell.follow import read_script
from meshwright.imports.shell.words import unmarked
from meshwright.specs import SpecError

CASES = [
    'A=4\nB=${A:-9}\nC=${D:-$((A * 2))}\nprog $A $B "$C"',
    'ARR=(--a 1 "--b x y")\nARR+=(--c)\nprog "${ARR[@]}" ${#ARR[@]} ${ARR[0]}',
    'if [ "$A" = 1 ]; then X=one; elif [ -z "$A" ]; then X=none; else X=other; fi\nprog $X',
    'N=3\nfor i in 1 2 $N; do S="$S-$i"; done\nprog $S',
    "for ((i = 0; i < 5; i++)); do if ((i < 2)); then L+=(0); else L+=(1); fi; done\nprog ${L[@]}",
    "case x$Q in\n x) Y=empty;;\n *) Y=full;;\nesac\nprog $Y",
    'f() { R="$1/$2"; }\nf a b\nprog $R',
    "P=a/b/c.tar.gz\nprog ${P##*/} ${P%%.*} ${P%.gz} ${P/b/z} ${P:2:3}",
    "prog $(basename /x/y.sh) $(dirname /x/y.sh) $(echo hi there)",
    "X='$A'\nprog \"$X\" '$B' \"a'b\"",
    'OPTS="--p 1 \\\n  --q 2"\nprog $OPTS',
    "A=2\nlet B=A+3\nprog $B $((2 ** 5)) $((7 / 2)) $((7 % 4))",
    'printf -v OUT "[%s]" "$(IFS=,; echo "1,2")"\nprog $OUT',
    'while [ "$GO" = yes ]; do prog never; done\n[[ 4 -gt 3 && x != y ]] && prog yes || prog no',
    'export V=1 W="2 3"\nprog $V $W "$W"',
    "prog a \\\n  b \\\n  # gone \\\n  c",
    'declare -A T=([big]="4 2" ["small"]="1 1")\nf() { local -n t=$1; local c=(${t[$2]}); P=${c[0]}; }\nf T big\nprog $P',
    "[[ ${1} != slurm ]] && prog plain || prog batch",
    '[[ "--a b --c" =~ "--c" ]] && prog yes || prog no',
    'X=$(printf "%s" "a:b" | tr ":" " ")\nprog $X',
    'IFS=, read -r A B C <<< "1,2,3,4"\nprog $A $B $C',
    'read A B <<< "  x   y z "\nprog "$A" "$B"',
    'IFS=: read -ra L <<< "a:b:c"\nprog ${L[@]} ${#L[@]}',
    "export W='prog a $V'\nV=1\nbash -c 'prog \"$0\" $W' zero",
    'prog {1..3} {3..1} {01..03} {a..c} {1..9..4} x{a,b}y{1,2} --r={1,{2,3}} {x} {a,"b c"} "{1,2}" ${Q}{1..2} {}',
    "for i in {2..0}; do L+=($i); done\nprog ${L[@]}",
    'V=3\nC="a ${V:+--n "$V"} b ${Q:+--q "$Q"} c"\nprog $C $[V + 1]',
    "[[ $Q -eq 0 ]] && A=zero\n[[ $Q -gt 1 || $Q -ne 0 ]] && B=more\n((Q)) || C=off\nprog $A ${B:-none} $C",
    "(X=inner; exit 0)\nX+=outer\nprog $X",
    'L=(a)\nwhile read -r K V; do L+=("$K-$V"); done < <(printf "")\nprog none ${L[@]}',
    'bash -c "prog \\"\\$@\\"" zero one two',
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash itself is the oracle")
@pytest.mark.parametrize("text", CASES)
def test_words_are_those_that_bash_passes(text, tmp_path):
    prog = tmp_path / "prog"
    prog.write_text('#!/bin/sh\nfor w in "$@"; do printf "%s\\n" "$w"; done\n')
    prog.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    ran = subprocess.run(["bash", "-c", text], capture_output=True, text=True, env=environment,
                         timeout=20, check=False)  # fmt: skip
    found = [word for command in read_script(text).commands if command.words[0] == "prog"
             for word in command.words[1:]]  # fmt: skip
    assert [unmarked(word) for word in found] == ran.stdout.splitlines()


def test_includes_are_followed_below_the_folder_only(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "common.sh").write_text("SHARED=7\n")
    script = read_script(
        'source "$(dirname "$0")/../../common.sh"\nrun.py $SHARED', "s.sh", tmp_path / "deep" / "er"
    )
    assert script.commands[-1].words == ["run.py", "7"]
    assert read_script("source /etc/hostname", "s.sh", tmp_path).missing


def test_a_script_that_includes_itself_is_refused(tmp_path):
    path = tmp_path / "loop.sh"
    path.write_text("source ./loop.sh\n")
    with pytest.raises(SpecError):
        read_script(path.read_text(), str(path), tmp_path)


def test_guesses_take_the_first_text_that_is_compared_and_are_named():
    text = (
        "if [ $SIZE = 7B ]; then L=32; elif [ $SIZE = 70B ]; then L=80; fi\nrun.py --num-layers $L"
    )
    assert "SIZE" in read_script(text).doubts[0]
    guessed = read_script(text, guess=True)
    assert guessed.guesses == {"SIZE": "7B"}
    assert guessed.commands[-1].words[-1] == "32"
    given_ = read_script(text, given={"SIZE": "70B"}, guess=True)
    assert (given_.guesses, given_.commands[-1].words[-1]) == ({}, "80")


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab$(){}[]\"'`\\;|&=<> \n#!-1", max_size=60))
def test_any_text_is_followed_or_refused(text):
    try:
        read_script(text)
    except SpecError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_what_a_job_knows_and_what_the_machine_says():
    text = (
        "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nN=$(nvidia-smi -L | wc -l)\n"
        "prog --world $((SLURM_JOB_NUM_NODES * SLURM_GPUS_ON_NODE)) --local $N\n"
    )
    words = read_script(text).commands[0].words
    assert words[:3] == ["prog", "--world", "32"]
    assert unmarked(words[4]) == "" and "N=" in words[4]
    assert read_script(text, given={"N": "8"}).commands[0].words[4] == "8"


def test_a_script_that_a_launcher_starts_is_followed(tmp_path):
    (tmp_path / "work.sh").write_text('case $1 in --lr) LR="$2";; esac\npython train.py --lr $LR\n')
    text = "srun --nodes=2 ./jobs/work.sh --lr 3\nsrun ./again.sh\n"
    (tmp_path / "again.sh").write_text("srun ./again.sh\n")
    commands = read_script(text, "run.sh", tmp_path).commands
    assert commands[0].words == ["srun", "--nodes=2", "python", "train.py", "--lr", "3"]


def test_a_place_left_to_the_reader_is_no_redirection():
    assert read_script("export DATA=<your data>\nN=2\nprog $DATA $N\n").commands[0].words[-1] == "2"


def test_a_launcher_of_launchers(tmp_path):
    """Variables ahead of `bash other.sh`, its arguments, a table read by yq, and a job as here-document."""
    (tmp_path / "table.yaml").write_text(
        "ARGS:\n  --num-layers: ${LAYERS}\n  --bf16: true\n  --fp16: false\n"
    )
    (tmp_path / "job.sh").write_text(
        "F=table.yaml\n"
        "if [[ -f $F ]]; then envsubst < ${F} > ${F}.tmp; F=${F}.tmp; fi\n"
        'A=$(yq \'... comments="" | .ARGS | to_entries | .[] | select(.value != "false") | '
        'with(select(.value == "true"); .value = "") | [.key + " " + .value] | join("")\' ${F} | tr \'\\n\' \' \')\n'
        'export CMD="python pretrain_gpt.py $A $@"\n'
        "sbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=${NODES}\nsrun bash -c \\\\\\${CMD}\nEOF\n"
    )
    script = read_script(
        "LAYERS=8 NODES=4 bash job.sh --tensor-model-parallel-size 2", "run.sh", tmp_path
    )
    launch = find_launch(script)
    assert launch is not None and launch.program == "pretrain_gpt.py"
    assert launch.words == ["--num-layers", "8", "--bf16", "--tensor-model-parallel-size", "2"]
    assert launch.hosts == 4


def test_of_several_trainings_one_is_chosen_by_number():
    text = "\n".join(f"torchrun train.py --lr 1 --batch {n} {'--extra 1 ' * n}" for n in (1, 2, 3))
    assert find_launch(read_script(text)).words[3] == "3"
    assert find_launch(read_script(text)).runs == 3
    assert find_launch(read_script(text), 1).words[3] == "1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("torchrun train.py --a 1\nexit 0\ntorchrun train.py --a 1 --b 2", ["--a", "1"]),
        ('if [ -z "$1" ]; then echo usage; exit 1; fi\ntorchrun train.py --a 1', ["--a", "1"]),
        ("(exit 0)\ntorchrun train.py --a 1", ["--a", "1"]),
    ],
)
def test_a_script_that_has_trained_and_ended_trains_no_more(text, words):
    launch = find_launch(read_script(text))
    assert launch is not None
    assert (launch.words, launch.runs) == (words, 1)


def test_a_container_tool_is_there_and_what_it_starts_is_followed(tmp_path):
    (tmp_path / "inner.sh").write_text('torchrun train.py --size $SIZE "$@"\n')
    text = (
        'run() {\n  if command -v docker > /dev/null; then docker "$@"; else exit 1; fi\n}\nexport SIZE=3\n'
        'run run --rm image /bin/bash -c "cd /x && bash inner.sh \\"\\$@\\"" bash --more 4'
    )
    launch = find_launch(read_script(text, folder=tmp_path))
    assert launch is not None
    assert launch.words == ["--size", "3", "--more", "4"]


def test_runs_that_differ_by_their_seed_are_one():
    launch = find_launch(
        read_script(
            "for S in {1..3}; do torchrun train.py --seed $S --lr 1e-4 --save run_$S/x; done"
        )
    )
    assert launch is not None
    assert launch.runs == 1
    launch = find_launch(read_script("for R in {1..3}; do torchrun train.py --lr ${R}e-4; done"))
    assert launch is not None
    assert launch.runs == 3


def test_quotes_of_what_only_the_machine_knows_split_no_command():
    text = 'ROOT="$(cd "$(dirname "$0")/.." && git rev-parse)"\nCMD="torchrun --log-dir $ROOT/logs $ROOT/train.py --a 1"\nsrun bash -c "$CMD"'
    launch = find_launch(read_script(text))
    assert launch is not None
    assert (launch.program, launch.words) == ("/train.py", ["--a", "1"])


def test_a_command_that_another_script_starts_from_a_variable():
    launch = find_launch(
        read_script('export COMMAND="cd x\nuv run run_grpo.py --config $C a.b=1"\nbash ray.sub')
    )
    assert launch is not None
    assert (launch.program, launch.words[-1]) == ("run_grpo.py", "a.b=1")


def test_quotes_and_braces_of_any_depth_end():
    for text in ('x="' + '${"' * 3000, "prog " + '{"' * 3000, "prog " + "{1..400}" * 3):
        with contextlib.suppress(SpecError):  # a quote that is never closed
            read_script(text)


def test_an_eval_of_what_a_program_would_print_is_passed_over():
    text = """S="$('/opt/anaconda/of/the/cluster/2020.02/bin/conda' 'shell.bash' 'hook' 2> /dev/null)"
eval "$S"
prog a
"""
    assert read_script(text).commands[-1].words == ["prog", "a"]
