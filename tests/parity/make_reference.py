"""Makes tests/parity/data/demo.json: greedy fp32 continuations of the demo model by Hugging Face transformers.

Run it by hand when prompts change: `python -m tests.parity.make_reference`.
"""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from radixlm.loader.demo import demo_path

NEW_TOKENS = 64
OUT = Path(__file__).parent / "data" / "demo.json"

STORY = (
    "The lighthouse keeper wrote in the log every night: the wind, the ships that passed, the height of the waves. "
    "On the third of March the lamp went out twice and a boat from the village brought oil and bread. "
)

PLAIN = {
    "capital": "The capital of France is",
    "one-token": "Hello",
    "list": "Here are ten fruits in alphabetical order:\n1. Apple\n2. Banana\n3.",
    "code": "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n",
    "json": '{"name": "Ada", "born": 1815, "fields": ["mathematics",',
    "numbers": "2 4 8 16 32 64 128",
    "german": "Die Donau fließt durch Wien und",
    "spanish": "El perro y el gato son amigos porque",
    "emoji": "I love pizza 🍕 and 🎉 parties because",
    "korean": "안녕하세요, 저는",
    "whitespace": "  \n\n\tIndented text\n\n    continues",
    "repetition": "again and again and again and again and",
    "science": "Photosynthesis is the process by which plants",
    "dialogue": '"Where were you last night?" asked the detective.\n\n"I was',
    "long-600": STORY * 12 + "In the end the keeper",
    "long-1100": STORY * 22 + "The last entry in the log says",
}

CHAT = {
    "chat-greeting": "Hi! Who are you?",
    "chat-question": "Why is the sky blue? Answer in one sentence.",
    "chat-math": "What is 12 times 7?",
    "chat-poem": "Write a two-line poem about the sea.",
}


def main() -> None:
    path = demo_path()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    rows = []
    for name, text in {**PLAIN, **CHAT}.items():
        if name in CHAT:
            message = [{"role": "user", "content": text}]
            text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        rows.append({"name": name, "prompt_ids": prompt, **greedy(model, prompt)})
        print(name, len(prompt), repr(tokenizer.decode(rows[-1]["output_ids"]))[:70])
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


@torch.inference_mode()
def greedy(model: torch.nn.Module, prompt: list[int]) -> dict[str, list]:
    """NEW_TOKENS argmax tokens (end-of-sequence does not stop it) and the reference's margin at each."""
    ids, cache, output, margins = torch.tensor([prompt]), None, [], []
    for _ in range(NEW_TOKENS):
        result = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = result.past_key_values
        top = result.logits[0, -1].float().topk(2)
        output.append(int(top.indices[0]))
        margins.append(round(float(top.values[0] - top.values[1]), 6))
        ids = top.indices[:1].view(1, 1)
    return {"output_ids": output, "margins": margins}


if __name__ == "__main__":
    main()
