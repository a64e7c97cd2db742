"""Log probabilities of given tokens, asked of a running server through /generate. Knows the wire format, no task."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixlm.base.client_key import check_key
from radixlm.base.errors import RadixError
from radixlm.benchmark.http1 import HttpClient, HttpFailure

TIMEOUT_S = 600.0
AT_ONCE = 16  # requests in flight

_Triple = tuple[float | None, int, Any]


class _Meta(msgspec.Struct):
    input_token_logprobs: list[_Triple] | None = None
    input_top_logprobs: list[list[_Triple] | None] | None = None


class _Answer(msgspec.Struct):
    meta_info: _Meta


_answer = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True)
class Scores:
    """Log probabilities (natural) of a prompt's tokens from some position on, each given all tokens before it.

    `top[i]`: the likeliest tokens at the place of `logprobs[i]`, id to log probability; empty if none were asked for.
    """

    ids: list[int]
    logprobs: list[float]
    top: list[dict[int, float]]


class Scorer:
    """Asks one server. RadixError, in one line, for whatever it cannot do."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._limit = asyncio.Semaphore(AT_ONCE)

    @property
    def url(self) -> str:
        return self._client.target.url

    async def tokenize(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """The server's token ids of each text."""
        answer = await self._post("/tokenize", {"prompt": list(texts), "add_special_tokens": add_special_tokens})
        ids: list[list[int]] = msgspec.json.decode(answer)["tokens"]
        return ids

    async def longest_tokens(self) -> int:
        """The longest prompt that the server takes."""
        status, body = await self._fetch("GET", "/server_info", b"")
        longest = msgspec.json.decode(body).get("max_req_input_len") if status == 200 else None
        if not isinstance(longest, int):
            raise RadixError(f"{self.url}/server_info does not tell max_req_input_len")
        return longest

    async def score(self, ids: Sequence[int], start: int, top: int = 0) -> Scores:
        """Score ids[start:], 1 <= start < len(ids), and list the `top` likeliest at each place."""
        body: dict[str, Any] = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": start - 1,  # its own first entry is always null
        }
        if top:
            body["top_logprobs_num"] = top
        async with self._limit:
            answer = await self._post("/generate", body)
        try:
            meta = _answer.decode(answer).meta_info
        except msgspec.DecodeError as error:
            raise RadixError(f"{self.url} answered /generate in another form: {error}") from None
        entries = (meta.input_token_logprobs or [])[1:]
        values = [value for value, _, _ in entries if value is not None]
        if len(values) != len(ids) - start or [token for _, token, _ in entries] != list(ids[start:]):
            raise RadixError(f"{self.url} returned {len(values)} prompt log probabilities of {len(ids) - start}")
        listed = (meta.input_top_logprobs or [])[1:] if top else []
        tops = [{token: value for value, token, _ in one or [] if value is not None} for one in listed]
        return Scores(list(ids[start:]), values, tops)

    async def _post(self, path: str, body: dict[str, Any]) -> bytes:
        status, answer = await self._fetch("POST", path, msgspec.json.encode(body))
        if status != 200:
            text = " ".join(answer[:300].decode("utf-8", "replace").split())
            raise RadixError(f"{self.url}{path} answered {status}: {text}")
        return answer

    async def _fetch(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        try:
            status, answer = await self._client.fetch(method, path, TIMEOUT_S, body)
        except HttpFailure as failure:
            raise RadixError(str(failure)) from None
        check_key(self.url + path, status)
        return status, answer
