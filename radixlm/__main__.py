"""`python -m radixlm` is `radixlm`."""

import sys

from radixlm.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
