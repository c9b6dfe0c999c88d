"""Which rows of several columns differ, and which of these each row is."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def distinct_rows(*columns: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct rows, shape (columns, distinct), rising, and the number of each row among them.

    As `numpy.unique` along an axis, which sorts rows as records: several times slower.
    """
    numbers = [np.asarray(column, np.int64) for column in columns]
    index = np.zeros(numbers[0].size, np.int64)
    first = np.empty(0, np.int64)
    for column in numbers:
        values, place = np.unique(column, return_inverse=True)
        _, first, index = np.unique(
            index * values.size + place, return_index=True, return_inverse=True
        )
    return np.stack([column[first] for column in numbers]), index
