"""The fork server: results, blame, no orphans."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch.distributed as dist

from meshwright.engine.ranks.processes import RankError, run_ranks

pytestmark = pytest.mark.dist


def _sum_of_ranks():
    import torch

    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    return float(total), os.getpid()


def _one_fails():
    import torch

    if dist.get_rank() == 1:
        raise ValueError("the disk is full")
    dist.all_reduce(torch.zeros(1))  # would wait for rank 1 for ever


def _one_is_killed():
    import torch

    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.zeros(1))


def _talks(report):
    report({"rank": dist.get_rank()})
    return dist.get_rank()


def _sleeps():
    time.sleep(250)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_come_back_in_rank_order_and_nothing_is_left():
    results = run_ranks(_sum_of_ranks, 4)
    assert [total for total, _ in results] == [6.0] * 4
    assert not any(_alive(pid) for _, pid in results)


def test_the_failing_rank_is_named_not_its_peers():
    with pytest.raises(RankError, match="rank 1: the disk is full") as caught:
        run_ranks(_one_fails, 3, collective_timeout_s=30)
    assert "ValueError" in caught.value.details


def test_a_killed_rank_is_named():
    with pytest.raises(RankError, match="rank 2: the process ended"):
        run_ranks(_one_is_killed, 3, collective_timeout_s=30)


def test_messages_arrive_while_ranks_run():
    heard = []
    assert run_ranks(_talks, 2, on_message=lambda rank, m: heard.append((rank, m))) == [0, 1]
    assert sorted(heard, key=lambda pair: pair[0]) == [(0, {"rank": 0}), (1, {"rank": 1})]


def test_a_time_limit_ends_all():
    start = time.monotonic()
    with pytest.raises(RankError, match="time limit"):
        run_ranks(_sleeps, 2, timeout_s=3)
    assert time.monotonic() - start < 200  # the ranks would sleep for longer


def test_ranks_die_with_their_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, sys, time\n"
        "from meshwright.engine.ranks.processes import run_ranks\n"
        "def pid(report):\n"
        "    report(os.getpid()); time.sleep(120)\n"
        "if __name__ == '__main__':\n"
        "    run_ranks(pid, 2, on_message=lambda r, p: print(p, flush=True))\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(_alive(pid) for pid in pids)
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 120
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_alive(pid) for pid in pids)
