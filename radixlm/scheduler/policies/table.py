"""The queue policies, one row each."""

from radixlm.base.registry import Registry, Row
from radixlm.scheduler.policies.base import QueuePolicy

POLICIES: Registry[type[QueuePolicy]] = Registry(
    "schedule policy",
    [
        Row("fcfs", "radixlm.scheduler.policies.fcfs:FirstComeFirstServed"),
    ],
)
