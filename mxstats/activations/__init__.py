"""Real rows: captured from a model, kept on disk, read back without torch."""

from mxstats.activations.capture import Captured, CapturedLayer, capture
from mxstats.activations.manifest import LayerInfo, Manifest
from mxstats.activations.merge import merge_stores
from mxstats.activations.models import ModelError, load_model, load_smollm2
from mxstats.activations.monitor import Monitor, MonitorWarning, monitor
from mxstats.activations.record import capture_to_store
from mxstats.activations.sample import make_sample, sample_store
from mxstats.activations.statistics import Statistics
from mxstats.activations.store import ActivationStore
from mxstats.activations.targets import upload_store
from mxstats.activations.text import TextError, read_text, tokenize
from mxstats.activations.write import store_bytes, write_store

__all__ = [
    "ActivationStore",
    "Captured",
    "CapturedLayer",
    "LayerInfo",
    "Manifest",
    "ModelError",
    "Monitor",
    "MonitorWarning",
    "Statistics",
    "TextError",
    "capture",
    "capture_to_store",
    "load_model",
    "load_smollm2",
    "make_sample",
    "merge_stores",
    "monitor",
    "read_text",
    "sample_store",
    "store_bytes",
    "tokenize",
    "upload_store",
    "write_store",
]
