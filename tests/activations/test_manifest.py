"""Manifests from elsewhere: damaged, foreign, or made to do harm."""

import json
from hashlib import sha256

import pytest

from mxstats.activations import ActivationStore
from mxstats.errors import StoreError

NORM = "model.norm"


def edit(store, change):
    path = store.path / "manifest.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("format"), "is not the manifest of an activation store"),
        (lambda m: m.update(format_version=3), "version 3, written by a newer mxstats"),
        (lambda m: m.update(format_version="1"), "format_version '1', which is no version"),
        (lambda m: m.pop("layers"), "lacks layers"),
        (lambda m: m["layers"][0].pop("role"), r"lacks layers\.role"),
        (lambda m: m["layers"][0].update(role="x"), r"layers\.role is 'x'"),
        (lambda m: m["layers"][0].update(rows=-1), r"layers\.rows is -1"),
        (lambda m: m["shards"][0].update(file="../x"), r"shards\.file is '\.\./x'"),
        (lambda m: m["shards"][0].update(file="/etc/x"), r"shards\.file is '/etc/x'"),
        (lambda m: m["shards"][1].update(first_row=5), r"shards\.first_row is 5"),
        (lambda m: m["shards"].pop(), r"the shards hold 16 of 20 rows"),
        (lambda m: m.update(rows=21), r"rows is 21"),
        (lambda m: m.update(dtype="float16"), r"dtype is 'float16'"),
        (lambda m: m.update(shards={}), r"shards is {}"),
    ],
)
def test_a_manifest_that_does_not_hold_together(store, change, message):
    edit(store, change)
    with pytest.raises(StoreError, match=message) as caught:
        ActivationStore(store.path)
    assert "\n" not in str(caught.value)


def test_no_store_at_all(tmp_path, store):
    with pytest.raises(StoreError, match=r"gone is not an activation store: it does not exist"):
        ActivationStore(tmp_path / "gone")
    with pytest.raises(StoreError, match=r"it has no manifest\.json"):
        ActivationStore(tmp_path)
    (store.path / "manifest.json").write_text('{"format": ')
    with pytest.raises(StoreError, match=r"manifest\.json is not JSON that can be read"):
        ActivationStore(store.path)
    (store.path / "manifest.json").write_bytes(b"\xff\xfe")
    with pytest.raises(StoreError, match=r"cannot read .*manifest\.json"):
        ActivationStore(store.path)
    (store.path / "manifest.json").write_text("[]")
    with pytest.raises(StoreError, match=r"is not the manifest of an activation store"):
        ActivationStore(store.path)


def test_a_shard_of_another_store_is_refused(store, make_store):
    other = make_store("other", dtype="float32")
    data = (other.path / "shards/00001.safetensors").read_bytes()
    (store.path / "shards/00001.safetensors").write_bytes(data)
    edit(store, lambda m: m["shards"][1].update(sha256=sha256(data).hexdigest(), bytes=len(data)))
    with pytest.raises(StoreError, match=r"holds model.norm as F32 \[4, 6\] instead of BF16"):
        ActivationStore(store.path).rows(NORM)


