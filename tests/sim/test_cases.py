"""Situations that break engines, each against the answer of a lone request."""

import random
from pathlib import Path

import pytest

from radixlm.protocol.messages import AbortReq
from radixlm.protocol.plan import StepResult
from radixlm.scheduler.replay import main, replay
from tests.sim.device import spoil
from tests.sim.drive import VOCAB, Job, Setup, World, run, verify


def prompt(seed: int, length: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(VOCAB) for _ in range(length))


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_shared_prefix_that_arrives_together_is_computed_once(page_size: int, depth: int) -> None:
    prefix = prompt(1, 2048)
    jobs = [Job(0, (*prefix, i, *prompt(100 + i, 29)), 4, ignore_eos=True) for i in range(32)]
    setup = Setup(8192 // page_size, page_size, slots=32, context=2200, depth=depth, chunk=512)
    outcome = run(jobs, setup)
    verify(jobs, setup, outcome)
    assert outcome.computed_tokens == 2048 + 32 * (30 + 3)
    assert sum(f.cached_tokens for f in outcome.finished.values()) == 31 * 2048


@pytest.mark.parametrize("abort_turn", range(1, 8))
def test_followers_survive_the_abort_of_their_leader(abort_turn: int) -> None:
    prefix = prompt(2, 128)
    jobs = [Job(0, prefix + prompt(200 + i, 5), 6, abort=abort_turn if i == 0 else None) for i in range(6)]
    setup = Setup(num_pages=256, chunk=16, depth=1)
    outcome = run(jobs, setup)
    verify(jobs, setup, outcome)
    assert outcome.computed_tokens < 2 * 128 + 6 * (5 + 6) + 16, "the prefix was computed more than about once"


def test_followers_survive_the_retraction_of_their_leader() -> None:
    # a decoding request needs the memory that the leader's chunks have taken
    prefix = prompt(3, 120)
    jobs = [Job(0, prompt(4, 20), 100, ignore_eos=True)]
    jobs += [Job(6, prefix + prompt(300 + i, 4), 20, ignore_eos=True) for i in range(5)]
    setup = Setup(num_pages=45, page_size=4, chunk=8, conservativeness=0.0, depth=1, context=160)
    verify(jobs, setup, run(jobs, setup))


@pytest.mark.parametrize("page_size,num_pages", [(64, 20), (64, 7), (16, 30), (1, 300)])
def test_out_of_memory_means_retraction_not_failure(page_size: int, num_pages: int) -> None:
    jobs = [Job(0, prompt(400 + i, 70), 40, ignore_eos=True) for i in range(12)]
    setup = Setup(num_pages, page_size, slots=12, chunk=64)
    verify(jobs, setup, run(jobs, setup))


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_retraction_is_invisible(depth: int, stream: bool) -> None:
    prefix = prompt(5, 40)
    jobs = [Job(i // 4, prefix + prompt(500 + i, 20), 50, stream=stream, minimum=50) for i in range(24)]
    small = Setup(num_pages=80, page_size=4, slots=24, depth=depth, conservativeness=0.0)
    big = Setup(num_pages=4000, page_size=4, slots=24, depth=depth)
    tight, roomy = run(jobs, small), run(jobs, big)
    verify(jobs, small, tight)
    assert tight.tokens == roomy.tokens
    assert tight.retractions > 0 and roomy.retractions == 0
    assert sum(f.retractions for f in tight.finished.values()) == tight.retractions
    line = next(line for line in tight.lines if "Retract" in line)
    assert line.startswith("KV cache pool is full. Retract requests. #retracted_reqs: ")


@pytest.mark.parametrize("length", [31, 32, 33, 64, 65, 96])
def test_chunk_boundaries_are_invisible(length: int) -> None:
    jobs = [Job(0, prompt(length, length), 5, ignore_eos=True)]
    outcomes = [run(jobs, Setup(chunk=chunk)) for chunk in (32, None)]
    assert outcomes[0].tokens == outcomes[1].tokens
    verify(jobs, Setup(), outcomes[0])


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_a_fully_cached_prompt_still_computes_a_token(pages: int) -> None:
    jobs = [Job(turn, prompt(6, 16 * pages), 8, ignore_eos=True) for turn in (0, 40, 80)]
    setup = Setup(page_size=16)
    outcome = run(jobs, setup)
    verify(jobs, setup, outcome)
    assert [outcome.finished[k].cached_tokens for k in range(3)] == [0, 16 * (pages - 1), 16 * (pages - 1)]


def test_a_salt_separates_and_only_separates() -> None:
    text = prompt(7, 60)
    jobs = [Job(0, text, 4, salt="one"), Job(30, text, 4, salt="one"), Job(60, text, 4, salt="two")]
    outcome = run(jobs, Setup())
    assert [outcome.finished[k].cached_tokens for k in range(3)] == [0, 56, 0]


def test_outputs_are_cached_for_the_next_turn_of_a_conversation() -> None:
    setup = Setup(page_size=1)
    first = Job(0, prompt(8, 20), 20, ignore_eos=True)
    answer, _ = first.expected(20)
    jobs = [first, Job(60, first.prompt + tuple(answer) + prompt(9, 5), 4)]
    outcome = run(jobs, setup)
    verify(jobs, setup, outcome)
    assert outcome.finished[1].cached_tokens == 39  # the last output token's KV was never computed


def test_a_long_prompt_finishes_under_steady_short_traffic() -> None:
    jobs = [Job(turn, prompt(1000 + turn, 12), 6, ignore_eos=True) for turn in range(300)]
    jobs.append(Job(50, prompt(10, 200), 10, ignore_eos=True))
    setup = Setup(num_pages=70, page_size=4, slots=8, chunk=16)
    outcome = run(jobs, setup)
    verify(jobs, setup, outcome)
    assert outcome.end_turn[300] < 50 + 120
    waits = [outcome.end_turn[turn] - turn for turn in range(300)]
    assert max(waits) < 300, "somebody starved"


def test_a_failed_step_ends_its_requests_and_no_others() -> None:
    jobs = [Job(0, prompt(11, 30), 20, ignore_eos=True), Job(8, prompt(11, 30), 5, ignore_eos=True)]
    setup = Setup(chunk=None, depth=1, spoil=lambda r: StepResult(3, error="device lost") if r.step == 3 else r)
    outcome = run(jobs, setup)
    reason = outcome.finished[0].reason
    assert (reason.type, reason.message, reason.status_code) == ("abort", "device lost", 500)
    assert outcome.finished[0].completion_tokens == 3
    assert outcome.finished[1].cached_tokens == 28  # the prompt's chunk was committed in a good step
    verify(jobs[1:], setup, _only(outcome, 1))


def test_a_failed_prefill_is_not_cached() -> None:
    jobs = [Job(0, prompt(12, 30), 5), Job(8, prompt(12, 30), 5, ignore_eos=True)]
    setup = Setup(chunk=None, depth=1, spoil=lambda r: StepResult(0, error="device lost") if r.step == 0 else r)
    outcome = run(jobs, setup)
    assert outcome.finished[0].reason.status_code == 500
    assert outcome.finished[1].cached_tokens == 0


def test_logits_that_are_not_finite_end_only_their_request() -> None:
    jobs = [Job(0, prompt(13, 20), 20, ignore_eos=True), Job(0, prompt(14, 21), 20, ignore_eos=True)]
    setup = Setup(chunk=None, depth=1, spoil=lambda r: spoil(r, 0) if r.step == 5 else r)
    outcome = run(jobs, setup)
    assert outcome.finished[0].reason.status_code == 500 and "finite" in str(outcome.finished[0].reason.message)
    assert outcome.finished[0].completion_tokens == 5
    verify(jobs[1:], setup, _only(outcome, 1))


def test_cancelled_neighbours_change_nothing() -> None:
    for repeat in range(5):
        jobs = [Job(t, prompt(15, 50), 40, abort=t + 3 + repeat) for t in (0, 5, 10)]
        jobs += [Job(2, prompt(16 + i, 10), 5) for i in range(3)] + [Job(1, prompt(19, 60), 60)]
        setup = Setup(num_pages=50, conservativeness=0.0)
        verify(jobs, setup, run(jobs, setup))


def test_a_prompt_beyond_capacity_is_refused_and_blocks_nobody() -> None:
    setup = Setup(num_pages=64, page_size=4, context=1024)
    jobs = [
        Job(0, prompt(20, 400), 5),
        Job(0, prompt(21, 5), 5),
        Job(0, prompt(22, 256), 1),
        Job(0, prompt(23, 255), 9),
    ]
    outcome = run(jobs, setup)
    verify(jobs, setup, outcome)
    message = str(outcome.finished[0].reason.message)
    assert "400 tokens" in message and "1024" in message and "256" in message
    assert outcome.finished[2].reason.status_code == 400
    assert outcome.finished[3].completion_tokens == 1 and outcome.finished[3].reason.type in ("length", "stop")


def test_a_failing_run_leaves_a_log_that_repeats_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(Setup(num_pages=40, conservativeness=0.0))
    jobs = [Job(0, prompt(600 + i, 30), 30) for i in range(12)]
    for turn in range(80):
        world.turn([job.message(key) for key, job in enumerate(jobs)] if turn == 0 else [AbortReq([turn // 4])])
    data = world.log.getvalue()
    calls, problem = replay(data)
    assert calls > 80 and problem is None
    path = Path(world.saved_log().split()[-1])
    assert main([str(path)]) == 0 and "byte for byte" in capsys.readouterr().out
    path.unlink()
    changed = data.replace(b"max_new_tokens\x1e", b"max_new_tokens\x05", 1)
    assert changed != data
    (tmp_path / "changed").write_bytes(changed)
    assert main([str(tmp_path / "changed")]) == 1 and "differs" in capsys.readouterr().out
    assert replay(data[:-3])[1] is None  # a log that was cut off is good up to there


def test_a_simulation_that_fails_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(spoil=lambda r: StepResult(r.step + 1, r.tokens))
    with pytest.raises(AssertionError, match=r"repeat with: python -m radixlm.scheduler.replay (\S+)") as failure:
        run([Job(0, prompt(24, 10), 5)], setup)
    path = Path(str(failure.value).split()[-1])
    with pytest.raises(ValueError, match="not the next to commit"):
        replay(path.read_bytes())
    path.unlink()


def _only(outcome, key):  # type: ignore[no-untyped-def]
    """The outcome of one job, as if it had been alone in the list."""
    outcome.finished = {0: outcome.finished[key]}
    outcome.tokens = {0: outcome.tokens[key]}
    return outcome


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("retract", [False, True])
@pytest.mark.parametrize("turn", [1, 3, 9])
def test_a_pause_changes_no_token(depth: int, retract: bool, turn: int) -> None:
    """40 requests of which 4 run: a pause freezes them or frees their memory, and all end as if there were none."""
    jobs = [Job(0, prompt(800 + i, 20), 12, ignore_eos=True) for i in range(40)]
    setup = Setup(num_pages=64, slots=4, depth=depth)
    world = World(setup)
    world.turn([job.message(key) for key, job in enumerate(jobs)])
    for _ in range(turn):
        world.turn([])
    running = world.scheduler.running
    world.scheduler.pause(retract)
    world.turn([AbortReq([39])])
    for _ in range(depth + 2):
        world.turn([])
    before = world.device.computed_tokens
    assert world.scheduler.resting and not world.scheduler.idle and 39 in world.outcome.finished
    assert world.scheduler.running == (0 if retract else running)
    assert world.scheduler.flush_cache(0.0).success == retract
    assert not retract or world.cache.free_pages == setup.num_pages
    world.turn([])
    assert world.device.computed_tokens == before
    world.scheduler.resume()
    while not world.scheduler.idle:
        world.turn([])
    for key, job in enumerate(jobs[:39]):
        assert (world.outcome.tokens[key], world.outcome.finished[key].reason.type) == job.expected(12)
    assert replay(world.log.getvalue())[1] is None


def test_what_is_paused_can_be_aborted() -> None:
    jobs = [Job(0, prompt(900 + i, 20), 50, ignore_eos=True) for i in range(6)]
    world = World(Setup(slots=4))
    world.turn([job.message(key) for key, job in enumerate(jobs)])
    for _ in range(5):
        world.turn([])
    world.scheduler.pause(retract=False)
    world.turn([AbortReq(list(range(6)))])
    while not world.scheduler.idle:
        world.turn([])
    assert {finished.reason.type for finished in world.outcome.finished.values()} == {"abort"}
    assert world.scheduler.flush_cache(0.0).success and world.cache.free_pages == 64
