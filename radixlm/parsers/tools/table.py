"""The tool-call formats by the names of --tool-call-parser. `rank` orders what `auto` tries."""

from radixlm.base.registry import Registry, Row
from radixlm.parsers.tools.base import ToolFormat

_HERE = "radixlm.parsers.tools."

TOOL_CALLS: Registry[ToolFormat] = Registry(
    "tool-call parser",
    [
        Row("apertus2509", f"{_HERE}json_calls:Apertus", 40),
        Row("cohere_command4", f"{_HERE}json_calls:Cohere", 40),
        Row("deepseekv3", f"{_HERE}named:DeepSeek", 40),
        Row("deepseekv31", f"{_HERE}named:DeepSeekV31", 39),
        Row("deepseekv32", f"{_HERE}fields:DeepSeekV32", 50),
        Row("deepseekv4", f"{_HERE}fields:DeepSeekV4", 50),
        Row("glm", f"{_HERE}fields:Glm", 30),
        Row("glm45", f"{_HERE}fields:Glm"),
        Row("glm47", f"{_HERE}fields:Glm"),
        Row("gpt-oss", f"{_HERE}named:Harmony", 50),
        Row("kimi_k2", f"{_HERE}named:KimiK2", 40),
        Row("lfm2", f"{_HERE}pythonic:Lfm2", 40),
        Row("ling3", f"{_HERE}fields:Glm"),
        Row("llama3", f"{_HERE}json_calls:Llama3", 10),
        Row("mimo", f"{_HERE}fields:Qwen3Coder"),
        Row("mistral", f"{_HERE}json_calls:Mistral", 40),
        Row("pythonic", f"{_HERE}pythonic:Pythonic", 40),
        Row("qwen", f"{_HERE}json_calls:Qwen", 20),
        Row("qwen25", f"{_HERE}json_calls:Qwen"),
        Row("qwen3_coder", f"{_HERE}fields:Qwen3Coder", 30),
        Row("step3", f"{_HERE}fields:Step3", 50),
        Row("step3p5", f"{_HERE}fields:Qwen3Coder"),
        Row("minimax-m2", f"{_HERE}fields:MiniMaxM2", 40),
        Row("nanbeige", f"{_HERE}fields:Qwen3Coder"),
        Row("trinity", f"{_HERE}json_calls:Qwen"),
        Row("interns1", f"{_HERE}json_calls:InternS1", 40),
        Row("hermes", f"{_HERE}json_calls:Hermes", 19),
        Row("hunyuan", f"{_HERE}fields:Hunyuan", 40),
        Row("gigachat3", f"{_HERE}json_calls:GigaChat3", 40),
        Row("gigachat35", f"{_HERE}fields:GigaChat35", 50),
        Row("gemma4", f"{_HERE}gemma:Gemma4", 40),
    ],
)
