"""How a model pools: from its architecture, its config.json and sentence-transformers' files beside it."""

import json
from pathlib import Path
from typing import Any, cast, get_args

import msgspec

from radixlm.base.errors import ModelError
from radixlm.config.card import PoolingCard, PoolingMode
from radixlm.models.table import ENCODERS, POOLED_DECODERS, SCORING

MODULES = "modules.json"
MODES: tuple[str, ...] = get_args(PoolingMode)
# In the order in which sentence-transformers puts the results of several modes side by side.
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


class _Module(msgspec.Struct):
    """An entry of modules.json: the class, and the folder of its files."""

    type: str
    path: str = ""

    @property
    def kind(self) -> str:
        return self.type.rpartition(".")[2]


class _Scores(msgspec.Struct, kw_only=True):
    """The keys of config.json that describe a classifier."""

    id2label: dict[str, str] | None = None
    num_labels: int | None = None
    sbert_ce_default_activation_function: str | None = None
    sentence_transformers: dict[str, Any] = {}

    @property
    def activation(self) -> str | None:
        given = self.sentence_transformers.get("activation_fn") or self.sbert_ce_default_activation_function
        return None if given is None else str(given).rpartition(".")[2]


def pooling_card(
    folder: Path | None, config: dict[str, Any], architecture: str, asked: bool, name: str
) -> PoolingCard | None:
    """None for a model that generates: a causal one, unless `asked` (--is-embedding). ModelError for what cannot be.

    `folder` None: there are no files beside the model's.
    """
    encoder = architecture in ENCODERS
    if not (encoder or asked or architecture in POOLED_DECODERS):
        return None
    if architecture.endswith(SCORING):
        return _scores(msgspec.convert(config, _Scores), architecture, encoder, name)
    card = PoolingCard(modes=("cls" if encoder else "lasttoken",), normalize=True)
    if folder is not None and (folder / MODULES).is_file():
        card = _of_modules(folder)
    if not encoder and "cls" in card.modes:
        raise ModelError(f"{name}: the first token of a causal model knows nothing of the rest; it cannot be pooled")
    dimensions = tuple(msgspec.convert(config.get("matryoshka_dimensions") or [], list[int]))
    matryoshka = bool(config.get("is_matryoshka") or dimensions)
    return msgspec.structs.replace(card, matryoshka=matryoshka, dimensions=dimensions)


def _scores(config: _Scores, architecture: str, encoder: bool, name: str) -> PoolingCard:
    count = config.num_labels or len(config.id2label or {}) or 2
    reward = architecture.endswith("ForRewardModel")
    if reward:
        count = 1
    names = config.id2label or {}
    activation = config.activation or ("Sigmoid" if encoder and count == 1 else "Identity")
    if activation not in ("Sigmoid", "Identity"):
        raise ModelError(f"{name}: activation {activation} of scores is not supported; known: Sigmoid, Identity")
    return PoolingCard(
        modes=("cls" if encoder else "lasttoken",),
        labels=tuple(names.get(str(index), f"LABEL_{index}") for index in range(count)),
        deep_head=reward,
        sigmoid=activation == "Sigmoid",
    )


def _of_modules(folder: Path) -> PoolingCard:
    """What modules.json makes of hidden states: the transformer in the folder itself, pooling, perhaps normalising."""
    try:
        modules = msgspec.json.decode((folder / MODULES).read_bytes(), type=list[_Module])
    except msgspec.DecodeError as error:
        raise ModelError(f"{folder / MODULES} is damaged: {error}") from None
    kinds = [module.kind for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelError(
            f"{folder / MODULES}: only Transformer, Pooling and Normalize, in this order, are supported, not "
            f"{', '.join(kinds)}"
        )
    if modules[0].path not in ("", "."):
        raise ModelError(f"{folder / MODULES}: the transformer's files must lie in the folder itself")
    return PoolingCard(modes=_modes(folder / modules[1].path / "config.json"), normalize=len(modules) == 3)


def _modes(path: Path) -> tuple[PoolingMode, ...]:
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is missing or damaged: {error}") from None
    given = config.get("pooling_mode")
    if given is None:
        given = [mode for key, mode in _SWITCHES.items() if config.get(key)] or ["mean"]
    modes = [given] if isinstance(given, str) else given
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise ModelError(f"{path}: pooling mode {unknown[0]} is not supported; known: {', '.join(MODES)}")
    return cast("tuple[PoolingMode, ...]", tuple(modes))
