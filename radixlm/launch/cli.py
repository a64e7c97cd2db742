"""The `radixlm` command: picks a subcommand and turns failures with a known cause into one line and an exit code."""

import sys
from collections.abc import Callable, Sequence

from radixlm import __version__
from radixlm.base.errors import ConfigError, RadixError
from radixlm.base.pipes import until_unread

USAGE = """usage: radixlm COMMAND [options]

  serve [MODEL] [options]    start the server (radixlm serve --help lists the options)
  demo [--once] [options]    serve a small real model and show it answering a question
  chat [MODEL] [options]     talk to a running server, or to one started for it
  bench NAME [options]       measure a server, a model or the Engine; compare and audit results
  tune MODEL [options]       find the settings that help your traffic on this machine
  eval [MODEL] [options]     perplexity, multiple choice, and divergence from another server
  size MODEL [options]       what fits on a machine, without the machine and without weights
  doctor [MODEL] [options]   check this machine and a model's files
  simulate [options]         try scheduling policies and pool sizes on a trace of requests
  profile TRACE [options]    say where a step's time goes, from a trace of the torch profiler
  version                    print the version; radixlm --version names the program too
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `radixlm` with `argv` (the process's own arguments when None); returns the exit code.

    0: done; 1: it failed, and stderr says why in one line; 2: the command line is wrong.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments.pop(0) if arguments else "--help"
    if command in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if command == "--version":
        print(f"radixlm {__version__}")
        return 0
    run = COMMANDS.get(command)
    if run is None:
        print(f"radixlm: unknown command {command!r}; see radixlm --help", file=sys.stderr)
        return 2
    try:
        return until_unread(lambda: run(arguments))
    except ConfigError as error:
        print(f"radixlm: {error}", file=sys.stderr)
        return 2
    except RadixError as error:
        print(f"radixlm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before the server takes signals itself
        print("radixlm: interrupted", file=sys.stderr)
        return 130


def _serve(arguments: list[str]) -> int:
    from radixlm.config.cli import parse_serve
    from radixlm.launch.serve import serve

    return serve(parse_serve(arguments))


def _demo(arguments: list[str]) -> int:
    from radixlm.launch.demo import demo

    return demo(arguments)


def _bench(arguments: list[str]) -> int:
    from radixlm.benchmark.programs import main as bench

    return bench(arguments)


def _tune(arguments: list[str]) -> int:
    from radixlm.benchmark.tune import main as tune

    return tune(arguments)


def _eval(arguments: list[str]) -> int:
    from radixlm.benchmark.evaluate import main as evaluate

    return evaluate(arguments)


def _size(arguments: list[str]) -> int:
    from radixlm.tools.size import main as size

    return size(arguments)


def _doctor(arguments: list[str]) -> int:
    from radixlm.tools.doctor import main as doctor

    return doctor(arguments)


def _simulate(arguments: list[str]) -> int:
    from radixlm.tools.simulate.main import main as simulate

    return simulate(arguments)


def _chat(arguments: list[str]) -> int:
    from radixlm.tools.chat import main as chat

    return chat(arguments)


def _profile(arguments: list[str]) -> int:
    from radixlm.tools.profile import main as profile

    return profile(arguments)


def _version(arguments: list[str]) -> int:
    if arguments:
        raise ConfigError(f"radixlm version takes no arguments: {' '.join(arguments)}")
    print(__version__)
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "serve": _serve,
    "demo": _demo,
    "chat": _chat,
    "bench": _bench,
    "tune": _tune,
    "eval": _eval,
    "size": _size,
    "doctor": _doctor,
    "simulate": _simulate,
    "profile": _profile,
    "version": _version,
}

if __name__ == "__main__":
    sys.exit(main())
