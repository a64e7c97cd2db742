"""The reasoning formats by the names of --reasoning-parser. `rank` orders what `auto` tries."""

from radixlm.base.registry import Registry, Row
from radixlm.parsers.reasoning.base import ReasoningFormat

_THINK = "radixlm.parsers.reasoning.think:"

REASONING: Registry[ReasoningFormat] = Registry(
    "reasoning parser",
    [
        Row("deepseek-r1", f"{_THINK}DEEPSEEK_R1", 20),
        Row("deepseek-v3", f"{_THINK}DEEPSEEK_V3", 30),
        Row("dots", f"{_THINK}QWEN3"),
        Row("glm45", f"{_THINK}GLM45", 30),
        Row("gpt-oss", "radixlm.parsers.reasoning.harmony:FORMAT", 50),
        Row("kimi", f"{_THINK}KIMI", 40),
        Row("kimi_k2", f"{_THINK}KIMI_K2", 30),
        Row("mimo", f"{_THINK}THINK"),
        Row("poolside_v1", f"{_THINK}THINK"),
        Row("qwen3", f"{_THINK}QWEN3", 20),
        Row("qwen3-thinking", f"{_THINK}QWEN3_THINKING", 10),
        Row("minimax", f"{_THINK}ALWAYS_THINK"),
        Row("minimax-append-think", "radixlm.parsers.reasoning.append:FORMAT"),
        Row("nanbeige", f"{_THINK}QWEN3"),
        Row("step3", f"{_THINK}ALWAYS_THINK"),
        Row("step3p5", f"{_THINK}ALWAYS_THINK"),
        Row("mistral", f"{_THINK}MISTRAL", 40),
        Row("nemotron_3", f"{_THINK}THINK"),
        Row("granite_thinking_parser", f"{_THINK}GRANITE"),
        Row("interns1", f"{_THINK}QWEN3"),
        Row("gemma4", f"{_THINK}GEMMA4", 40),
        Row("iquest_q1", f"{_THINK}THINK"),
        Row("cohere_command4", f"{_THINK}COHERE", 40),
        Row("gigachat35", f"{_THINK}ALWAYS_THINK"),
    ],
)
