"""What ``RowCalibration.save`` writes, read again; and files that it did not write."""

import json

import numpy as np
import pandas as pd
import pytest

import mxstats as mxs
from mxstats.measure import read_calibration
from mxstats.measure.calibrated import RowCalibration
from mxstats.nn.constants import ConstantsError

WHOLE = {
    "p": 2.0,
    "block_size": 32,
    "per": "block",
    "model": "tiny",
    "revision": None,
    "text": "GPL-3",
    "rows": {"model.norm": 60},
    "weights": {"model.norm": [0.25, 0.5]},
}


def written(tmp_path, **changes):
    """The file of WHOLE with changes; a change to ... leaves the key out."""
    content = {key: value for key, value in (WHOLE | changes).items() if value is not ...}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("per", ["model", "layer", "block"])
def test_what_is_saved_is_read_again(tmp_path, per):
    names = ["model.layers.0.input_layernorm", "model.norm"]
    table = pd.DataFrame({"layer": names, "rows": [60, 59]})
    # Numbers without a short decimal form, which text must still give back to the last bit.
    constants = {} if per == "block" else dict(zip(names, (1 / 3, np.pi), strict=True))
    weights = {name: np.array([1 / 3, 0.1]) for name in names} if per == "block" else {}
    saved = RowCalibration(
        1.0, 32, per, "SmolLM2", "main", "a text", constants, weights, {}, table
    ).save(tmp_path / "mine.json")
    found = read_calibration(saved)
    assert (found.p, found.block_size, found.per) == (1.0, 32, per)
    assert (found.model, found.revision, found.text) == ("SmolLM2", "main", "a text")
    assert found.constants == constants
    assert found.weights.keys() == weights.keys()
    for name, w in weights.items():
        np.testing.assert_array_equal(found.weights[name], w)
        assert found.weights[name].dtype == np.float64
    assert found.table["layer"].tolist() == names
    assert found.table["rows"].tolist() == [60, 59]
    assert found.intervals == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"p": ...}, "p is not there; a calibration has a number above 0"),
        ({"p": -2}, "p is -2"),
        ({"p": True}, "p is True"),
        ({"p": float("nan")}, "p is nan"),
        ({"p": float("inf")}, "p is inf"),
        ({"block_size": 32.5}, "block_size is 32.5; a calibration has a whole number above 0"),
        ({"block_size": 0}, "block_size is 0"),
        ({"per": "layer"}, "per is 'layer'; a calibration has 'block' with weights"),
        ({"per": ["block"]}, r"per is \['block'\]"),
        ({"weights": {}}, "0 constants and 0 weights"),
        ({"constants": {"other": 2.0}}, "1 constants and 1 weights"),
        ({"weights": ..., "constants": {"model.norm": 2.0}}, "per is 'block'"),
        ({"rows": ...}, "rows is not there; a calibration has the number of rows of each"),
        ({"rows": {"other": 60}}, "rows is {'other': 60}"),
        ({"rows": {"model.norm": 6.5}}, "rows is {'model.norm': 6.5}"),
        ({"model": ...}, "model is not there"),
        ({"revision": 3}, "revision is 3"),
        ({"text": None}, "text is None"),
        ({"weights": {"model.norm": 0.5}}, "weights.*must be a list of numbers"),
    ],
)
def test_a_file_of_another_form_is_named_with_what_it_lacks(tmp_path, changes, message):
    path = written(tmp_path, **changes)
    with pytest.raises(ConstantsError, match=message) as error:
        read_calibration(path)
    assert str(path) in str(error.value)
    assert isinstance(error.value, mxs.MxstatsError)


def test_a_file_that_is_torn_or_not_there(tmp_path):
    path = written(tmp_path)
    path.write_text(path.read_text()[:-10])
    with pytest.raises(ConstantsError, match="not a whole JSON file"):
        read_calibration(path)
    with pytest.raises(ConstantsError, match="No such file"):
        read_calibration(tmp_path / "none.json")
