"""Numbers that would work, in the words of an error."""

from collections.abc import Iterable

_LARGEST_LIST = 12


def divisors(number: int) -> tuple[int, ...]:
    """What divides `number`, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def listed(numbers: Iterable[int], *, near: int) -> str:
    """The numbers in words, those nearest to `near` where there are many."""
    found = sorted(numbers)
    if len(found) > _LARGEST_LIST:
        found = sorted(sorted(found, key=lambda number: abs(number - near))[:_LARGEST_LIST])
    return ", ".join(map(str, found))
