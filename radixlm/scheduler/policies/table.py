"""The queue policies, one row each."""

from radixlm.base.registry import Registry, Row
from radixlm.scheduler.policies.base import PolicyFacts, QueuePolicy

POLICIES: Registry[type[QueuePolicy]] = Registry(
    "--schedule-policy",
    [
        Row("fcfs", "radixlm.scheduler.policies.fcfs:FirstComeFirstServed"),
        Row("lpm", "radixlm.scheduler.policies.lpm:LongestPrefixMatch"),
        Row("dfs-weight", "radixlm.scheduler.policies.dfs_weight:DepthFirstWeight"),
        Row("hrrn", "radixlm.scheduler.policies.hrrn:HighestResponseRatioNext"),
        Row("shortest-prefill-first", "radixlm.scheduler.policies.shortest_prefill:ShortestPrefillFirst"),
        Row("lof", "radixlm.scheduler.policies.lof:LongestOutputFirst"),
        Row("random", "radixlm.scheduler.policies.shuffled:Shuffled"),
        Row("routing-key", "radixlm.scheduler.policies.routing_key:RoutingKey"),
    ],
)


def choose_policy(name: str, radix: bool) -> type[QueuePolicy]:
    """The policy called `name`; ConfigError when there is none, or when it needs a prefix cache and has none."""
    policy, _ = POLICIES.choose(name, lambda kind: kind.why_not(PolicyFacts(radix)))
    return policy
