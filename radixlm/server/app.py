"""The application: every route from its row, CORS, request ids and the access log. Knows no handler's inside."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from radixlm.server import (
    control,
    health,
    info,
    loads,
    log_control,
    native,
    openapi,
    parser_routes,
    session_routes,
    tokens,
)
from radixlm.server.access import AccessLog
from radixlm.server.anthropic import routes as anthropic
from radixlm.server.errors import flat
from radixlm.server.ollama import routes as ollama
from radixlm.server.openai import chat, completions, models
from radixlm.server.openai.responses.routes import Responses
from radixlm.server.pooled import routes as pooled
from radixlm.server.route import Endpoint, Row
from radixlm.server.services import Services
from radixlm.server.ui import routes as ui


def rows(services: Services) -> tuple[Row, ...]:
    """The route table of one server. /metrics exists only with --enable-metrics, /ui not with --disable-ui."""
    table = (
        *(*health.ROWS, *info.ROWS, *native.ROWS, *completions.ROWS, *chat.ROWS, *models.ROWS),
        *(
            *tokens.ROWS,
            *parser_routes.ROWS,
            *session_routes.ROWS,
            *pooled.ROWS,
            *Responses().rows(),
            *anthropic.ROWS,
            *ollama.ROWS,
            *loads.ROWS,
            *log_control.ROWS,
            *control.ROWS,
        ),
    )
    if services.enable_metrics:
        table = (*table, *info.METRICS_ROWS)
    if services.journal is not None:
        table = (*table, *ui.ROWS)
    return (*table, openapi.row_of(table, services.version))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    """404 and 405 of the router, in the flat dialect."""
    assert isinstance(error, HTTPException)
    body = flat(error.detail, str(error.status_code), error.status_code)
    return JSONResponse(body, error.status_code, headers=dict(error.headers or {}))


def build_app(services: Services) -> ASGIApp:
    """The ASGI application that serves `services`."""
    routes = Starlette(
        routes=[Route(row.path, Endpoint(row, services), methods=row.methods) for row in rows(services)],
        middleware=[
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
    return AccessLog(routes, (*services.access_log_exclude_prefixes, *ui.POLLED))
