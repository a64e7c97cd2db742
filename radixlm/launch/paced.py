"""`python -m radixlm.launch.paced`: the server as `radixlm serve` starts it, with a paced engine in the model's place.

Every answer is words at random, one token at each tick. What it costs is the front end's cost: HTTP, tokenizing, text.
"""

import argparse
import sys
from collections.abc import Sequence

from radixlm.api.runtime import Program
from radixlm.base.errors import RadixError
from radixlm.config.cli import parse_serve
from radixlm.launch.serve import serve

ENGINE = "radixlm.engine.paced"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m radixlm.launch.paced", description=__doc__, allow_abbrev=False)
    parser.add_argument("--step-ms", type=float, default=20.0, help="milliseconds between the tokens of a request")
    options, rest = parser.parse_known_args(argv)
    try:
        return serve(parse_serve(rest), scheduler=Program(ENGINE, ("--step-ms", str(options.step_ms))))
    except RadixError as error:
        print(f"radixlm: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
