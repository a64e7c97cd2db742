"""A reader that leaves early ends a command quietly."""

import os
import subprocess
import sys

from radixlm.base.pipes import BROKEN_PIPE_CODE


def test_nobody_reads() -> None:
    read, write = os.pipe()
    os.close(read)
    program = "import sys\nfrom radixlm.base.pipes import until_unread\nsys.exit(until_unread(lambda: print('x') or 0))"
    done = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (BROKEN_PIPE_CODE, b"")
