"""RadixLM: a serving engine for open language models. Importing this package loads neither torch nor the engine."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Engine", "__version__"]

if TYPE_CHECKING:
    from radixlm.api.engine import Engine


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from radixlm.api.engine import Engine

        return Engine
    raise AttributeError(f"module 'radixlm' has no attribute {name!r}")
