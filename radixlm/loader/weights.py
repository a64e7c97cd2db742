"""From a model on disk to a model ready to run. Chooses the format and the architecture; knows neither's inside."""

import time
from dataclasses import dataclass

import torch

from radixlm.base import log
from radixlm.base.errors import CapacityError, ModelError
from radixlm.base.progress import watched
from radixlm.config.card import ModelCard
from radixlm.loader.dummy import fill_dummy
from radixlm.loader.gguf import gguf_weights
from radixlm.loader.gguf_header import read_header
from radixlm.loader.safetensors import safetensors_weights
from radixlm.loader.source import ModelSource
from radixlm.models.base import Model
from radixlm.models.table import ARCHITECTURES

logger = log.get(__name__)
FORMATS = ("auto", "safetensors", "gguf", "dummy")


@dataclass(frozen=True)
class LoadedModel:
    """A model with its weights in place; `weights_bytes` counts tied weights once, `seconds` is what loading took."""

    model: Model
    weights_bytes: int
    seconds: float


def load_model(
    source: ModelSource,
    card: ModelCard,
    dtype: torch.dtype,
    device: torch.device,
    load_format: str = "auto",
    seed: int = 0,
    invariant: bool = False,
) -> LoadedModel:
    """Make the card's model in `dtype` on `device` and fill it; peak memory is the model and one tensor.

    `seed` is that of dummy weights. `invariant`: a row's result depends on no other one, to the bit; decoders only.
    `load_format`: one of FORMATS; "auto" goes by what `source` is. ModelError for weights that are absent, damaged or
    not the card's; CapacityError when the device has no room for them.
    """
    began = time.monotonic()
    chosen = _format(source, load_format)
    try:
        with torch.no_grad():
            make = ARCHITECTURES.load(card.architecture)
            model = make(card, dtype, device, invariant) if card.encoder is None else make(card, dtype, device)
            weights_bytes = sum(parameter.data.nbytes for parameter in model.parameters())
            if chosen == "dummy":
                fill_dummy(model.parameters(), seed)
            else:
                found = (
                    gguf_weights(read_header(source.path), card, dtype)
                    if chosen == "gguf"
                    else safetensors_weights(source.path)
                )
                numbers = sum(parameter.data.numel() for parameter in model.parameters())
                model.load(watched(found, "loading weights", numbers, logger, lambda weight: weight[1].numel()))
            model.pack()
    except torch.OutOfMemoryError as error:
        raise CapacityError(f"no room for the weights on {device}: {str(error).splitlines()[0]}") from None
    return LoadedModel(model, weights_bytes, time.monotonic() - began)


def _format(source: ModelSource, load_format: str) -> str:
    if load_format not in FORMATS:
        raise ModelError(f"unknown load format {load_format!r}; known: {', '.join(FORMATS)}")
    natural = "gguf" if source.kind == "gguf" else "safetensors"
    if load_format in ("auto", natural):
        return natural
    if load_format == "dummy":
        return load_format
    raise ModelError(f"{source.name} cannot be loaded as {load_format}: its weights are {natural}")
