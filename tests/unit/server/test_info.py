"""Secrets never leave."""

from radixlm.server.info import HIDDEN, redact


def test_secret_settings_and_secrets_inside_text_are_hidden():
    shown = redact(
        {
            "api_key": "k-123",
            "hf_token": "t",
            "ssl_keyfile_password": "p",
            "max_total_tokens": 5,
            "skip_special_tokens": True,
            "launch_command": "serve --api-key k-123 --port 1",
            "nested": {"admin_api_key": "x", "words": ["k-123", "fine"]},
            "unset_api_key": None,
        },
        ("k-123",),
    )
    assert shown == {
        "api_key": HIDDEN,
        "hf_token": HIDDEN,
        "ssl_keyfile_password": HIDDEN,
        "max_total_tokens": 5,
        "skip_special_tokens": True,
        "launch_command": f"serve --api-key {HIDDEN} --port 1",
        "nested": {"admin_api_key": HIDDEN, "words": [HIDDEN, "fine"]},
        "unset_api_key": None,
    }
