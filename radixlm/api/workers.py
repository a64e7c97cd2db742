"""How many processes turn text into tokens and back, by the flags and the number of cores. Starts none."""

from dataclasses import dataclass

from radixlm.config.groups import ServerConfig

FEW_CORES = 4  # up to this many the server's own process does it all: a busy neighbour slows the model's threads
CORES_PER_TOKENIZER = 4
MOST_TOKENIZERS = 8


@dataclass(frozen=True)
class Workers:
    """`tokenizers` processes, 0: the server's own tokenizes. `detokenizer_apart`: another process makes the text."""

    tokenizers: int
    detokenizer_apart: bool

    @staticmethod
    def of(asked: ServerConfig, cores: int) -> "Workers":
        tokenizers, detokenizers = asked.tokenizer_worker_num, asked.detokenizer_worker_num
        if tokenizers is None:
            tokenizers = 0 if cores <= FEW_CORES else min(max(cores // CORES_PER_TOKENIZER, 1), MOST_TOKENIZERS)
        return Workers(tokenizers, cores > FEW_CORES if detokenizers is None else detokenizers > 0)
