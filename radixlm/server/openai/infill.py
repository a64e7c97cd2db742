"""Filling in the middle: a prompt that asks for what comes between a text and its suffix. Knows tokens, no route."""

from dataclasses import dataclass

from radixlm.base.errors import RequestError
from radixlm.server.services import Tokenizer


@dataclass(frozen=True)
class Infill:
    """How models that were trained on it are asked; `form` has places for {prompt} and {suffix}."""

    tokens: tuple[str, ...]
    form: str

    @staticmethod
    def of(prefix: str, suffix: str, middle: str) -> "Infill":
        return Infill((prefix, suffix, middle), f"{prefix}{{prompt}}{suffix}{{suffix}}{middle}")


FORMS = (
    Infill.of("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    Infill.of("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    Infill.of("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    Infill.of("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    Infill(("[SUFFIX]", "[PREFIX]"), "[SUFFIX]{suffix}[PREFIX]{prompt}"),  # Codestral
)


def infill(tokenizer: Tokenizer | None, prompt: str, suffix: str) -> str:
    """The prompt to continue. RequestError when the model has no tokens for this."""
    for form in FORMS:
        if tokenizer is not None and all(_is_token(tokenizer, token) for token in form.tokens):
            return form.form.format(prompt=prompt, suffix=suffix)
    raise RequestError("suffix needs a model with fill-in-the-middle tokens, which this one does not have", "suffix")


def _is_token(tokenizer: Tokenizer, text: str) -> bool:
    ids = tokenizer.encode(text, False)
    return len(ids) == 1 and tokenizer.piece(ids[0]) == text.encode()
