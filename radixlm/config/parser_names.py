"""The names that --reasoning-parser and --tool-call-parser take: `auto`, and those of radixlm.parsers' tables."""

REASONING_PARSERS = (
    "auto", "deepseek-r1", "deepseek-v3", "dots", "glm45", "gpt-oss", "kimi", "kimi_k2", "mimo", "poolside_v1",
    "qwen3", "qwen3-thinking", "minimax", "minimax-append-think", "nanbeige", "step3", "step3p5", "mistral",
    "nemotron_3", "granite_thinking_parser", "interns1", "gemma4", "iquest_q1", "cohere_command4", "gigachat35",
)  # fmt: skip

TOOL_CALL_PARSERS = (
    "auto", "apertus2509", "cohere_command4", "deepseekv3", "deepseekv31", "deepseekv32", "deepseekv4", "glm",
    "glm45", "glm47", "gpt-oss", "kimi_k2", "lfm2", "ling3", "llama3", "mimo", "mistral", "pythonic", "qwen",
    "qwen25", "qwen3_coder", "step3", "step3p5", "minimax-m2", "nanbeige", "trinity", "interns1", "hermes",
    "hunyuan", "gigachat3", "gigachat35", "gemma4",
)  # fmt: skip
