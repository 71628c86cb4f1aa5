"""Which examples share a row: best-fit decreasing over one task's examples.

Packing never crosses a task, so what a row holds does not depend on the cluster or on how far preparation has come.
Best fit needs "the smallest gap that holds this": the gaps in use are the bits of one Python integer, so a look-up is a
shift and a lowest set bit, and a task of a hundred thousand examples packs in a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Sequence


def pack(lengths: Sequence[int], seq_len: int, *, packing: bool = True) -> list[list[int]]:
    """Rows of example numbers; every example once, no row longer than `seq_len`.

    Args:
        lengths: tokens of each example, 1 to `seq_len`.
        packing: False gives each example a row of its own.

    Returns:
        Rows ordered by their first example, examples in their own order inside a row.
    """
    wrong = [n for n in lengths if not 0 < n <= seq_len]
    if wrong:
        raise ValueError(f"an example of {wrong[0]} tokens does not fit a row of {seq_len}")
    if not packing:
        return [[i] for i in range(len(lengths))]
    rows: list[list[int]] = []
    open_rows: dict[int, list[list[int]]] = {}  # gap -> rows with that gap, used from the end
    gaps = 0  # bit g: some row has a gap of g tokens
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[i]
        fitting = gaps >> length
        if fitting:
            gap = length + (fitting & -fitting).bit_length() - 1
            row = open_rows[gap].pop()
            if not open_rows[gap]:
                gaps ^= 1 << gap
        else:
            gap, row = seq_len, []
            rows.append(row)
        row.append(i)
        left = gap - length
        if left:
            open_rows.setdefault(left, []).append(row)
            gaps |= 1 << left
    return sorted(sorted(row) for row in rows)
