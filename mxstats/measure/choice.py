"""The layers of a store that were asked for."""

from collections.abc import Sequence

from mxstats.activations import ActivationStore
from mxstats.activations.manifest import LayerInfo


def chosen_layers(store: ActivationStore, layers: Sequence[str] | None) -> list[LayerInfo]:
    """Return the layers called ``layers``, all for None, in the model's order.

    Raises
    ------
    TypeError
        A string in place of a list of names.
    ValueError
        No name, or one that the store does not have.
    """
    if layers is None:
        return store.layers
    if isinstance(layers, str):
        raise TypeError(f"layers must be a list of names, got the string {layers!r}")
    if not layers:
        raise ValueError("layers is empty; name at least one, or None for all")
    wanted = [layer for layer in store.layers if layer.name in layers]
    missing = sorted(set(layers) - {layer.name for layer in wanted})
    if missing:
        raise ValueError(
            f"layers: {', '.join(missing)} not in the store; it has "
            f"{store.layers[0].name} … {store.layers[-1].name} ({len(store.layers)})"
        )
    return wanted
