"""The detokenizer as a process of its own: scheduler's messages in, tokenizer manager's out."""

import sys

import setproctitle

from radixlm.base import log
from radixlm.engine.child import read_spec
from radixlm.engine.spec import ChildSpec
from radixlm.frontend.detokenizer import Detokenizer
from radixlm.loader.tokenizer import Tokenizer, load_tokenizer
from radixlm.protocol.messages import BatchTokenIDOutput, FatalError, ShutdownReq
from radixlm.protocol.wire import Addresses, Receiver, Sender

_POLL_S = 1.0


def run(addresses: Addresses, tokenizer: Tokenizer) -> None:
    """Serve until a ShutdownReq comes. Binds the `detokenizer` address; the order of messages is kept.

    Whatever is no token batch passes through. An error ends the process after a FatalError has been sent.
    """
    receiver = Receiver(addresses.detokenizer, bind=True)
    sender = Sender(addresses.tokenizer)
    detokenizer = Detokenizer(tokenizer)
    try:
        while True:
            for message in receiver.drain(_POLL_S):
                if isinstance(message, ShutdownReq):
                    return
                if isinstance(message, BatchTokenIDOutput):
                    message = detokenizer.process(message)
                sender.send(message)
    except Exception as error:
        sender.send(FatalError(f"the detokenizer failed: {error}"))
        raise
    finally:
        receiver.close()
        sender.close(linger_ms=200)


def main() -> int:
    """The child process: told by one line of JSON, it leaves when its parent does."""
    spec = ChildSpec.decode(read_spec())
    log.setup(spec.settings.server.log_level)
    setproctitle.setproctitle("radixlm::detokenizer")
    run(spec.addresses, load_tokenizer(spec.source, spec.settings.model.tokenizer_path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
