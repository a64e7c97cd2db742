"""Tokenizers out of folders and GGUF files: special tokens, affixes, templates, bytes, and refusals in one line."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, pre_tokenizers, processors
from tokenizers.models import BPE, WordLevel

from radixlm.base.errors import ModelError
from radixlm.loader.source import ModelSource, resolve
from radixlm.loader.token_bytes import piece_rule
from radixlm.loader.tokenizer import Tokenizer, load_tokenizer
from tests.helpers.vocabularies import SAMPLE, byte_level, sentencepiece

TEXTS = [
    *SAMPLE,
    "", " ", "  two  spaces ", "\n\n\t x\r\n", "12345 1,000.5 ½ \n 1é", "don't I'LL we've", "e\u0301 cafe\u0301",
    "<s>x</s><|user|> y <tool>z", "\x00\x01", "👨‍👩‍👧‍👦🇨🇿", "ﷺ ﬁ 中文字符，测试。", "a\u00a0b\u3000c",
]  # fmt: skip


def source(path: Path) -> ModelSource:
    return ModelSource("m", path, "gguf" if path.suffix == ".gguf" else "folder")


def parts(tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokenizer.json of one of the small tokenizers."""
    loaded: dict[str, Any] = json.loads(tokenizer._backend.to_str())
    return loaded


def folder(path: Path, tokenizer: dict[str, Any], config: dict[str, Any] | None = None) -> Path:
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def plain_byte_level() -> dict[str, Any]:
    """Byte-level BPE whose file adds nothing and marks nothing special."""
    loaded = parts(byte_level())
    loaded["post_processor"] = None
    return loaded


def test_a_folder_gives_back_the_same_tokenizer(tmp_path: Path) -> None:
    for original in (byte_level(), sentencepiece()):
        config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None, "chat_template": "t"}
        loaded = load_tokenizer(source(folder(tmp_path, parts(original), config)))
        for text in TEXTS:
            for special in (True, False):
                assert loaded.encode(text, special) == original.encode(text, special)
            assert loaded.decode(loaded.encode(text)) == original.decode(original.encode(text))
        assert loaded.encode_batch(TEXTS) == [original.encode(text) for text in TEXTS]
        assert loaded.token_bytes() == original.token_bytes()
        assert (loaded.bos_token_id, loaded.eos_token_ids) == (original.bos_token_id, original.eos_token_ids)
        assert loaded.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"} and loaded.chat_template == "t"


@pytest.mark.parametrize("tokenizer", [byte_level(), sentencepiece()], ids=["byte_level", "sentencepiece"])
def test_joined_token_bytes_are_the_text(tokenizer: Tokenizer) -> None:
    pieces = tokenizer.token_bytes(tokenizer.vocab_size + 5)
    assert len(pieces) == tokenizer.vocab_size + 5 and pieces[-5:] == [b""] * 5
    for text in TEXTS:
        ids = tokenizer.encode("x" + text)
        joined = b"".join(pieces[id_] for id_ in ids).decode()
        assert joined.removeprefix("<s>").removeprefix(" ") == tokenizer.decode(ids, False).removeprefix("<s>").lstrip(
            " "
        )
        visible = b"".join(pieces[id_] for id_ in ids if not tokenizer.is_special(id_)).decode()
        assert visible.removeprefix(" ") == tokenizer.decode(ids).removeprefix(" ")
    user = tokenizer.encode("<|user|>", False)[-1]
    assert pieces[user] == b"<|user|>" and tokenizer.is_special(user)
    tool = tokenizer.encode("<tool>", False)[-1]
    assert pieces[tool] == b"<tool>" and not tokenizer.is_special(tool)


@pytest.mark.parametrize(
    ("adds", "config", "expected"),
    [
        (False, {}, "hi"),
        (False, {"add_bos_token": True}, "<s>hi"),
        (False, {"add_bos_token": True, "add_eos_token": True}, "<s>hi</s>"),
        (False, {"add_eos_token": True}, "hi</s>"),
        (True, {}, "<s>hi"),
        (True, {"add_bos_token": False}, "hi"),
        (True, {"add_bos_token": True}, "<s>hi"),
        (True, {"add_bos_token": True, "bos_token": None}, "<s>hi"),
    ],
)
def test_affixes_are_as_the_files_say(tmp_path: Path, adds: bool, config: dict[str, Any], expected: str) -> None:
    tokenizer = parts(byte_level()) if adds else plain_byte_level()
    config = {"bos_token": "<s>", "eos_token": "</s>", **config}
    loaded = load_tokenizer(source(folder(tmp_path, tokenizer, config)))
    assert loaded.decode(loaded.encode("hi"), skip_special_tokens=False) == expected
    assert loaded.decode(loaded.encode("hi", False), skip_special_tokens=False) == "hi"


