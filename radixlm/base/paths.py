"""Where things are kept between runs."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """The folder of models and of compiled kernels: $RADIXLM_CACHE, else radixlm under $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("RADIXLM_CACHE")
    return Path(own or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "radixlm").expanduser()
