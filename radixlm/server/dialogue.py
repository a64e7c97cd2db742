"""From a conversation to the one request that answers it, and to what reads the answer. Knows no route's body."""

from typing import Any

from radixlm.frontend.choice import ChoiceRequest
from radixlm.protocol.messages import CacheNamespace
from radixlm.server.conversation import Conversation
from radixlm.server.parsing import Parsers, Parsing
from radixlm.server.services import Services


async def dialogue(
    services: Services,
    conversation: Conversation,
    sampling_params: dict[str, Any],
    stream: bool,
    rid: str | None = None,
    namespace: CacheNamespace | None = None,
    priority: int | None = None,
    parsing: Parsing | None = None,
    input_ids: list[int] | None = None,
) -> tuple[ChoiceRequest, Parsers]:
    """`sampling_params` are under their native names. RequestError when the template refuses the messages.

    `parsing` None reads answers as the server is set to; `input_ids` stand for the prompt in place of the messages.
    """
    parsing = parsing or Parsing(services, conversation.tools)
    own = {"skip_special_tokens": False} if parsing.keeps_special_tokens else {}
    request = ChoiceRequest(
        text=await conversation.prompt(services) if input_ids is None else None,
        input_ids=input_ids,
        sampling_params=sampling_params | own,
        stream=stream,
        rid=rid,
        add_special_tokens=False,
        apply_generation_defaults=services.sampling_defaults == "model",
        namespace=namespace or CacheNamespace(),
        priority=priority,
    )
    return request, parsing.parsers(request, conversation.continued if input_ids is None else "")
