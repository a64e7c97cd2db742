"""The scheduler process: told by one line of JSON, it builds the engine, says it is ready, and turns the loop."""

import faulthandler
import sys
import time

import setproctitle

from radixlm.base import log
from radixlm.base.errors import RadixError
from radixlm.engine.build import build
from radixlm.engine.child import read_spec
from radixlm.engine.loop import Loop
from radixlm.engine.spec import ChildSpec
from radixlm.protocol.messages import BatchTokenIDOutput, FatalError, FromScheduler
from radixlm.protocol.wire import Receiver, Sender

logger = log.get(__name__)
LAST_WORDS_MS = 2000  # how long an exiting process waits for its last message to leave


def main() -> int:
    spec = ChildSpec.decode(read_spec())
    config = spec.settings
    log.setup(config.server.log_level)
    faulthandler.enable()
    setproctitle.setproctitle("radixlm::scheduler")
    to_front = Sender(spec.addresses.tokenizer)
    to_detokenizer = Sender(spec.addresses.detokenizer) if spec.detokenizer_apart else to_front

    def emit(message: FromScheduler) -> None:
        (to_detokenizer if isinstance(message, BatchTokenIDOutput) else to_front).send(message)

    try:
        began = time.monotonic()
        engine = build(config, spec.source, spec.card)
        logger.info("engine ready in %.1f s", time.monotonic() - began)
        if engine.team is not None and engine.team.settle():
            logger.info("each of %d threads computes on a core of its own", len(engine.team.threads))
        emit(engine.ready)
        inbox, interval = Receiver(spec.addresses.scheduler), config.schedule.scheduler_recv_interval
        Loop(engine.scheduler, engine.runner, inbox, emit, engine.run_ahead, interval, engine.grammars).run()
        engine.grammars.close()
        if engine.feed is not None:
            engine.feed.close()
    except RadixError as error:
        to_front.send(FatalError(str(error)))
        return _leave(1, to_front)
    except Exception as error:
        logger.exception("the scheduler process failed")
        to_front.send(FatalError(f"scheduler: {type(error).__name__}: {error}"))
        return _leave(1, to_front)
    return _leave(0, to_front)


def _leave(status: int, to_front: Sender) -> int:
    to_front.close(LAST_WORDS_MS)
    return status


if __name__ == "__main__":
    sys.exit(main())
