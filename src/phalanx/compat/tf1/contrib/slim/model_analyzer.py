"""tf.contrib.slim.model_analyzer: the sizes of variables."""

import math
from collections.abc import Sequence
from typing import Any


def analyze_vars(variables: Sequence[Any], print_info: bool = False) -> tuple[int, int]:
    """Return how many numbers the variables have, and their bytes.

    Args:
        variables: The variables.
        print_info: Whether to print a line for each.

    Returns:
        The sums.
    """
    count = size = 0
    for each in variables:
        numbers = math.prod(each.shape.as_list())
        taken = numbers * each.dtype.base_dtype.size
        if print_info:
            kind = each.dtype.base_dtype.name
            print(f"{each.name} ({kind} {each.shape}) [{numbers}, bytes: {taken}]")
        count, size = count + numbers, size + taken
    if print_info:
        print(f"Total size of variables: {count}\nTotal bytes of variables: {size}")
    return count, size
