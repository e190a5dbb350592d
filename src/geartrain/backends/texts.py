"""Arrays of BYTES for libraries that take texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def decoded(name: str, array: np.ndarray) -> np.ndarray:
    """Return an array of `str` of one of `bytes`; raise `ValueError` that names the input and the element."""
    import numpy as np

    texts = np.empty(array.size, object)
    for index, element in enumerate(array.ravel().tolist()):
        try:
            texts[index] = element.decode() if isinstance(element, bytes) else element
        except UnicodeDecodeError:
            raise ValueError(f"input '{name}': element {index} is no UTF-8 text, which the model needs") from None
    return texts.reshape(array.shape)
