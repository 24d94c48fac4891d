"""Ways in which scripts come by the words of a command."""

import pytest
from folders import put

from meshwright.imports.files import import_file
from meshwright.imports.reading import Given

RUN = (
    "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 16 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 "
    "--max-position-embeddings 4096 --vocab-size 32000 --tokenizer-type NullTokenizer --bf16 "
)
TAIL = "--tensor-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 128"
LINES = TAIL.replace(" --", "\n--") + "\n"


@pytest.mark.parametrize(
    "script",
    [
        f"N=2\nTP=$(( N > 1 ? 2 : N > 0 ? 4 : 8 ))\n{RUN} {TAIL.replace('size 2', 'size $TP')}",
        f"MB=$(( 1 << 2 ))\n{RUN} {TAIL.replace('size 4', 'size $MB')}",
        f"N=16\nGBS=$(( !N ? 1 : N * 8 ))\n{RUN} {TAIL.replace('128', '$GBS')}",
        f'MB=$(echo "8/2" | bc)\n{RUN} {TAIL.replace("size 4", "size $MB")}',
        f'TP=$(python3 -c "print(min(8, max(1, 4 // 2)))")\n{RUN} {TAIL.replace("size 2", "size $TP")}',
        f"{RUN} `# the layout` {TAIL}",
        f'A=$(printf -- "--micro-batch-size %d --global-batch-size %d" 4 128)\n{RUN} --tensor-model-parallel-size 2 $A',
        f"set -- 2 4\n{RUN} {TAIL.replace('size 2', 'size $1').replace('size 4', 'size $2')}",
        f"mapfile -t A < words___txt\n{RUN} ${{A[@]}}",
        f"A=$(cat words___txt)\n{RUN} $A",
        f"{RUN} $(< words___txt)",
        "export TP=2\nenvsubst < job___tpl > made.sh\nbash made.sh",
        f"{RUN} --yaml-cfg own___yaml",
        f'MB=8\nif [ "$(echo "a b")" = "a b" ]; then MB=4; fi\n{RUN} {TAIL.replace("size 4", "size $MB")}',
        f'R=0.5\nMB=8\nif [[ "$(awk "BEGIN{{print ($R > 0) ? 1 : 0}}")" == "1" ]]; then MB=4; fi\n{RUN} {TAIL.replace("size 4", "size $MB")}',
        f'MB=8\nif (( $(echo "1.5 > 1.2" | bc -l) )); then MB=4; fi\n{RUN} {TAIL.replace("size 4", "size $MB")}',
        f'MB=4\nif [ $(echo "1.5 < 1.2" | bc) -eq 1 ]; then MB=8; fi\n{RUN} {TAIL.replace("size 4", "size $MB")}',
        f'MB=$(echo "4,8" | cut -d, -f1)\n{RUN} {TAIL.replace("size 4", "size $MB")}',
        f'MB=$(awk "BEGIN {{printf \\"%.0f\\", 2.5 * 1.6}}")\n{RUN} {TAIL.replace("size 4", "size $MB")}',
        f'MB=$(bc <<< "2.5 * 16 / 10")\n{RUN} {TAIL.replace("size 4", "size $MB")}',
        f'GBS=$(python3 -c "import math; print(math.ceil(5e5 / 4096) + 5)")\n{RUN} {TAIL.replace("128", "$GBS")}',
        f'O="--mb 4 --tp 2"\nTP=$(echo $O | grep -oE "tp [0-9]+" | awk \'{{print $NF}}\')\n{RUN} {TAIL.replace("size 2", "size $TP")}',
        f'O="--small"\nMB=8\nif echo "$O" | grep -q -- "--small"; then MB=4; fi\n{RUN} {TAIL.replace("size 4", "size $MB")}',
        f'MB=8\nif /usr/bin/egrep -q "(micro|tiny)-batch" words___txt; then MB=4; fi\n{RUN} {TAIL.replace("size 4", "size $MB")}',
        f'A=(--tensor-model-parallel-size 8)\nA[1]=2\n{RUN} {TAIL} ${{A[@]}}',
        f'O=" --lr `bc <<< "scale=3; $LR/10"` {TAIL} "\n{RUN} $O',
        f'D=$(find / -name "a b" | sed "s/(x)/y/")\ncat > made.sh <<EOF\n{RUN} --data-path $D {TAIL}\nEOF\nbash made.sh',
    ],
)  # fmt: skip
def test_words_reach_the_command(script: str, tmp_path):
    files = {
        "words__txt": LINES,
        "job__tpl": f"{RUN} {TAIL.replace('size 2', 'size ${TP}')}\n",
        "own__yaml": "language_model:\n  num_layers: 16\nmodel_parallel:\n  tensor_model_parallel_size: 2\nmicro_batch_size: 4\nglobal_batch_size: 128\n",
    }
    found = put(tmp_path, script.replace("___", "."), **files)
    assert (found.layout.tp, found.layout.micro_batch, found.job.global_batch) == (2, 4, 128)


def test_a_folder_that_cd_and_pwd_print_holds_what_is_included(tmp_path):
    (tmp_path / "runs" / "models").mkdir(parents=True)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tail.sh").write_text(f'T="{TAIL}"\n')
    (tmp_path / "runs" / "models" / "tail.sh").write_text("T=--untied\n")
    here = 'H="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." &> /dev/null && pwd)"\nsource "$H/models/tail.sh"\n'
    script = tmp_path / "runs" / "run.sh"
    script.write_text(f"{here}{RUN} $T")
    assert import_file(script, Given(guess=True)).layout.tp == 2


def test_a_batch_that_nothing_states_is_said(tmp_path):
    found = put(tmp_path, f"{RUN} {TAIL.replace('128', '$BATCH')}")
    assert any(one.kind == "guess" and "global-batch-size" in one.option for one in found.remarks)
