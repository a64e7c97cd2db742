"""What the server says about itself: model, settings, capacity, metrics. Never a secret."""

import re
from collections.abc import Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from radixlm.protocol.control import Empty, InternalStateReply
from radixlm.server.exchange import Exchange
from radixlm.server.route import Row
from radixlm.server.services import Services

HIDDEN = "***"
_SECRET_NAME = re.compile(r"api_?key|secret|passw|credential|(^|_)(hf|auth|access|bearer)_token", re.IGNORECASE)


def redact(value: Any, secrets: tuple[str, ...], name: str = "") -> Any:
    """`value` without secrets: settings whose name says secret are hidden, and so is each secret inside any text."""
    if name and _SECRET_NAME.search(name) and value is not None:
        return HIDDEN
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, HIDDEN)
        return value
    if isinstance(value, Mapping):
        return {str(key): redact(item, secrets, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item, secrets) for item in value]
    return value


def _secrets(services: Services) -> tuple[str, ...]:
    return tuple(key for key in (services.api_key, services.admin_api_key) if key)


async def handle_model_info(exchange: Exchange) -> None:
    services, card = exchange.services, exchange.services.manager.card
    await exchange.json(
        {
            "model_path": services.model_path,
            "served_model_name": services.served_model_name,
            "tokenizer_path": services.tokenizer_path or services.model_path,
            "is_generation": card.pooling is None,
            "preferred_sampling_params": None,
            "weight_version": services.weight_version,
            "load_format": services.load_format,
            "reasoning_parser": services.reasoning_parser,
            "tool_call_parser": services.tool_call_parser,
            "disaggregation_mode": "null",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": card.model_type,
            "architectures": [card.architecture],
        }
    )


async def handle_server_info(exchange: Exchange) -> None:
    services, manager = exchange.services, exchange.services.manager
    info: dict[str, Any] = {**services.launch, "launch_command": services.launch_command}
    internal: dict[str, Any] = {}
    ready = manager.ready
    if ready is not None:
        info.update(ready.facts)
        info["capacity_tokens"] = ready.capacity_tokens
        info["max_total_num_tokens"] = ready.max_total_num_tokens
        info["max_req_input_len"] = ready.capacity_tokens - 1
        info["max_running_requests"] = ready.max_running_requests
        info["page_size"] = ready.page_size
        info["startup_report"] = ready.report
        reply = await manager.control("internal_state", Empty())
        assert isinstance(reply, InternalStateReply)
        internal = {**reply.state, "last_gen_throughput": reply.state.get("gen_throughput")}
    info = redact(info, _secrets(services))
    info["status"] = "ready" if ready is not None and not manager.draining else "unavailable"
    info["model_path"] = services.model_path
    info["served_model_name"] = services.served_model_name
    info["weight_version"] = services.weight_version
    info["context_len"] = (
        manager.card.context_len if ready is None else info.get("context_len", manager.card.context_len)
    )
    info["startup_time"] = services.startup_s
    info["version"] = services.version
    info["frontend"] = "python"
    info["internal_states"] = [redact(internal, _secrets(services))]
    await exchange.json(info)


async def handle_root(exchange: Exchange) -> None:
    await exchange.json("RadixLM is running")


async def handle_metrics(exchange: Exchange) -> None:
    await exchange.answer(exchange.services.metrics.render(), CONTENT_TYPE_PLAIN_0_0_4)


ROWS = (
    Row("/", ("GET",), handle_root, "user"),
    Row("/model_info", ("GET",), handle_model_info, "user"),
    Row("/get_model_info", ("GET",), handle_model_info, "user"),
    Row("/server_info", ("GET",), handle_server_info, "user"),
    Row("/get_server_info", ("GET",), handle_server_info, "user"),
)
METRICS_ROWS = (Row("/metrics", ("GET",), handle_metrics, "public"),)
