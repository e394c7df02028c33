"""Which pages of the cache are whose: counted, shared where prompts begin alike, kept for later."""

import array
import hashlib
from collections import OrderedDict
from collections.abc import Sequence


def page_keys(tokens: Sequence[int], page_size: int, before: Sequence[bytes] = ()) -> list[bytes]:
    """A key for each full page: of its tokens and all before it.

    Args:
        before: The keys of the first pages, where they are known.
    """
    keys = list(before)
    for page in range(len(keys), len(tokens) // page_size):
        digest = hashlib.blake2b(keys[-1] if keys else b"", digest_size=16)
        digest.update(array.array("i", tokens[page * page_size : (page + 1) * page_size]).tobytes())
        keys.append(digest.digest())
    return keys


class Pages:
    """The pages of one rank's cache.

    A page that nobody uses any more keeps what it holds until it is given to someone else: the
    one that has been unused longest goes first.
    """

    def __init__(self, count: int, *, shared: bool) -> None:
        self._shared = shared
        self._users = [0] * count
        self._keys: list[bytes | None] = [None] * count
        self._found: dict[bytes, int] = {}
        self._free = OrderedDict.fromkeys(range(count))

    @property
    def num_free(self) -> int:
        """Pages that nobody uses."""
        return len(self._free)

    def match(self, keys: Sequence[bytes]) -> list[int]:
        """The pages that hold the longest known beginning of `keys`; nobody's yet."""
        pages: list[int] = []
        for key in keys:
            page = self._found.get(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def num_unused(self, pages: Sequence[int]) -> int:
        """How many of these are free."""
        return sum(self._users[page] == 0 for page in pages)

    def share(self, pages: Sequence[int]) -> None:
        """Takes pages that hold what is wanted."""
        for page in pages:
            if self._users[page] == 0:
                del self._free[page]
            self._users[page] += 1

    def take(self, count: int) -> list[int]:
        """Takes free pages, whose contents are lost; there must be as many."""
        pages = [self._free.popitem(last=False)[0] for _ in range(count)]
        for page in pages:
            self._users[page] = 1
            self._forget(page)
        return pages

    def name(self, page: int, key: bytes) -> None:
        """Lets others find a page that is now full; the first of two equal ones is found."""
        if self._shared and key not in self._found:
            self._forget(page)
            self._keys[page] = key
            self._found[key] = page

    def release(self, pages: Sequence[int]) -> None:
        """Gives pages back: the last ones are the first to be given away."""
        for page in reversed(pages):
            self._users[page] -= 1
            if self._users[page] == 0:
                self._free[page] = None

    def _forget(self, page: int) -> None:
        key = self._keys[page]
        if key is not None:
            del self._found[key]
            self._keys[page] = None
