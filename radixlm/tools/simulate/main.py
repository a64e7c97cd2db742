"""`radixlm simulate`: which policy, pool size or chunk would serve a trace best, tried in a simulation."""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from radixlm.base.errors import ConfigError
from radixlm.cache.eviction.table import STRATEGIES
from radixlm.config.flags import human_int, json_object, whole_numbers
from radixlm.config.groups import ScheduleConfig
from radixlm.loader.source import resolve
from radixlm.loader.tokenizer import load_tokenizer
from radixlm.scheduler.policies.table import POLICIES
from radixlm.tools.simulate.cost import StepCost, describe
from radixlm.tools.simulate.report import Summary, differing_settings, summarize, table
from radixlm.tools.simulate.trace import Encode, TraceRequest, read_trace
from radixlm.tools.simulate.world import Setting, World

PROGRAM = "radixlm simulate"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when all was done. ConfigError for a wrong option or file."""
    options = _parser().parse_args(argv)
    if options.fit is None and options.trace is None:
        raise ConfigError("give --fit MODEL to measure a machine, --trace FILE to simulate one, or both")
    cost = _cost(options)
    if options.trace is None:
        return 0
    trace = _trace(options)
    summaries = []
    for shown, setting in _settings(options, cost):
        run = World(setting, cost, trace, options.overhead_ms / 1000).play()
        summaries.append(summarize(shown, run))
        _say(f"{_named(shown)}: {run.duration_s:.0f} s of traffic in {run.wall_s:.1f} s, {run.steps} steps")
    if options.against is not None:
        summaries.append(_measured(options, trace, summaries[0]))
    print(_fixed(summaries))
    print(table(summaries))
    if options.json is not None:
        lines = b"".join(msgspec.json.encode(summary) + b"\n" for summary in summaries)
        Path(options.json).write_bytes(lines)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__, allow_abbrev=False)
    source = parser.add_argument_group("the machine")
    source.add_argument("--fit", metavar="MODEL", help="measure this model here, as `radixlm serve MODEL` would run it")
    source.add_argument("--fit-seconds", type=_positive(float), default=40.0, help="how long to measure (40)")
    source.add_argument("--flags", type=_parsed(json_object), default={}, help="JSON object of server flags for --fit")
    source.add_argument("--cost", metavar="FILE", help="cost file: written with --fit, read without")
    source.add_argument("--overhead-ms", type=float, default=0.0, help="time a request spends before the engine (0)")
    traffic = parser.add_argument_group("the traffic")
    traffic.add_argument("--trace", metavar="FILE", help="requests as JSON lines; see docs/simulate.md")
    traffic.add_argument(
        "--request-rate", type=_positive(float), help="requests per second, in place of timestamps; inf: at once"
    )
    traffic.add_argument("--slowdown", type=_positive(float), default=1.0, help="stretch the timestamps by this (1)")
    traffic.add_argument("--num-requests", type=_positive(int), help="only so many from the beginning")
    traffic.add_argument("--block-tokens", type=_positive(int), default=512, help="tokens behind one of hash_ids (512)")
    traffic.add_argument("--tokenizer", metavar="MODEL", help="for traces with text")
    traffic.add_argument("--seed", type=int, default=0, help="of --request-rate's arrivals (0)")
    server = parser.add_argument_group("the server; several values of an option are tried against each other")
    server.add_argument("--policy", "--schedule-policy", nargs="+", default=["fcfs"], choices=POLICIES.names())
    server.add_argument("--eviction", "--radix-eviction-policy", nargs="+", default=["lru"], choices=STRATEGIES.names())
    for name, alias in (
        ("--pool-tokens", "--max-total-tokens"),
        ("--chunk", "--chunked-prefill-size"),
        ("--page-size", "--page-size"),
        ("--max-running-requests", "--max-running-requests"),
    ):
        names = dict.fromkeys((name, alias))
        server.add_argument(*names, nargs="+", type=_positive(human_int), default=[None], metavar="N")
    server.add_argument("--schedule-conservativeness", nargs="+", type=float, default=[1.0], metavar="X")
    server.add_argument("--radix-eviction-policy-config", type=_parsed(whole_numbers), default={}, metavar="JSON")
    server.add_argument("--disable-radix-cache", action="store_true")
    server.add_argument("--enable-priority-scheduling", action="store_true")
    server.add_argument("--context-length", type=_positive(human_int), metavar="N")
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write a line per run")
    output.add_argument("--against", metavar="URL", help="play the trace to this server too, and show what it took")
    return parser


def _parsed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(word: str) -> Any:
        try:
            return parse(word)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _positive(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def number(word: str) -> Any:
        value = parse(word)
        if not value > 0:
            raise ValueError(f"must be above 0, not {word}")
        return value

    return _parsed(number)


def _cost(options: argparse.Namespace) -> StepCost:
    if options.fit is None:
        if options.cost is None:
            raise ConfigError("--trace needs --cost FILE, or --fit MODEL to measure now")
        return StepCost.load(options.cost)
    from radixlm.tools.simulate.measure import measure

    cost = measure({"model_path": options.fit, **options.flags}, options.fit_seconds, _say)
    errors = f"error {cost.median_error:.1%} median, {cost.p90_error:.1%} at the 90th percentile"
    _say(f"fitted to {cost.measured_steps} steps: {errors}; in ms: {describe(cost)}")
    if options.cost is not None:
        cost.save(options.cost)
    return cost


def _trace(options: argparse.Namespace) -> list[TraceRequest]:
    encode: Encode | None = None
    if options.tokenizer is not None:
        encode = load_tokenizer(resolve(options.tokenizer)).encode
    return read_trace(
        options.trace,
        block_tokens=options.block_tokens,
        slowdown=options.slowdown,
        rate_per_s=options.request_rate,
        most_requests=options.num_requests,
        encode=encode,
        seed=options.seed,
    )


def _settings(options: argparse.Namespace, cost: StepCost) -> Iterator[tuple[dict[str, str | int | float], Setting]]:
    """Every combination of the options that have several values, with what the table shows of it."""
    machine = cost.machine
    axes = {
        "policy": options.policy,
        "eviction": options.eviction,
        "pool": [value or machine.pool_tokens for value in options.pool_tokens],
        "chunk": [value or machine.chunk_tokens for value in options.chunk],
        "page": [value or machine.page_size for value in options.page_size],
        "running": [value or machine.max_running for value in options.max_running_requests],
        "conservativeness": options.schedule_conservativeness,
    }
    for values in itertools.product(*axes.values()):
        shown = dict(zip(axes, values, strict=True))
        schedule = ScheduleConfig(
            max_running_requests=shown["running"],
            chunked_prefill_size=shown["chunk"],
            schedule_policy=shown["policy"],
            schedule_conservativeness=shown["conservativeness"],
            enable_priority_scheduling=options.enable_priority_scheduling,
        )
        yield (
            shown,
            Setting(
                schedule,
                pool_tokens=shown["pool"],
                page_size=shown["page"],
                context_tokens=options.context_length or machine.context_tokens,
                radix=not options.disable_radix_cache,
                eviction=shown["eviction"],
                eviction_options=options.radix_eviction_policy_config,
                run_ahead=machine.run_ahead,
            ),
        )


def _measured(options: argparse.Namespace, trace: list[TraceRequest], like: Summary) -> Summary:
    from radixlm.tools.simulate.live import play

    run = play(options.against, trace)
    found = summarize({**dict.fromkeys(like.setting), "policy": "measured"}, run)
    return msgspec.structs.replace(found, busy_share=None, evicted_tokens=None, steps=None)


def _fixed(summaries: Sequence[Summary]) -> str:
    differing = differing_settings(summaries)
    same = {name: value for name, value in summaries[0].setting.items() if name not in differing}
    return f"{summaries[0].requests + summaries[0].refused} requests; latencies in ms; {_named(same)}"


def _named(setting: Mapping[str, str | int | float | None]) -> str:
    return ", ".join(f"{name} {value}" for name, value in setting.items())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