def test_tokens_that_only_the_configuration_knows_are_added(tmp_path: Path) -> None:
    tokenizer = parts(byte_level())
    next_id = byte_level().vocab_size
    config = {
        "added_tokens_decoder": {
            str(next_id): {"content": "<extra>", "special": True},
            str(next_id + 1): {"content": "<plain>", "special": False},
        },
        "eos_token": "<plain>",
        "bos_token": "<unheard of>",
        "extra_special_tokens": {"image_token": "<tool>"},
    }
    loaded = load_tokenizer(source(folder(tmp_path, tokenizer, config)))
    assert loaded.encode("<extra><plain>", False) == [next_id, next_id + 1]
    assert loaded.special_ids >= {next_id, next_id + 1, loaded.encode("<tool>", False)[0]}
    assert (loaded.bos_token_id, loaded.eos_token_ids) == (None, (next_id + 1,))
    config["added_tokens_decoder"] = {"9999": {"content": "<far>", "special": True}}
    with pytest.raises(ModelError, match="9999"):
        load_tokenizer(source(folder(tmp_path, tokenizer, config)))


def test_older_folders_name_special_tokens_elsewhere(tmp_path: Path) -> None:
    folder(tmp_path, parts(byte_level()))
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "</s>"}')
    assert load_tokenizer(source(tmp_path)).eos_token_ids == byte_level().eos_token_ids


def test_templates_are_found_in_every_place(tmp_path: Path) -> None:
    listed = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    path = source(folder(tmp_path, parts(byte_level()), {"chat_template": listed}))
    assert load_tokenizer(path).chat_templates == {"default": "a", "tool_use": "b"}
    (tmp_path / "chat_template.jinja").write_text("c")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("d")
    assert load_tokenizer(path).chat_templates == {"default": "c", "tool_use": "b", "rag": "d"}


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(byte_level()._backend.to_str())
    backend.enable_truncation(3)
    backend.enable_padding(length=64)
    loaded = load_tokenizer(source(folder(tmp_path, json.loads(backend.to_str()))))
    assert loaded.encode("hello world, hello") == byte_level().encode("hello world, hello")


def test_the_tokenizer_may_lie_elsewhere(tmp_path: Path) -> None:
    folder(tmp_path, parts(byte_level()))
    (tmp_path / "empty").mkdir()
    for where in (tmp_path, tmp_path / "tokenizer.json"):
        assert load_tokenizer(source(tmp_path / "empty"), str(where)).vocab_size == byte_level().vocab_size


def test_what_cannot_be_served_is_refused_in_one_line(tmp_path: Path) -> None:
    words = tokenizers.Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    cases: list[tuple[str, str]] = []
    with pytest.raises(ModelError) as caught:
        load_tokenizer(source(tmp_path))
    cases.append((str(caught.value), "has no tokenizer.json"))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError) as caught:
        load_tokenizer(source(tmp_path))
    cases.append((str(caught.value), "cannot read"))
    folder(tmp_path, json.loads(words.to_str()))
    with pytest.raises(ModelError) as caught:
        load_tokenizer(source(tmp_path))
    cases.append((str(caught.value), "decoder (none) is not supported"))
    folder(tmp_path, parts(byte_level()))
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ModelError) as caught:
        load_tokenizer(source(tmp_path))
    cases.append((str(caught.value), "no JSON object"))
    with pytest.raises(ModelError) as caught:
        load_tokenizer(source(tmp_path), str(tmp_path / "nowhere"))
    cases.append((str(caught.value), "there is no tokenizer at"))
    for message, expected in cases:
        assert expected in message and "\n" not in message


