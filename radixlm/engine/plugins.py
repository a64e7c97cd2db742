"""What plug-ins of scheduler and cache refuse, known before there is a model or a device. Imports no torch."""

from radixlm.cache.eviction.table import make_strategy
from radixlm.config.groups import Config
from radixlm.scheduler.policies.table import choose_policy


def check_plugins(config: Config) -> None:
    """ConfigError for a plug-in's option that it does not have, or for what it needs beside it and has not."""
    cache = config.cache
    make_strategy(cache.radix_eviction_policy, cache.radix_eviction_policy_config or {})
    choose_policy(config.schedule.schedule_policy, radix=not cache.disable_radix_cache)
