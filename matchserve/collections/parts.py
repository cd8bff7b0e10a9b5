"""Parts of one run on several machines, e.g. `--part 3/64` in a SLURM array or an indexed Job.

All parts work on the same folders and choose the same pairs. Each part describes its own images
first and then whatever is still missing, and matches only its own shards. A last run without a part
finds all results there. A part needs no contact with the others, and can be killed and started
again at any time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from matchserve.errors import InvalidParameter

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """Part number `index`, from 0, of `count` parts."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise InvalidParameter(
                f"part {self.index}/{self.count}: the number must be from 0 to {self.count - 1}"
            )

    @property
    def name(self) -> str:
        """A name for files of this part."""
        return f"{self.index}-of-{self.count}"

    def own_first(self, items: Sequence[T]) -> list[T]:
        """Return all items, those of this part first, and the last of the others next.

        Parts that are done early help the next part from its end.
        """
        own = items[self.index :: self.count]
        others = [item for n, item in enumerate(items) if n % self.count != self.index]
        return [*own, *reversed(others)]

    def owns(self, shard: str) -> bool:
        """Return whether this part matches a shard."""
        return int(shard, 16) % self.count == self.index


def parse_part(text: str) -> Part:
    """Parse a part such as `3/64`.

    Raises:
        InvalidParameter: it is not two numbers, or the first is too large.
    """
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
    if found is None:
        raise InvalidParameter(f"a part is a number and a count such as 3/64, not {text!r}")
    return Part(int(found[1]), int(found[2]))
