"""``mxstats capture``: each of its options, what it says before it starts, and afterwards."""

import json
import re

import numpy as np
import pytest

from mxstats.activations import ActivationStore, capture_to_store, record
from mxstats.cli import main
from mxstats.cli.capture import announce
from tests.activations.test_stream import TEXT, assert_same, small_shards, stop_after

NORM = "model.norm"


@pytest.fixture
def settings(tmp_path, tiny_folder, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    small_shards(monkeypatch)
    return {"model": tiny_folder, "text": text, "tokens": 84, "window": 8}


@pytest.fixture
def command(tmp_path, settings, capsys):
    """Run ``mxstats capture`` with the settings and more; give exit code, stdout and stderr."""

    def command(*more, out=tmp_path / "s"):
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        capsys.readouterr()
        code = main([str(one) for one in ("capture", out, *options, *more)])
        return code, *capsys.readouterr()

    return command


def test_size_and_time_are_said_before_the_first_pass(tmp_path, command, monkeypatch, capsys):
    said = []

    def first_pass(*_, **__):
        said.append(capsys.readouterr().err)
        raise KeyboardInterrupt

    monkeypatch.setattr(record, "_stream_windows", first_pass)
    command()
    # 84 tokens of five norms of 32 entries in bfloat16 are 26,880 bytes.
    assert re.fullmatch(r"about 0\.027 MB of rows and [0-9.e-]+ s\n", said[0])


@pytest.mark.parametrize(
    ("size", "seconds", "said"),
    [
        (123_456_789_000, 4567.8, "about 123,457 MB of rows and 4,568 s"),
        (1_500_000, 0.123, "about 1.5 MB of rows and 0.12 s"),
        (0, 12.3, "about 0 MB of rows and 12 s"),
    ],
)
def test_sizes_and_times_are_plain_numbers(size, seconds, said, capsys):
    announce(record.Estimate(size, seconds))
    assert capsys.readouterr().err == f"{said}\n"


def test_what_was_captured_is_said_afterwards(tmp_path, command):
    code, out, err = command()
    assert code == 0
    assert re.fullmatch(
        rf"{tmp_path}/s: 5 layers, 84 rows each, bfloat16, 0.03 MB, statistics of 84 tokens\n", out
    )
    assert err.startswith("about ")
    ActivationStore(tmp_path / "s").verify()


def test_json(tmp_path, command):
    code, out, _ = command("--json", "--keep-rows", 20)
    found = json.loads(out)
    store = ActivationStore(tmp_path / "s")
    assert code == 0
    assert found.pop("bytes") == sum(one.bytes for one in store.manifest.shards)
    assert found == {
        "store": f"{tmp_path}/s", "model": "tiny-llama", "layers": 5, "rows": 20,
        "dtype": "bfloat16", "tokens": 20, "tokens_read": 84,
    }  # fmt: skip


def test_keep_rows_and_seed(tmp_path, settings, command):
    every = capture_to_store(tmp_path / "every", **settings)
    chosen = {}
    for seed in (0, 1):
        assert command("--keep-rows", 20, "--seed", seed, out=tmp_path / f"s{seed}")[0] == 0
        store = ActivationStore(tmp_path / f"s{seed}")
        chosen[seed] = store.tokens()["token"].tolist()
        assert len(chosen[seed]) == 20
        np.testing.assert_array_equal(store.rows(NORM), every.rows(NORM)[chosen[seed]])
        # Statistics are of all tokens, whatever is kept.
        assert store.manifest.tokens_read == 84
        assert store.statistics().equals(every.statistics())
    assert chosen[0] != chosen[1]
    assert_same(
        ActivationStore(tmp_path / "s1"),
        capture_to_store(tmp_path / "again", keep_rows=20, seed=1, **settings),
    )


def test_block_size(tmp_path, command):
    assert command("-B", 8)[0] == 0
    table = ActivationStore(tmp_path / "s").statistics([NORM])
    size = table[(table["kind"] == "layer") & (table["quantity"] == "block_size")]
    assert size["value"].tolist() == [8.0]
    assert (table["quantity"] == "ratio_sum").sum() == 32 // 8
    code, _, err = command("-B", 0, "--overwrite")
    assert (code, err) == (2, "mxstats: block_size must be at least 1, got 0\n")


def test_modules(tmp_path, command):
    assert command("--modules", "*.input_layernorm")[0] == 0
    names = [layer.name for layer in ActivationStore(tmp_path / "s").layers]
    assert names == [f"model.layers.{i}.input_layernorm" for i in range(2)]


def test_resume(tmp_path, settings, command):
    plain = capture_to_store(tmp_path / "plain", **settings)
    with pytest.raises(KeyboardInterrupt):
        capture_to_store(tmp_path / "s", progress=stop_after(5), **settings)
    code, _, err = command()
    assert code == 2
    assert "mxstats: an interrupted capture of " in err
    assert "--resume on the command line" in err
    assert command("--resume")[0] == 0
    assert_same(ActivationStore(tmp_path / "s"), plain)


def test_overwrite(tmp_path, command):
    assert command()[0] == 0
    before = ActivationStore(tmp_path / "s").manifest.rows
    code, _, err = command("--keep-rows", 7)
    assert code == 2
    assert re.fullmatch(r"mxstats: .*/s exists already; .* \(--overwrite .*\)\n", err)
    assert ActivationStore(tmp_path / "s").manifest.rows == before == 84
    assert command("--keep-rows", 7, "--overwrite")[0] == 0
    assert ActivationStore(tmp_path / "s").manifest.rows == 7


def test_a_url(tmp_path, settings, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = command(out="memory://test-capture-command/s")
    assert code == 0
    assert out.startswith("memory://test-capture-command/s: 5 layers, 84 rows each")
    far = ActivationStore("memory://test-capture-command/s")
    assert_same(far, capture_to_store(tmp_path / "plain", **settings))
    code, _, err = command(out="memory://test-capture-command/s")
    assert code == 2
    assert err.startswith("mxstats: memory://test-capture-command/s exists already;")
    far.place.filesystem.rm("/test-capture-command", recursive=True)


def test_a_disk_that_is_too_small_is_one_line(command, monkeypatch):
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    code, _, err = command()
    assert code == 2
    assert re.fullmatch(r"mxstats: .* takes 2.69e-05 GB .* has 1e-06 GB free: .*\n", err)
