"""Extras that a model might have given: each log probability tells its token and its rank."""

from collections.abc import Sequence

import numpy as np

from radixlm.frontend.choice import Choice
from radixlm.protocol.extras import Extras, LogprobOptions, TokenLogprobs

HIDDEN = 3


def logprob(token: int, rank: int = 0) -> float:
    """Exact in 32 bits."""
    return -(token % 64) / 8 - rank


def extras_of(choice: Choice, tokens: Sequence[int], first: bool, hidden: bool) -> Extras | None:
    """What comes with these output tokens; with the first ones come the prompt's."""
    if choice.logprobs is None and not hidden:
        return None
    options, prompt = choice.logprobs, [int(id_) for id_ in choice.prompt_ids]
    vectors = np.array([[token] * HIDDEN for token in ([prompt[-1]] * first + list(tokens))], np.float32)
    return Extras(
        prompt=_scored(prompt[options.start + 1 :], options) if first and options is not None else None,
        output=_scored(tokens, options) if options is not None and len(tokens) else None,
        hidden=vectors if hidden and len(vectors) else None,
    )


def _scored(tokens: Sequence[int], options: LogprobOptions) -> TokenLogprobs | None:
    if not len(tokens):
        return None
    ranks = range(options.top)
    return TokenLogprobs(
        tokens=np.array(tokens, np.int32),
        values=np.array([logprob(token) for token in tokens], np.float32),
        top_tokens=np.array([[token + rank for rank in ranks] for token in tokens], np.int32),
        top_values=np.array([[logprob(token, rank) for rank in ranks] for token in tokens], np.float32),
        chosen_values=np.array([[logprob(id_) for id_ in options.token_ids] for _ in tokens], np.float32),
    )
