"""The attention backends, one row each, and which of them a server takes. Importing it imports none."""

from collections.abc import Callable
from functools import partial

from radixlm.attention.base import AttentionBackend, AttentionFacts, AttentionPlugin
from radixlm.base.errors import ConfigError
from radixlm.base.registry import Registry, Row, Verdict
from radixlm.cache.pools.mha import MHAPool
from radixlm.config.groups import DeviceConfig

# Ranks by measurement: docs/attention.md.
_EITHER = (
    Row("triton", "radixlm.attention.triton_paged:TritonPaged", rank=30),
    Row("native_cpu", "radixlm.attention.native_cpu:NativeCPU", rank=10),
    Row("torch_native", "radixlm.attention.torch_native:TorchNative", rank=0),
)
_FLASHINFER = "radixlm.attention.flashinfer:FlashInfer"

DECODE_BACKENDS: Registry[type[AttentionBackend]] = Registry(
    "--decode-attention-backend (else --attention-backend)", [*_EITHER, Row("flashinfer", _FLASHINFER, rank=20)]
)

# For steps with prompt tokens.
PREFILL_BACKENDS: Registry[type[AttentionPlugin]] = Registry(
    "--prefill-attention-backend (else --attention-backend)",
    [
        *_EITHER,
        Row("flashinfer", _FLASHINFER, rank=50),
        Row("fa4", "radixlm.attention.fa4:FlashAttention4", rank=40),
    ],
)

# For models whose tokens see the whole prompt, of which nothing is cached.
ENCODER_BACKENDS: Registry[type[AttentionBackend]] = Registry(
    "--attention-backend for encoders", [Row("full", "radixlm.attention.full:Full")]
)

Maker = Callable[[MHAPool], AttentionBackend]


def choose(facts: AttentionFacts, device: DeviceConfig) -> tuple[Maker, str]:
    """What makes a decoder's backend around a pool, and why it was chosen. ConfigError when what is asked cannot be."""
    both = device.attention_backend
    asked = device.prefill_attention_backend or both

    def why_not(kind: type[AttentionPlugin]) -> list[str]:
        reasons = kind.why_not(facts)
        return reasons if reasons or asked not in (None, "auto") else kind.why_not_unasked(facts)

    decode, decode_verdicts = DECODE_BACKENDS.choose(
        device.decode_attention_backend or both, lambda kind: kind.why_not(facts)
    )
    prefill, verdicts = PREFILL_BACKENDS.choose(asked, why_not)
    if prefill is decode:
        return partial(decode, facts), _explain(verdicts)
    from radixlm.attention.device import ChunkAttention, DeviceAttention
    from radixlm.attention.mixed import Mixed

    if not issubclass(decode, DeviceAttention) or not issubclass(prefill, ChunkAttention):
        raise ConfigError(
            f"--decode-attention-backend {decode.name} and --prefill-attention-backend {prefill.name} "
            "cannot work together"
        )
    why = f"decoding by {decode.name}: {_explain(decode_verdicts)}; prompts by {prefill.name}: {_explain(verdicts)}"
    return partial(Mixed, facts, decode=decode, chunks=prefill), why


def choose_for_encoder(facts: AttentionFacts, device: DeviceConfig) -> tuple[Maker, str]:
    """`choose` for a model that does not decode."""
    kind, verdicts = ENCODER_BACKENDS.choose(device.attention_backend, lambda kind: kind.why_not(facts))
    return partial(kind, facts), _explain(verdicts)


def _explain(verdicts: list[Verdict]) -> str:
    against = [f"not {v.name}: {', '.join(v.reasons)}" for v in verdicts if v.reasons]
    return "; ".join(against) if against else "the best that fits"
