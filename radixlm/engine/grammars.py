"""The grammars of the requests in one scheduler process: who waits for one, and where each answer stands in its own.

The loop asks; the scheduler knows flags only, the runner masks only. Compiling is grammar/service.py's.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from radixlm.base import log
from radixlm.config.card import ModelCard
from radixlm.config.groups import Config
from radixlm.grammar.base import STEP_LIMIT_S, Grammar, GrammarError, Source, Vocabulary, Whitespace
from radixlm.grammar.judge import Judge
from radixlm.grammar.processors.base import Processor, ProcessorFacts
from radixlm.grammar.processors.table import maker
from radixlm.grammar.service import CompileService
from radixlm.grammar.session import Phase, Session, Spelling
from radixlm.loader.tokenizer import Tokenizer
from radixlm.parsers.detect import AUTO, tool_call_parser
from radixlm.parsers.tools.table import TOOL_CALLS
from radixlm.protocol.arrays import I32
from radixlm.protocol.grammar import GrammarSpec, Kind, ProcessorCall
from radixlm.protocol.messages import ReleaseReq, TokenizedGenerateReqInput
from radixlm.runner.masks import TokenMasks

logger = log.get(__name__)
FAIR_S = 0.01  # of processor time that an answer may take for a token, however many others there are


@dataclass(frozen=True)
class GrammarSettings:
    """What the flags say. backend: a name, "auto" or None for the best for each grammar, "none" for no grammars."""

    backend: str | None = None
    whitespace: Whitespace = field(default_factory=Whitespace)
    processors: bool = False


def grammar_room(
    config: Config, card: ModelCard, tokenizer: Tokenizer | None, judge: Callable[[Vocabulary], Judge] = Judge
) -> "GrammarRoom":
    """The room of a server with these settings. Of special tokens only those have a text for grammars that the model's
    own tool calls are made of; any other in an answer would not be seen by whoever reads it."""
    constraints = config.constraints
    most = constraints.constrained_json_max_whitespace_cnt or Whitespace().most
    if constraints.constrained_json_disable_any_whitespace:
        most = 0
    whitespace = Whitespace(most, constraints.constrained_json_whitespace_pattern)
    settings = GrammarSettings(constraints.grammar_backend, whitespace, constraints.enable_custom_logit_processor)
    if tokenizer is None:
        return GrammarRoom(settings, None, ())
    pieces = tokenizer.token_bytes(card.vocab_size)[: card.vocab_size]
    stop_ids = tuple(id_ for id_ in card.eos_token_ids if id_ < card.vocab_size)
    silent = tokenizer.special_ids - _spoken(config.server.tool_call_parser, tokenizer, pieces)
    texts = [b"" if id_ in silent or id_ in stop_ids else piece for id_, piece in enumerate(pieces)]
    vocabulary = Vocabulary(texts, stop_ids, card.vocab_size)
    return GrammarRoom(settings, vocabulary, pieces, CompileService(vocabulary, settings.backend, judge=judge))


def _spoken(parser: str | None, tokenizer: Tokenizer, pieces: Sequence[bytes]) -> set[int]:
    """The special tokens that stand in the frame of the model's tool calls."""
    if parser == AUTO:
        parser = tool_call_parser(parser, tokenizer.chat_template or "")
    frame = TOOL_CALLS.load(parser).frame if parser is not None else None
    text = b"" if frame is None else (frame.begin + frame.end).encode()
    return {id_ for id_ in tokenizer.special_ids if pieces[id_] and pieces[id_] in text}


