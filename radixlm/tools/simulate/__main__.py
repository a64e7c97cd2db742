"""`python -m radixlm.tools.simulate` is `radixlm simulate`."""

import sys

from radixlm.config.commandline import command
from radixlm.tools.simulate.main import main

if __name__ == "__main__":
    sys.exit(command(main, None))
