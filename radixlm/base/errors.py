"""The errors that cross module borders. Each says who is to blame; none knows about HTTP bodies or exit codes."""


class RadixError(Exception):
    """A failure with a cause a person can act on; its text is one line and is shown without a traceback."""


class ConfigError(RadixError):
    """A flag, a combination of flags or a configuration file that cannot be honoured."""


class ModelError(RadixError):
    """A model that cannot be found, read or served (bad path, unknown architecture, damaged weights)."""


class CapacityError(RadixError):
    """Not enough memory for the weights or for a useful KV pool."""


class RequestError(RadixError):
    """A request that is refused.

    Attributes:
        message: what is wrong, in one sentence.
        field: the request field to blame, or None.
        status: the HTTP status it deserves (400 unless said otherwise).
        code: a stable machine-readable name, such as "context_length_exceeded", or None.
    """

    def __init__(self, message: str, field: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.status = status
        self.code = code