def test_other_decoders() -> None:
    metaspace = decoders.Metaspace(prepend_scheme="always").__getstate__()
    assert piece_rule(json.loads(metaspace))("\u2581a\u2581b") == b" a b"
    with pytest.raises(ModelError, match="regular expression"):
        piece_rule({"type": "Replace", "pattern": {"Regex": "x"}, "content": ""})
    pieces = map(piece_rule(json.loads(decoders.WordPiece().__getstate__())), ("em", "##bed", "it"))
    assert b"".join(pieces) == b" embed it"
    with pytest.raises(ModelError, match="CTC"):
        piece_rule(json.loads(decoders.CTC().__getstate__()))


# ---- GGUF

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def write_gguf(path: Path, tokenizer: Tokenizer, model: str, pre: str | None = None, **keys: Any) -> Path:
    """A GGUF file that carries `tokenizer`, in llama.cpp's conventions, and no tensors."""
    file = parts(tokenizer)
    added = {token["id"]: token for token in file["added_tokens"]}
    vocabulary = {**file["model"]["vocab"], **{token["content"]: id_ for id_, token in added.items()}}
    names = sorted(vocabulary, key=vocabulary.__getitem__)
    types = [
        (CONTROL if added[id_]["special"] else USER_DEFINED) if id_ in added else UNKNOWN if name == "<unk>" else NORMAL
        for id_, name in enumerate(names)
    ]
    names += [f"[PAD{len(names) + extra}]" for extra in range(3)]
    types += [UNUSED] * 3
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(names)
    writer.add_token_types(types)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in file["model"]["merges"]]
    if model == "gpt2":
        writer.add_token_merges(merges)
    else:
        ranks: dict[str, float] = {}
        for rank, pair in enumerate(merges):
            ranks.setdefault(pair.replace(" ", ""), -float(rank))
        writer.add_token_scores([ranks.get(name, 0.0) for name in names])
    writer.add_bos_token_id(vocabulary["<s>"])
    writer.add_eos_token_id(vocabulary["</s>"])
    writer.add_eot_token_id(vocabulary["<|user|>"])
    for key, value in keys.items():
        {bool: writer.add_bool, str: writer.add_string}[type(value)](f"tokenizer.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def with_splits(scheme: str) -> Tokenizer:
    """The small byte-level tokenizer with the pre-tokenizer that Hugging Face's files of that family have."""
    file = parts(byte_level())
    byte = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    if scheme == "smollm":
        file["pre_tokenizer"] = {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte],
        }
    return Tokenizer(_parts_of(file))


def _parts_of(file: dict[str, Any]) -> Any:
    from radixlm.loader.tokenizer_parts import TokenizerParts

    backend = tokenizers.Tokenizer.from_str(json.dumps(file))
    return TokenizerParts(backend, {"bos_token": "<s>", "eos_token": "</s>"}, {})


@pytest.mark.parametrize("scheme", ["smollm", "gpt-2", None])
def test_gguf_byte_level(tmp_path: Path, scheme: str | None) -> None:
    original = with_splits(scheme or "gpt-2")
    keys = {"chat_template": "t", "chat_template.tool_use": "u", "ggml.add_bos_token": True}
    path = write_gguf(tmp_path / "m.gguf", original, "gpt2", scheme, **keys)
    loaded = load_tokenizer(source(path))
    for text in TEXTS:
        for special in (True, False):
            assert loaded.encode(text, special) == original.encode(text, special)
        for skip in (True, False):
            assert loaded.decode(loaded.encode(text), skip) == original.decode(original.encode(text), skip)
    assert loaded.token_bytes() == original.token_bytes()  # what only pads the vocabulary is no token
    assert loaded.special_ids == original.special_ids
    user = original.encode("<|user|>", False)[-1]
    assert (loaded.bos_token_id, loaded.eos_token_ids) == (original.bos_token_id, (*original.eos_token_ids, user))
    assert loaded.chat_templates == {"default": "t", "tool_use": "u"}


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("smollm", "a 12 b's", ["a", " ", "1", "2", " b", "'s"]),
        ("gpt-2", "a 123 b'S", ["a", " 123", " b", "'", "S"]),
        ("llama-bpe", "a 12345\n\nb'S", ["a", " ", "123", "45", "\n\n", "b", "'S"]),
        ("qwen2", "a 12\n\n b'S", ["a", " ", "1", "2", "\n\n", " b", "'S"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
    ],
)
def test_gguf_schemes_split_as_their_families_do(tmp_path: Path, pre: str, text: str, words: list[str]) -> None:
    """Words are what merges cannot cross; a vocabulary whose merges make every substring shows them."""
    spelled = [word.replace(" ", "Ġ").replace("\n", "Ċ") for word in words]
    whole = text.replace(" ", "Ġ").replace("\n", "Ċ")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = sorted({whole[a:b] for a in range(len(whole)) for b in range(a + 2, len(whole) + 1)}, key=len)
    merges = [(piece[:cut], piece[cut:]) for piece in pieces for cut in range(1, len(piece))]
    names = [*alphabet, *pieces, "<s>", "</s>", "<|user|>"]
    backend = tokenizers.Tokenizer(BPE({name: id_ for id_, name in enumerate(names)}, merges))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True) for name in names[-3:]])
    path = write_gguf(tmp_path / "m.gguf", Tokenizer(_parts_of(json.loads(backend.to_str()))), "gpt2", pre)
    ids = load_tokenizer(source(path)).encode(text, add_special_tokens=False)
    assert [names[id_] for id_ in ids] == spelled


