"""When the loop looks for messages."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from radixlm.engine.loop import Loop
from radixlm.protocol.messages import Message
from radixlm.protocol.plan import StepPlan, StepResult
from tests.sim.drive import Job, Setup, World
from tests.sim.test_policies import prompt


class Launched(NamedTuple):
    plan: StepPlan
    result: StepResult
    replayed: bool = False


class Device:
    """A runner that computes at once, and an inbox that counts how often it is asked."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked = 0
        self.messages: list[Message] = []

    def drain(self, timeout_s: float = 0.0) -> Sequence[Message]:
        self.asked += 1
        found, self.messages = self.messages, []
        return found

    def launch(self, plan: StepPlan) -> Launched:
        return Launched(plan, self.world.device.run(plan))

    def retire(self, step: Launched) -> StepResult:
        return step.result

    def weight(self, name: str) -> None:
        return None


@pytest.mark.parametrize("interval,asked", [(1, 30), (10, 5)])
def test_messages_are_looked_for_every_so_many_decode_steps(interval: int, asked: int) -> None:
    world = World(Setup(depth=0))
    device = Device(world)
    loop = Loop(world.scheduler, device, device, lambda message: None, 0, interval)  # type: ignore[arg-type]
    device.messages = [Job(0, prompt(1, 20), 29, ignore_eos=True).message(0)]  # two chunks, then 28 decode steps
    for _ in range(30):
        loop.turn()
    assert not world.scheduler.running
    assert device.asked == asked
