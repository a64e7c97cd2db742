"""/tokenize and /detokenize: texts or conversations to token ids, and back. Generates nothing."""

from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.frontend import checks
from radixlm.frontend.prompts import by_size, encode
from radixlm.server.conversation import Conversation, template_kwargs
from radixlm.server.exchange import Exchange, decode
from radixlm.server.limits import MAX_CHOICES
from radixlm.server.route import Row
from radixlm.server.services import Services, Tokenizer
from radixlm.server.tooling import tool_use


class TokenizeBody(msgspec.Struct, kw_only=True, frozen=True):
    """Exactly one of `prompt` and `messages`. Unknown keys are ignored."""

    prompt: str | list[str] | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | float | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True, frozen=True):
    """Ids of one text, or of several."""

    tokens: list[int | list[int]]
    skip_special_tokens: bool | None = None


_tokenize = msgspec.json.Decoder(TokenizeBody)
_detokenize = msgspec.json.Decoder(DetokenizeBody)


def _tokenizer(services: Services) -> Tokenizer:
    tokenizer = services.manager.tokenizer
    if tokenizer is None:
        raise RequestError("This server runs without a tokenizer")
    return tokenizer


def max_model_len(services: Services) -> int:
    """The longest sequence, in tokens."""
    ready = services.manager.ready
    fact = ready.facts.get("context_len") if ready is not None else None
    return fact if isinstance(fact, int) else services.manager.card.context_len


async def handle_tokenize(exchange: Exchange) -> None:
    exchange.require_json()
    body = decode(await exchange.body(), _tokenize)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("Exactly one of prompt and messages must be given", "prompt")
    if body.messages is not None:
        kwargs = template_kwargs(body.chat_template_kwargs, body.reasoning_effort)
        conversation = Conversation(
            messages=body.messages,
            kwargs=kwargs,
            continues=bool(body.continue_final_message),
            tools=tool_use(exchange.services, body.tools, body.tool_choice),
        )
        texts, special = [await conversation.prompt(exchange.services)], False
    else:
        texts = [body.prompt] if isinstance(body.prompt, str) else list(body.prompt or ())
        special = body.add_special_tokens is not False
    if len(texts) > MAX_CHOICES:
        raise RequestError(f"A batch of {len(texts)} prompts is larger than {MAX_CHOICES}", "prompt")
    ids = await token_ids(exchange.services, texts, special)
    single = not isinstance(body.prompt, list)
    counts = [len(one) for one in ids]
    tokens, count = (ids[0], counts[0]) if single else (ids, counts)
    await exchange.json({"tokens": tokens, "count": count, "max_model_len": max_model_len(exchange.services)})


async def token_ids(services: Services, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
    """The ids that a request with each of `texts` as its prompt would start with."""
    tokenizer = _tokenizer(services)

    return await by_size(lambda: [encode(tokenizer, text, add_special_tokens) for text in texts], sum(map(len, texts)))


async def handle_detokenize(exchange: Exchange) -> None:
    exchange.require_json()
    body = decode(await exchange.body(), _detokenize)
    tokenizer = _tokenizer(exchange.services)
    vocab_size = exchange.services.manager.card.vocab_size
    batch = any(isinstance(one, list) for one in body.tokens)
    checked = [checks.token_ids("tokens", ids, vocab_size) for ids in (body.tokens if batch else [body.tokens])]
    skip = body.skip_special_tokens is not False

    texts = await by_size(
        lambda: [tokenizer.decode(ids, skip_special_tokens=skip) for ids in checked], sum(map(len, checked))
    )
    await exchange.json({"text": texts if batch else texts[0]})


ROWS = tuple(
    Row(prefix + path, ("POST",), handler, "user", "openai", body)
    for path, handler, body in (
        ("/tokenize", handle_tokenize, TokenizeBody),
        ("/detokenize", handle_detokenize, DetokenizeBody),
    )
    for prefix in ("", "/v1")
)
