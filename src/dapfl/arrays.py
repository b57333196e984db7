"""The array types that several packages exchange.

NumPy's types do not tell the number of dimensions; these names do.
"""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
"""A model's weights, or other numbers, in one dimension."""

Floats = NDArray[np.float32]
"""Numbers in any shape, such as states and actions with one row each."""

Rows = NDArray[np.uint8]
"""Natural numbers in two dimensions: each is a row of bytes, the least significant first."""
