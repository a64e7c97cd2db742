"""A tokenizer out of a Hugging Face folder: tokenizer.json and the files beside it. Knows neither models nor GGUF."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from radixlm.base.errors import ModelError
from radixlm.loader.tokenizer_parts import TokenizerParts, set_affixes


def read_folder(folder: Path) -> TokenizerParts:
    """Read the tokenizer in `folder`; ModelError when there is none or it is damaged."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelError(
            f"{folder} has no tokenizer.json (other tokenizer files, such as tokenizer.model, are not read)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for a damaged or unknown file
        raise ModelError(f"cannot read {file}: {error}") from error
    config = _read_json(folder / "tokenizer_config.json")
    _add_missing_tokens(backend, config.get("added_tokens_decoder") or {})
    special_tokens = _special_tokens(_read_json(folder / "special_tokens_map.json") | config)
    _mark_special(backend, special_tokens.values())
    set_affixes(backend, special_tokens, config.get("add_bos_token"), config.get("add_eos_token"))
    return TokenizerParts(backend, special_tokens, _chat_templates(folder, config))


def _mark_special(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> None:
    """Make the named vocabulary entries special where the file has not; a text the vocabulary lacks is left alone."""
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [t for t in dict.fromkeys(texts) if t not in special and backend.token_to_id(t) is not None]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing])


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file that may be missing."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"cannot read {path}: it holds no JSON object")
    return value


def _add_missing_tokens(backend: tokenizers.Tokenizer, declared: Mapping[str, Any]) -> None:
    """Add the tokens that tokenizer_config.json declares and tokenizer.json lacks, under the ids it gives them."""
    known = backend.get_added_tokens_decoder()
    for id_, token in sorted((int(key), value) for key, value in declared.items()):
        if id_ in known:
            continue
        flags = {
            key: token[key] for key in ("single_word", "lstrip", "rstrip", "normalized", "special") if key in token
        }
        backend.add_tokens([AddedToken(token["content"], **flags)])
        if backend.token_to_id(token["content"]) != id_:
            raise ModelError(f"the added token {token['content']!r} cannot get its id {id_}")


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Every `*_token` of the configuration as plain text, also those under `extra_special_tokens`."""
    extra = config.get("extra_special_tokens")
    named = {**(extra if isinstance(extra, dict) else {}), **config}
    texts: dict[str, str] = {}
    for name, value in named.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            texts[name] = text
    return texts


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """By name: from tokenizer_config.json (one text, or a list of named ones); .jinja files go before it."""
    declared = config.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(declared, str):
        templates["default"] = declared
    elif isinstance(declared, list):
        templates.update({entry["name"]: entry["template"] for entry in declared})
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = file.read_text("utf-8")
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = (folder / "chat_template.jinja").read_text("utf-8")
    return templates
