"""Threads that compute get a core each; in a process of their own, since it holds for good."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from radixlm.engine.cores import Team
if sys.argv[2] == "others first":
    Team.muster(int(sys.argv[1]))
team = Team.muster(int(sys.argv[1]))
settled = team.settle()
print(len(team.threads), settled, *(len(os.sched_getaffinity(thread)) for thread in team.threads),
      len(set.union(*(os.sched_getaffinity(thread) for thread in team.threads))))
"""
CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def said(threads: int, first: str = "") -> list[str]:
    command = [sys.executable, "-c", PROGRAM, str(threads), first]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(CORES < 2, reason="needs two cores")
def test_as_many_threads_as_cores_get_one_each() -> None:
    assert said(CORES) == [str(CORES), "True", *["1"] * CORES, str(CORES)]


@pytest.mark.skipif(CORES < 2, reason="needs two cores")
def test_others_are_left_to_the_system() -> None:
    more = CORES + 1
    assert said(more) == [str(more), "False", *[str(CORES)] * more, str(CORES)]
    assert said(CORES, "others first") == ["1", "False", str(CORES), str(CORES)]
