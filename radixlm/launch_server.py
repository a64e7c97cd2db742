"""`python -m radixlm.launch_server` is `radixlm serve`, for scripts written for SGLang."""

import sys

from radixlm.launch.cli import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
