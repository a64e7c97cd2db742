"""Our Triton kernels, each with a torch reference elsewhere in `radixlm.kernels`. Importing this imports no Triton."""

from functools import cache
from importlib.util import find_spec


@cache
def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None
