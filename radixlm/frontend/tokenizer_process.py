"""A tokenizer as a process of its own: texts in, token ids out. Knows no request and no limit."""

import sys
from collections.abc import Sequence

import numpy as np
import setproctitle

from radixlm.base import log
from radixlm.engine.child import read_spec
from radixlm.engine.spec import ChildSpec
from radixlm.frontend.prompts import Encoder, LocalPrompts
from radixlm.loader.tokenizer import load_tokenizer
from radixlm.protocol.arrays import empty_i32
from radixlm.protocol.messages import ShutdownReq, TokenizeReply, TokenizeReq
from radixlm.protocol.wire import Addresses, Receiver, Sender

_log = log.get(__name__)
_POLL_S = 1.0


def answer(prompts: LocalPrompts, request: TokenizeReq) -> TokenizeReply:
    """The ids of the request's texts. What a text does to the tokenizer is its own error, not this process's end."""
    try:
        arrays = prompts.encode_now(request.texts, request.special)
    except Exception as error:
        _log.exception("a prompt could not be tokenized")
        return TokenizeReply(request.call, empty_i32(), empty_i32(), f"{type(error).__name__}: {error}")
    counts = np.array([len(array) for array in arrays], np.int32)
    return TokenizeReply(request.call, counts, np.concatenate(arrays))


def run(addresses: Addresses, worker: int, tokenizer: Encoder) -> None:
    """Serve until a ShutdownReq comes. Binds `addresses.tokenize(worker)`; answers keep the order of the requests."""
    receiver = Receiver(addresses.tokenize(worker), bind=True)
    sender = Sender(addresses.tokenized)
    prompts = LocalPrompts(tokenizer)
    try:
        while True:
            for message in receiver.drain(_POLL_S):
                if isinstance(message, ShutdownReq):
                    return
                if isinstance(message, TokenizeReq):
                    sender.send(answer(prompts, message))
    finally:
        receiver.close()
        sender.close(linger_ms=200)


def main(argv: Sequence[str] | None = None) -> int:
    """The child process; its argument is which worker it is. Told by one line of JSON, it leaves with its parent."""
    [worker] = sys.argv[1:] if argv is None else argv
    spec = ChildSpec.decode(read_spec())
    log.setup(spec.settings.server.log_level)
    setproctitle.setproctitle(f"radixlm::tokenizer-{worker}")
    run(spec.addresses, int(worker), load_tokenizer(spec.source, spec.settings.model.tokenizer_path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
