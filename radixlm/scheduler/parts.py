"""What the deciding rooms of one scheduler share. Made once, handed on whole; decides nothing itself."""

from dataclasses import dataclass

from radixlm.cache.manager import CacheManager
from radixlm.config.groups import ScheduleConfig
from radixlm.scheduler.admission import Admission
from radixlm.scheduler.lifecycle import Lifecycle
from radixlm.scheduler.policies.base import QueuePolicy
from radixlm.scheduler.queue import WaitingQueue
from radixlm.scheduler.report import Reporter
from radixlm.scheduler.sharing import PrefixSharing
from radixlm.scheduler.slots import SlotTable


@dataclass(frozen=True)
class Parts:
    """One scheduler's settings and state owners."""

    config: ScheduleConfig
    cache: CacheManager
    slots: SlotTable
    queue: WaitingQueue
    policy: QueuePolicy
    sharing: PrefixSharing
    admission: Admission
    lifecycle: Lifecycle
    reporter: Reporter
