"""The application: every route from its row, CORS, request ids and the access log. Knows no handler's inside."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from radixlm.server import control, health, info, loads, log_control, native, parser_routes, tokens
from radixlm.server.access import AccessLog
from radixlm.server.anthropic import routes as anthropic
from radixlm.server.errors import flat
from radixlm.server.ollama import routes as ollama
from radixlm.server.openai import chat, completions, models
from radixlm.server.openai.responses.routes import Responses
from radixlm.server.route import Endpoint, Row
from radixlm.server.services import Services


def rows(services: Services) -> tuple[Row, ...]:
    """The route table of one server. /metrics exists only with --enable-metrics."""
    table = (
        *(*health.ROWS, *info.ROWS, *native.ROWS, *completions.ROWS, *chat.ROWS, *models.ROWS),
        *(
            *tokens.ROWS,
            *parser_routes.ROWS,
            *Responses().rows(),
            *anthropic.ROWS,
            *ollama.ROWS,
            *loads.ROWS,
            *log_control.ROWS,
            *control.ROWS,
        ),
    )
    return (*table, *info.METRICS_ROWS) if services.enable_metrics else table


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    """404 and 405 of the router, in the flat dialect."""
    assert isinstance(error, HTTPException)
    body = flat(error.detail, str(error.status_code), error.status_code)
    return JSONResponse(body, error.status_code, headers=dict(error.headers or {}))


def build_app(services: Services) -> Starlette:
    """The ASGI application that serves `services`."""
    return Starlette(
        routes=[Route(row.path, Endpoint(row, services), methods=row.methods) for row in rows(services)],
        middleware=[
            Middleware(AccessLog, exclude=services.access_log_exclude_prefixes),
            Middleware(
                CORSMiddleware,
                allow_origins=["*"],
                allow_methods=["*"],
                allow_headers=["*"],
                allow_credentials=True,
                expose_headers=["x-request-id"],
            ),
        ],
        exception_handlers={HTTPException: _http_error},
    )