@pytest.mark.parametrize(("pre", "count"), [("llama-bpe", 1), ("tekken", 1), ("qwen2", 2), ("smollm", 2)])
def test_gguf_schemes_that_look_whole_words_up(tmp_path: Path, pre: str, count: int) -> None:
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "<s>", "</s>", "<|user|>"]
    backend = tokenizers.Tokenizer(BPE({name: id_ for id_, name in enumerate(names)}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True) for name in names[-3:]])
    path = write_gguf(tmp_path / "m.gguf", Tokenizer(_parts_of(json.loads(backend.to_str()))), "gpt2", pre)
    loaded = load_tokenizer(source(path))
    assert len(loaded.encode("ab", add_special_tokens=False)) == count
    assert (loaded.encode("ab")[0] == loaded.bos_token_id) is (count == 1)  # these also add BOS unless told not to


def test_gguf_sentencepiece(tmp_path: Path) -> None:
    original = sentencepiece()
    loaded = load_tokenizer(source(write_gguf(tmp_path / "m.gguf", original, "llama")))
    for text in TEXTS:
        for special in (True, False):
            assert loaded.encode(text, special) == original.encode(text, special)
        assert loaded.decode(loaded.encode(text)) == original.decode(original.encode(text))
    assert loaded.token_bytes() == original.token_bytes()
    bare = load_tokenizer(
        source(write_gguf(tmp_path / "n.gguf", original, "llama", **{"ggml.add_space_prefix": False}))
    )
    assert bare.decode(bare.encode(" the dog")) == " the dog"
    assert bare.encode("the", False) != original.encode("the", False)


def test_gguf_refusals(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="pre-tokenizer 'strange' is not supported"):
        load_tokenizer(source(write_gguf(tmp_path / "a.gguf", byte_level(), "gpt2", "strange")))
    with pytest.raises(ModelError, match="model 't5' is not supported"):
        load_tokenizer(source(write_gguf(tmp_path / "b.gguf", byte_level(), "t5")))


@pytest.mark.slow
def test_the_demo_models_tokenizer_equals_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    path = resolve("demo").path
    loaded = load_tokenizer(source(path))
    reference = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    # transformers' GGUF reader forgets that this family splits digits; the model's own tokenizer.json has it.
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    chat = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    for text in [*TEXTS, chat, "x" * 500]:
        ids = reference(text)["input_ids"]
        assert loaded.encode(text) == ids
        for skip in (True, False):
            assert loaded.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)
        pieces = loaded.token_bytes()
        assert b"".join(pieces[id_] for id_ in ids).decode() == reference.decode(ids)
    assert (loaded.bos_token_id, loaded.eos_token_ids) == (reference.bos_token_id, (reference.eos_token_id,))
    assert loaded.chat_template == reference.chat_template


def test_a_template_post_processor_of_the_file_is_kept(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(json.dumps(plain_byte_level()))
    user = backend.token_to_id("<|user|>")
    backend.post_processor = processors.TemplateProcessing(single="<|user|> $A", special_tokens=[("<|user|>", user)])
    loaded = load_tokenizer(source(folder(tmp_path, json.loads(backend.to_str()), {"bos_token": "<s>"})))
    assert loaded.encode("hi")[0] == user
