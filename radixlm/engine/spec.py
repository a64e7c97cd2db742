"""What a child process is told at its start: one line of JSON. Free of torch, because the front process writes it."""

from pathlib import Path
from typing import Literal

import msgspec

from radixlm.config.card import ModelCard
from radixlm.config.groups import Config
from radixlm.loader.source import ModelSource
from radixlm.protocol.wire import Addresses


class ChildSpec(msgspec.Struct, frozen=True):
    """`config` is Config.to_json(), `directory` that of the sockets; `name`, `path`, `kind` are the model's source."""

    config: str
    name: str
    path: str
    kind: Literal["folder", "gguf"]
    card: ModelCard
    directory: str
    detokenizer_apart: bool

    @staticmethod
    def make(
        config: Config, source: ModelSource, card: ModelCard, addresses: Addresses, detokenizer_apart: bool
    ) -> "ChildSpec":
        return ChildSpec(
            config.to_json(), source.name, str(source.path), source.kind, card, addresses.directory, detokenizer_apart
        )

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def decode(line: bytes) -> "ChildSpec":
        return msgspec.json.decode(line, type=ChildSpec)

    @property
    def settings(self) -> Config:
        return Config.from_json(self.config)

    @property
    def source(self) -> ModelSource:
        return ModelSource(self.name, Path(self.path), self.kind)

    @property
    def addresses(self) -> Addresses:
        return Addresses(self.directory)
