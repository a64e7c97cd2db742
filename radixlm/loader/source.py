"""Where a model lies: turns what the user named into a folder or a file on disk. Reads neither weights nor configs."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from radixlm.base.errors import ModelError
from radixlm.loader.demo import DEMO, demo_path

HUB_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
# Other formats of the same weights; small JSON files in folders tell how sentence-transformers pool.
HUB_IGNORED = ("onnx/*", "openvino/*", "original/*", "*/*.safetensors", "consolidated*")
HUB_TIMEOUT_S = 10
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class ModelSource:
    """A model on disk: `path` is a Hugging Face folder or a GGUF file; `name` is what the user called it."""

    name: str
    path: Path
    kind: Literal["folder", "gguf"]


def resolve(model: str, revision: str | None = None, download_dir: str | None = None) -> ModelSource:
    """Find `model`, fetching it if need be.

    `model` is "demo", a folder, a .gguf file, or a Hugging Face hub id, of which `revision` (branch, tag or commit) is
    kept under `download_dir`, or in the hub's own cache. Raises ModelError within seconds when there is no such model.
    """
    if model == DEMO:
        return ModelSource(model, demo_path(), "gguf")
    path = Path(model).expanduser()
    if not model:
        raise ModelError("the model path is empty, so it does not exist")
    if path.is_dir():
        return ModelSource(model, path, "folder")
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{model} is a file but not a .gguf file; give a folder, a .gguf file or a hub id")
        return ModelSource(model, path, "gguf")
    if path.suffix == ".gguf" or not _HUB_ID.fullmatch(model):
        raise ModelError(f"model path {model} does not exist")
    return ModelSource(model, _fetch_hub(model, revision, download_dir), "folder")


def _fetch_hub(repo: str, revision: str | None, download_dir: str | None) -> Path:
    """A local snapshot of a hub repository; without a network, of what the cache holds."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def snapshot(offline: bool) -> Path:
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                cache_dir=download_dir,
                allow_patterns=list(HUB_PATTERNS),
                ignore_patterns=list(HUB_IGNORED),
                etag_timeout=HUB_TIMEOUT_S,
                local_files_only=offline,
            )
        )

    try:
        if not constants.HF_HUB_OFFLINE:
            # One cheap question first: the snapshot's own retries take minutes without a network.
            HfApi().model_info(repo, revision=revision, timeout=HUB_TIMEOUT_S)
            return snapshot(offline=False)
        unreachable = "the hub is off (HF_HUB_OFFLINE)"
    except GatedRepoError:
        raise ModelError(f"{repo} needs its licence accepted on the hub, and a token in HF_TOKEN") from None
    except RevisionNotFoundError:
        raise ModelError(f"{repo} has no revision {revision!r}") from None
    except RepositoryNotFoundError:
        raise ModelError(f"{repo} is neither a folder here nor a model on the hub that this token may read") from None
    except HFValidationError as error:
        raise ModelError(f"{repo} is neither a folder here nor a hub id: {_first_line(error)}") from None
    except Exception as error:  # of the hub, of the operating system, or of the client's transport library
        unreachable = f"the hub cannot be reached ({_first_line(error)})"
    try:
        return snapshot(offline=True)
    except (LocalEntryNotFoundError, OSError):
        raise ModelError(f"{repo} is not a folder here nor in the download cache, and {unreachable}") from None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
