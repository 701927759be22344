from pathlib import Path

import pytest

from mxstats.activations import TextError, read_text, tokenize


class Words:
    """A tokenizer whose ids are word lengths, with the habits of the ones that add a BOS."""

    def __init__(self, bos: int | None = 1, added: int = 0):
        self.bos_token_id = bos
        self.added = added

    def __call__(self, text, add_special_tokens, verbose):
        return {"input_ids": [self.bos_token_id] * self.added + [len(w) for w in text.split()]}


def test_bundled_text_is_the_license_verbatim():
    debian = Path("/usr/share/common-licenses/GPL-3")
    text = read_text()
    assert text == read_text("gpl-3")
    assert len(text.encode()) == 35149
    assert text.lstrip().startswith("GNU GENERAL PUBLIC LICENSE")
    if debian.exists():
        assert text == debian.read_text()


def test_a_file_and_a_folder(tmp_path):
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.md").write_text("first é", encoding="utf-8")
    (tmp_path / ".hidden").write_bytes(b"\xff")
    assert read_text(tmp_path / "b.txt") == "second"
    assert read_text(str(tmp_path)) == "first é\nsecond"


def test_texts_that_cannot_be_read_name_the_file(tmp_path):
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "nothing").mkdir()
    for source, message in {
        "latin.txt": r"latin\.txt is not UTF-8 text \(byte 0\)",
        "empty.txt": r"empty\.txt is empty",
        "nothing": r"nothing has no files to read",
        "gone.txt": r"cannot read .*gone\.txt: No such file",
    }.items():
        with pytest.raises(TextError, match=message):
            read_text(tmp_path / source)
    with pytest.raises(TextError, match=r"latin\.txt is not UTF-8|empty\.txt is empty"):
        read_text(tmp_path)


@pytest.mark.parametrize("added", [0, 1, 2])
def test_bos_comes_first_and_once(added):
    assert tokenize(Words(added=added), "aa bbb cccc") == [1, 2, 3, 4]
    assert tokenize(Words(added=added), "aa bbb cccc", 2) == [1, 2]


def test_a_tokenizer_without_bos_and_a_bad_length():
    with pytest.raises(TextError, match="Words has no BOS token"):
        tokenize(Words(bos=None), "a")
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got 0"):
        tokenize(Words(), "a", 0)


@pytest.mark.model
def test_smollm2_begins_with_its_bos(smollm2):
    _, tokenizer = smollm2
    ids = tokenize(tokenizer, read_text(), 64)
    assert len(ids) == 64
    assert ids[0] == tokenizer.convert_tokens_to_ids("<|im_start|>") == 1
    assert 1 not in ids[1:]
    assert read_text().startswith(tokenizer.decode(ids[1:]))
