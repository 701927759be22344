"""Stores at URLs on the command line: the same numbers as from a folder, and errors of one line."""

import json

import fsspec
import pytest

from mxstats.activations import upload_store
from mxstats.activations.sample import sample_path
from mxstats.measure.calibration import is_store

URL = "memory://test-urls/store"


@pytest.fixture
def url():
    upload_store(sample_path(), URL)
    yield URL
    fsspec.filesystem("memory").rm("/test-urls", recursive=True)


def test_validate(run, url):
    options = ("--json", "--no-kernel", "-p", 2)
    code, far, err = run("validate", url, *options)
    assert (code, err) == (0, "")
    assert json.loads(far) == json.loads(run("validate", sample_path(), *options)[1])


def test_calibrate(run, url):
    options = ("--json", "--per", "model")
    code, far, err = run("calibrate", url, *options)
    assert (code, err) == (0, "")
    assert json.loads(far) == json.loads(run("calibrate", sample_path(), *options)[1])


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_no_store_at_a_url(run, command):
    code, _, err = run(command, "memory://test-urls/nothing")
    assert code == 2
    assert err == (
        "mxstats: memory://test-urls/nothing is not an activation store: it does not exist\n"
    )
    code, _, err = run(command, "nowhere://bucket/store")
    assert code == 2
    assert err.startswith("mxstats: nowhere://bucket/store cannot be opened: Protocol not known")
    assert err.count("\n") == 1


def test_a_url_is_a_store_and_a_distribution_is_none(tmp_path):
    assert is_store(URL)
    assert is_store(str(tmp_path))
    assert not is_store("student-t:5")
