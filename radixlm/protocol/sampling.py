"""The sampling parameters of one request, validated and complete, as the scheduler and the runner read them."""

import msgspec

GREEDY_BELOW = 1e-6  # a temperature under this means greedy decoding, as in SGLang


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What shapes and ends one request's output. Ranges are enforced once, by frontend/validate.py, not here.

    `max_new_tokens` is never None here: "up to the context limit" has been resolved to a number. `top_k` -1 means
    all. `seed` is always a number: noise is a pure function of (seed, output position), so a request without one
    was given a random one. `stop_token_ids` are the request's own; the model's EOS ids are added by the scheduler
    unless `ignore_eos`, which disables both.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @property
    def penalized(self) -> bool:
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0 or self.repetition_penalty != 1.0
