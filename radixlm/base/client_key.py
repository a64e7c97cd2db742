"""The API key that our own clients send (bench, eval, chat): one option and the environment, alike for all of them."""

import os

from radixlm.base.errors import RadixError

KEY_VARIABLES = ("RADIXLM_API_KEY", "OPENAI_API_KEY")
KEY_HELP = f"the server's API key (${', else $'.join(KEY_VARIABLES)})"
REFUSED = (401, 403)


def client_key(given: str | None) -> str | None:
    """The key of --api-key, else of the environment; None when there is none."""
    return given or next((key for name in KEY_VARIABLES if (key := os.environ.get(name))), None)


def refusal(url: str, status: int) -> str:
    """What to tell the user when a server answers with one of REFUSED."""
    wanted = "wants a key" if status == 401 else "does not allow this with the key that it got"
    return f"{url} {wanted} (status {status}): give --api-key, or set {KEY_VARIABLES[0]}"


def check_key(url: str, status: int) -> None:
    """RadixError when a server at `url` has answered that the key will not do."""
    if status in REFUSED:
        raise RadixError(refusal(url, status))
