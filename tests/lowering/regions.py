"""Random regions: masks with patterns in them, so that every kind of region comes up."""

import numpy as np
from hypothesis import strategies as st


@st.composite
def shapes_and_masks(draw, most=7, ranks=(1, 3)):
    """A mask of random shape: a box, rows, a few points, rows with holes, or noise."""
    shape = tuple(draw(st.lists(st.integers(1, most), min_size=ranks[0], max_size=ranks[1])))
    generator = np.random.default_rng(draw(st.integers(0, 2**16)))
    mask = np.zeros(shape, bool)
    match draw(st.sampled_from(["box", "rows", "points", "holes", "noise"])):
        case "box":
            mask[tuple(_slice(generator, size) for size in shape)] = True
        case "rows":
            axis = int(generator.integers(len(shape)))
            chosen = generator.random(shape[axis]) < 0.5
            mask[(slice(None),) * axis + (chosen,)] = True
        case "points":
            mask.reshape(-1)[generator.integers(mask.size, size=2)] = True
        case "holes":
            rows = _slice(generator, shape[0])
            mask[rows] = generator.random(mask[rows].shape) < 0.6
        case "noise":
            mask = generator.random(shape) < 0.5
    return mask


def _slice(generator, size):
    start = int(generator.integers(size))
    return slice(start, int(generator.integers(start, size)) + 1, int(generator.integers(1, 4)))
