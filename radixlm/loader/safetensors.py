"""Weights out of a folder's safetensors files, one tensor at a time from mapped memory. Knows no model class."""

import json
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from radixlm.base.errors import ModelError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def safetensors_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the folder's model, on the CPU, in the checkpoint's dtype. ModelError for a damaged file."""
    for path in _files(folder):
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for name in file.keys():  # noqa: SIM118 - the file is not a mapping
                    yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is truncated or damaged: {error}") from None


def _files(folder: Path) -> list[Path]:
    """The files that make up the model: those of the index, or the single one, or whatever there is."""
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ModelError(f"{index} is not a valid index of weights") from None
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ModelError(f"{folder} lacks {len(missing)} of {len(names)} weight files, such as {missing[0]}")
        return [folder / name for name in names]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    files = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("consolidated"))
    if not files:
        raise ModelError(f"{folder} holds no safetensors weights")
    return files