class GrammarRoom:
    """Sessions by request key. Every method is the loop's."""

    def __init__(
        self,
        settings: GrammarSettings,
        vocabulary: Vocabulary | None,
        pieces: Sequence[bytes],
        service: CompileService | None = None,
    ) -> None:
        """`vocabulary` and `service` None: there is no tokenizer. `pieces` are the texts of all ids, special too."""
        self._settings = settings
        self._vocabulary = vocabulary
        self._pieces = pieces
        self._spelling: Spelling | None = None
        self._service = service
        self._waiting: dict[int, TokenizedGenerateReqInput] = {}
        self._sessions: dict[int, Session] = {}
        self._failed: dict[int, str] = {}
        self._spent_s: dict[int, float] = {}  # processor time for each answer's newest token and the mask after it

    @property
    def waiting(self) -> int:
        """Requests that are held."""
        return len(self._waiting)

    def take(self, event: TokenizedGenerateReqInput) -> None:
        """A request has come; if it has a grammar, it waits here for its release."""
        if event.grammar is not None:
            self._waiting[event.key] = event

    def released(self) -> list[ReleaseReq]:
        """The waiting requests that may run now, and those that never will."""
        return list(self._decided()) if self._waiting else []

    def masks(self, rows: Sequence[tuple[int, int]]) -> TokenMasks | None:
        """What the (row, key) of a step may sample; None when all may sample anything."""
        if self._vocabulary is None:
            return None
        bits = np.empty((len(rows), self._vocabulary.words), np.int32)
        bound: list[int] = []
        for row, key in rows:
            session = self._sessions.get(key)
            if session is not None and self._fill(session, key, bits[len(bound)]):
                bound.append(row)
        self._end_dearest()
        if not bound:
            return None
        return TokenMasks(np.array(bound, np.int64), bits[: len(bound)])

    def judge(self, rows: Sequence[tuple[int, int]], tokens: I32) -> dict[int, str | None]:
        """The (row, key) of a step have got `tokens` (int32, by row): the rows whose answer is over, and why."""
        ends: dict[int, str | None] = {}
        self._spent_s.clear()
        for row, key in rows:
            session, token = self._sessions.get(key), int(tokens[row])
            if key in self._failed:
                ends[row] = self._failed[key]
            elif session is not None and token >= 0:
                began_s = time.thread_time()
                try:
                    if session.accept(token):
                        ends[row] = None
                except GrammarError as error:
                    ends[row] = f"The grammar cannot go on: {error}"
                self._spent_s[key] = time.thread_time() - began_s
        return ends

    def forget(self, keys: Sequence[int]) -> None:
        """These requests have ended."""
        for key in keys:
            self._waiting.pop(key, None)
            self._sessions.pop(key, None)
            self._failed.pop(key, None)

    def close(self) -> None:
        if self._service is not None:
            self._service.close()

    # ---- inside -------------------------------------------------------------------------------------------------

    def _decided(self) -> Iterator[ReleaseReq]:
        for key, event in list(self._waiting.items()):
            assert event.grammar is not None
            try:
                session = self._session(event, event.grammar)
            except GrammarError as error:
                del self._waiting[key]
                yield ReleaseReq(key, _complaint(event.grammar, error), event.grammar.field)
                continue
            if session is not None:
                del self._waiting[key]
                self._sessions[key] = session
                yield ReleaseReq(key)

    def _session(self, event: TokenizedGenerateReqInput, spec: GrammarSpec) -> Session | None:
        """The request's session, or None while its grammar is being compiled."""
        vocabulary = self._vocabulary
        if vocabulary is None or not vocabulary.stop_ids:
            raise GrammarError("it needs a tokenizer with an end token, and this server runs without one")
        grammar = None if spec.kind is None else self._grammar(spec.kind, spec.text)
        if spec.kind is not None and grammar is None:
            return None
        if self._spelling is None:
            self._spelling = Spelling.of(self._pieces)
        processor = None if spec.processor is None else self._processor(spec.processor, vocabulary)
        sampling = event.sampling
        stops = () if sampling.ignore_eos else (*sampling.stop_token_ids, *vocabulary.stop_ids)
        phase = Phase(spec.thinking, self._spelling)
        matcher = grammar.matcher() if grammar is not None else None
        return Session(vocabulary, phase, matcher, processor, stops, sampling.min_new_tokens)

    def _grammar(self, kind: Kind, text: str) -> Grammar | None:
        if self._settings.backend == "none":
            raise GrammarError("this server runs with --grammar-backend none")
        assert self._service is not None
        return self._service.ask(Source(kind, text, self._settings.whitespace))

    def _processor(self, call: ProcessorCall, vocabulary: Vocabulary) -> Processor:
        if not self._settings.processors:
            raise GrammarError("this server runs without --enable-custom-logit-processor")
        assert self._spelling is not None
        facts = ProcessorFacts(call.params, vocabulary, self._spelling.ids, call.thinking)
        try:
            return maker(call.name)(facts)
        except GrammarError:
            raise
        except Exception as error:  # it may be somebody else's code
            logger.exception("logit processor %s cannot be made", call.name)
            raise GrammarError(f"it cannot be made: {error}") from error

    def _fill(self, session: Session, key: int, mask: I32) -> bool:
        began_s = time.thread_time()
        try:
            return session.fill(mask)
        except GrammarError as error:
            self._failed[key] = f"The grammar cannot go on: {error}"
            return False
        finally:
            self._spent_s[key] = self._spent_s.get(key, 0.0) + time.thread_time() - began_s

    def _end_dearest(self) -> None:
        """While all masks of a step took too long together, the answers that took most of it end with it: every other
        answer waits for them."""
        left_s = sum(self._spent_s.values())
        if left_s <= STEP_LIMIT_S:
            return
        for key, spent_s in sorted(self._spent_s.items(), key=lambda item: -item[1]):
            if left_s <= STEP_LIMIT_S or spent_s <= FAIR_S:
                return
            self._failed[key] = f"The grammar is too complex: a token took {spent_s:.2f} s, and others wait"
            left_s -= spent_s


def _complaint(spec: GrammarSpec, error: GrammarError) -> str:
    """What the client is told."""
    if spec.processor is not None and spec.kind is None:
        return f"custom_logit_processor {spec.processor.name[:64]!r}: {error}"
    return f"Failed to compile {spec.kind} grammar: {error}"
