"""Token bytes are exact: what tokens spell is the text, on toy and on real tokenizers."""

from __future__ import annotations

import base64
import json
from codecs import BOM_UTF8
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gcd import ConstraintError, Vocabulary, eos_ids_of
from tests.gcd.oracles import shared

tokenizers = pytest.importorskip("tokenizers")

TEXTS = [
    "",
    "Hello, world!",
    " leading and trailing  ",
    "tabs\tand\nnew\r\nlines\n\n\n",
    "Grüße aus Köln, naïve café",
    "日本語のテキスト、中文，한국어",
    "emoji 🙂👩‍👩‍👧‍👦🇩🇪 and ﷽",
    "control \x00\x01\x1f\x7f\x80\xa0\xad",
    '{"name": "f", "arguments": {"x": [1, -2.5e10, null]}}',
    "▁ is a character too",
    "don't we'll I'M 1234567 ١٢٣",
    "\u200b\ufeff\U0010ffff \u0120\u010a Ġ",
]


@pytest.fixture(scope="module")
def stories() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(shared("models/stories260K")))


def _byte_level(model: Any) -> Any:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def _byte_level_toy(*extra: str) -> Any:
    """A byte-level tokenizer of the 256 bytes and some further tokens."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = {token: index for index, token in enumerate([*alphabet, *extra])}
    return _byte_level(tokenizers.models.BPE(names, []))


# -- real tokenizers ------------------------------------------------------------------------


def test_gpt2_tokens_spell_the_text() -> None:
    names = json.loads(shared("data/vocabularies/gpt2/encoder.json").read_text())
    lines = shared("data/vocabularies/gpt2/vocab.bpe").read_text().splitlines()
    merges = [tuple(line.split(" ")) for line in lines[1:] if line]
    gpt2 = _byte_level(tokenizers.models.BPE(names, merges))
    gpt2.add_special_tokens(["<|endoftext|>"])
    vocabulary = Vocabulary.from_tokenizer(gpt2, eos_ids=50256, size=50304)
    for text in TEXTS:
        assert vocabulary.decode(gpt2.encode(text).ids) == text.encode()
    assert {bytes([b]) for b in range(256)} <= set(vocabulary.token_bytes)
    assert vocabulary.size == 50304
    assert vocabulary.eos_ids == (50256,)
    assert set(vocabulary.token_bytes[50256:]) == {b""}
    assert all(vocabulary.token_bytes[:50256])


def test_stories_tokenizer_is_read_to_the_letter(stories: Any) -> None:
    vocabulary = Vocabulary.from_tokenizer(stories)
    assert vocabulary.size == 512
    assert vocabulary.eos_ids == (2,)
    assert vocabulary.token_bytes[:3] == (b"", b"", b"")
    assert vocabulary.token_bytes[3:259] == tuple(bytes([b]) for b in range(256))
    for text in TEXTS:
        spelled = vocabulary.decode(stories.encode(text, add_special_tokens=False))
        # An empty text doesn't get a space before it. This tokenizer writes the mark of a space as
        # a space, so a text with that character can't be distinguished from one with spaces.
        assert spelled == ((" " + text).replace("▁", " ").encode() if text else b"")


def test_stories_ends_its_texts_with_ids_from_all_its_configs(stories: Any) -> None:
    transformers = pytest.importorskip("transformers")
    path = str(shared("models/stories260K"))
    generation = transformers.GenerationConfig.from_pretrained(path)
    config = transformers.AutoConfig.from_pretrained(path)
    assert eos_ids_of(generation, stories) == (1, 2)
    assert eos_ids_of(config, stories) == (2,)
    model = SimpleNamespace(config=config, generation_config=generation)
    assert eos_ids_of(model, stories) == eos_ids_of(model) == (1, 2)
    # The part of a config that is about text, and numpy's integers.
    for ids, found in (([3, 1], (1, 3)), (np.int64(1), (1,))):
        text = SimpleNamespace(eos_token_id=ids)
        config = SimpleNamespace(eos_token_id=None, text_config=text)
        assert eos_ids_of(SimpleNamespace(config=config)) == found


def test_qwen_ranks_are_read_to_the_letter() -> None:
    path = shared("data/vocabularies/qwen/qwen.tiktoken")
    vocabulary = Vocabulary.from_ranks(path, [151643, 151645], size=151936)
    assert vocabulary.size == 151936
    assert {bytes([b]) for b in range(256)} <= set(vocabulary.token_bytes)
    lines = path.read_bytes().splitlines()
    assert all(vocabulary.token_bytes[: len(lines)])
    assert not any(vocabulary.token_bytes[len(lines) :])
    for line in lines[::997]:
        encoded, rank = line.split()
        assert vocabulary.token_bytes[int(rank)] == base64.b64decode(encoded)
    assert vocabulary.trie.num_entries == len(lines)


# -- kinds of tokenizer ---------------------------------------------------------------------


def test_byte_level_is_found_inside_sequences_and_without_a_decoder() -> None:
    toy, parts = _byte_level_toy(), tokenizers.pre_tokenizers
    plain = Vocabulary.from_tokenizer(toy, eos_ids=[])
    toy.pre_tokenizer = parts.Whitespace()
    toy.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.ByteLevel()])
    assert Vocabulary.from_tokenizer(toy, eos_ids=[]) == plain
    bare = tokenizers.Tokenizer(toy.model)
    bare.pre_tokenizer = parts.Sequence([parts.Digits(), parts.ByteLevel()])
    assert Vocabulary.from_tokenizer(bare, eos_ids=[]) == plain


def test_special_tokens_have_no_bytes_and_added_ones_those_of_their_text() -> None:
    tokenizer = _byte_level_toy()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens(["<call>", "é Ġ"])
    vocabulary = Vocabulary.from_tokenizer(tokenizer, eos_ids=[256])
    assert vocabulary.token_bytes[256:] == (b"", b"<call>", "é Ġ".encode())
    ids = tokenizer.encode("a<call>é Ġb").ids
    assert 257 in ids
    assert 258 in ids
    assert vocabulary.decode(ids) == "a<call>é Ġb".encode()


def test_sentence_piece_by_metaspace_and_unigram() -> None:
    pieces = [("<unk>", 0.0), ("▁", -1.0), ("▁hi", -1.0), ("a", -2.0), ("<0x0A>", -3.0)]
    model = tokenizers.models.Unigram(pieces, unk_id=0, byte_fallback=False)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, eos_ids=[])
    # Without byte fallback among the decoder's steps, <0x0A> is six characters.
    assert vocabulary.token_bytes == (b"", b" ", b" hi", b"a", b"<0x0A>")
    tokenizer.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback()]
    )
    assert Vocabulary.from_tokenizer(tokenizer, eos_ids=[]).token_bytes[4] == b"\n"


def test_other_kinds_of_tokenizer_are_refused_by_name() -> None:
    word_piece = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "a": 1}))
    word_piece.decoder = tokenizers.decoders.WordPiece()
    with pytest.raises(ConstraintError, match="continuing_subword_prefix='##'"):
        Vocabulary.from_tokenizer(word_piece, eos_ids=[])
    word_level = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(ConstraintError, match=r"got None; build"):
        Vocabulary.from_tokenizer(word_level, eos_ids=[])
    word_level.decoder = tokenizers.decoders.CTC()
    with pytest.raises(ConstraintError, match=r"whose decoder is ByteLevel .* got CTC"):
        Vocabulary.from_tokenizer(word_level, eos_ids=[])
    with pytest.raises(ConstraintError, match="a fast tokenizer, got dict"):
        Vocabulary.from_tokenizer({})


# -- widths and EOS -------------------------------------------------------------------------


def test_eos_comes_from_the_tokenizer_unless_it_is_given() -> None:
    wrapped = SimpleNamespace(backend_tokenizer=_byte_level_toy("</s>"), eos_token_id=256)
    vocabulary = Vocabulary.from_tokenizer(wrapped)
    assert vocabulary.eos_ids == (256,)
    assert vocabulary.token_bytes[256] == b""
    other = Vocabulary.from_tokenizer(wrapped, eos_ids=[3, 1, 3])
    assert other.eos_ids == (1, 3)
    assert other.token_bytes[256] == b"</s>"
    assert Vocabulary.from_tokenizer(_byte_level_toy()).eos_ids == ()


def test_the_width_may_exceed_the_tokenizer_and_not_fall_short_of_it() -> None:
    toy = _byte_level_toy()
    wide = Vocabulary.from_tokenizer(toy, size=300, eos_ids=[299])
    assert wide.size == 300
    assert set(wide.token_bytes[256:]) == {b""}
    with pytest.raises(ConstraintError, match="at least 256, the number of ids in use, got 200"):
        Vocabulary.from_tokenizer(toy, size=200)
    with pytest.raises(ConstraintError, match=r"EOS ids in 0\.\.255, got \[256\]"):
        Vocabulary.from_tokenizer(toy, eos_ids=[256])


def test_equality_is_that_of_content() -> None:
    vocabulary = Vocabulary.from_bytes([b"a", b"bc", b"</s>"], [2])
    assert vocabulary.token_bytes == (b"a", b"bc", b""), "an EOS id has no bytes"
    assert vocabulary.decode([0, 1, 2]) == b"abc"
    assert vocabulary == Vocabulary.from_bytes([b"a", b"bc", b"x"], 2)
    assert hash(vocabulary) == hash(Vocabulary.from_bytes([b"a", b"bc"], [2], size=3))
    for other in (
        Vocabulary.from_bytes([b"ab", b"c", b""], [2]),
        Vocabulary.from_bytes([b"a", b"bc", b""], []),
        Vocabulary.from_bytes([b"a", b"bc", b"", b""], [2]),
    ):
        assert vocabulary != other
    assert vocabulary != "a"


# -- rank files -----------------------------------------------------------------------------


def test_rank_files_may_leave_ids_out(tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    path.write_bytes(base64.b64encode(b"\xff") + b" 2\n\n" + base64.b64encode(b"a b") + b" 0\n")
    vocabulary = Vocabulary.from_ranks(path, eos_ids=[4])
    assert vocabulary.token_bytes == (b"a b", b"", b"\xff", b"", b"")
    path.write_bytes(BOM_UTF8 + path.read_bytes())
    assert Vocabulary.from_ranks(path, eos_ids=[4]) == vocabulary


@pytest.mark.parametrize("line", ["YQ==", "YQ== one", "!!!! 1", "YQ== 0", "YQ== -1"])
def test_broken_rank_files_are_refused_with_the_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "ranks"
    path.write_text(f"Yg== 0\n{line}\n")
    with pytest.raises(ConstraintError, match="line 2"):
        Vocabulary.from_ranks(path, eos_ids=[])