def test_rows_that_the_files_cannot_hold_are_refused_before_there_is_room_for_them(store):
    # 2^40 entries a row and files said to be large enough: 70 TB, of which there are 300 bytes.
    def claim(record):
        record["layers"][2].update(hidden_size=2**40)
        for part in record["shards"]:
            part.update(bytes=2**60)

    edit(store, claim)
    with pytest.raises(StoreError, match=r"shards/00000\.safetensors of .* it is truncated"):
        ActivationStore(store.path).rows(NORM)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ('{"format": ' + "9" * 5000 + "}", r"Exceeds the limit"),
        ("[" * 100_000, r"recursion"),
        ('{"format": ' * 100_000, r"recursion"),
        ('{"a": 1,}', r"line 1"),
    ],
    ids=["digits", "lists", "objects", "comma"],
)
def test_json_that_cannot_be_read(store, raw, message):
    path = store.path / "manifest.json"
    path.write_text(raw)
    with pytest.raises(StoreError, match=message) as caught:
        ActivationStore(store.path)
    assert str(caught.value).startswith(f"{path} is not JSON that can be read: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 200


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def rename_all(record):
    for layer in record["layers"]:
        layer.update(name="model.norm")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rename_all, r"has more than one layer called 'model\.norm'$"),
        (lambda m: m.update(layers=[], shards=[], rows=0), r"has no layers$"),
        (lambda m: m["layers"][0].update(hidden_size=0), r"layers\.hidden_size is 0, "),
        # Four rows of each layer, 4·6 + 4·3 + 4·6 values of two bytes.
        (
            lambda m: m["shards"][0].update(bytes=119),
            r"shard shards/00000\.safetensors is to have 119 bytes, too few .* which take 120$",
        ),
        (lambda m: m["layers"][2].update(hidden_size=10**6), r"too few .* which take 8000072$"),
        (lambda m: m["layers"][2].update(hidden_size=2**63), r"hidden_size is 9223372036854775808"),
        (lambda m: m["layers"][2].update(hidden_size=10**4000), r"hidden_size is 10000+\.\.\.0+, "),
        (
            lambda m: m.update(format_version=10**4000),
            r"format_version 10000+\.\.\.0+, which is no",
        ),
        (lambda m: m["shards"][0].update(file=""), r"shards\.file is '', "),
        (lambda m: m["shards"][0].update(file="a\0b"), r"shards\.file is 'a\\x00b', "),
        (lambda m: m["shards"][0].update(file="a\x1b[2J"), r"shards\.file is 'a\\x1b\[2J', "),
        (lambda m: m["shards"][0].update(sha256="\x1b"), r"shards\.sha256 is '\\x1b', "),
        (lambda m: m["layers"][0].update(name="a\x1b[31m"), r"layers\.name is 'a\\x1b\[31m', "),
        (lambda m: m["layers"][0].update(role="\x1b"), r"layers\.role is '\\x1b', "),
        (lambda m: m.update(model="a\nb"), r"model is 'a\\nb', "),
        (lambda m: m.update(model="a\x9bb"), r"model is 'a\\x9bb', "),
        (lambda m: m.update(text="\u2028"), r"text is '\\u2028', "),
        (lambda m: m.update(text="\ud800"), r"text is '\\ud800', "),
        (lambda m: m.update(revision="\x07"), r"revision is '\\x07', "),
        (lambda m: m.update(created="\x7f"), r"created is '\\x7f', "),
        (lambda m: m.update(versions={"torch": "\x1b"}), r"versions is '\\x1b', "),
        (lambda m: m.update(versions={"\x1b": "1"}), r"versions is '\\x1b', "),
        (lambda m: m.update(versions={"torch": 2}), r"versions is 2, "),
        (lambda m: m.update(model=nested(500)), r"model is \[\[\[\.\.\.\]\]\], "),
        (lambda m: m.update(model=["x" * 10**5]), r"model is \['xx+\.\.\.x+'\], "),
        (lambda m: m.update(layers=["x" * 10**5]), r"layers holds 'xx+\.\.\.x+', not an object"),
    ],
)
def test_a_foreign_manifest_is_refused_in_a_short_line(store, change, message):
    edit(store, change)
    with pytest.raises(StoreError, match=message) as caught:
        ActivationStore(store.path)
    text = str(caught.value)
    assert text.startswith(str(store.path / "manifest.json"))
    assert text.isprintable()
    assert len(text) < len(str(store.path)) + 200


def test_names_in_any_script_are_welcome(store):
    edit(store, lambda m: m.update(model="モデル\u3000é", text="/home/ö/נתונים 👩‍🔬"))
    assert ActivationStore(store.path).manifest.model == "モデル\u3000é"
