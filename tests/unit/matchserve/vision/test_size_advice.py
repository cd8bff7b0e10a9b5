"""The message about a photograph that is too large says what would be accepted."""

from __future__ import annotations

import re

import pytest

from matchserve.errors import ImageTooLarge
from matchserve.limits import Limits
from matchserve.vision.pixels import check_size


@pytest.mark.parametrize("size", [(9504, 6336), (6336, 9504), (40_000, 1500), (17_000, 17_000)])
def test_the_named_size_is_accepted_and_hardly_smaller(size: tuple[int, int]) -> None:
    limits = Limits()
    with pytest.raises(ImageTooLarge, match=r"reduce it to (\d+)x(\d+) or less") as refused:
        check_size(size, limits)
    found = re.search(r"reduce it to (\d+)x(\d+)", refused.value.message)
    assert found
    width, height = int(found[1]), int(found[2])
    check_size((width, height), limits)
    assert width / height == pytest.approx(size[0] / size[1], rel=0.01)
    is_largest = width * height > 0.99 * limits.max_pixels
    assert is_largest or max(width, height) == limits.max_side
