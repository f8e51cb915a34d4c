"""Which of many patterns a name fits: one walk through the name, whatever the patterns are.

In a pattern `*` stands for any characters, also none, `?` for one, and all else for itself. A
policy of the configuration, the topics of a token and the hosts that may be called are such
patterns.

The idea is that of Baeza-Yates and Gonnet ("A new approach to text searching", 1992), where a bit
of one large number says that so much of a pattern has been matched. Each pattern has a bit for its
beginning and one behind each of its characters; the stars take none, they keep a bit where it is.
A character of the name moves all bits at once, of all patterns, so nothing is ever tried again:

    pattern   m a * l       name  m a i l
    bits     0 1 2   3            0 1 2 2 2,3    bit 3 is behind the pattern's end: it fits

>>> matcher = Matcher(("mail.urgent.*", "mail.*", "*-?"), known_max=100)
>>> [matcher.first(name) for name in ("mail.urgent.de", "mail.x", "sms", "sms-7")]
[0, 1, -1, 2]

A name takes a tenth of a microsecond for each of its characters, and as much again for each 1,000
characters of all patterns together. What was found is remembered for some names.
"""

from collections.abc import Iterable
from typing import Final, final

from delayd.limits import MATCHED_CHARACTERS_PER_US, MATCHED_US, TOPIC_NAME_BYTES_MAX


@final
class Matcher:
    """Patterns, in the order in which they count. It never changes."""

    __slots__ = (
        *("_any", "_by_character", "_ends", "_known", "_known_max", "_number_of", "_starts"),
        *("_stars", "cost_us"),
    )

    def __init__(self, patterns: Iterable[str], *, known_max: int) -> None:
        """Remember what was found for so many names."""
        starts: list[int] = []
        stars: list[int] = []
        anys: list[int] = []
        by_character: dict[str, list[int]] = {}
        self._number_of: Final[dict[int, int]] = {}
        """The number of the pattern, by the bit behind its end."""
        bit = 0
        for number, pattern in enumerate(patterns):
            starts.append(bit)
            for character in pattern:
                if character == "*":
                    stars.append(bit)
                    continue
                if character == "?":
                    anys.append(bit)
                else:
                    by_character.setdefault(character, []).append(bit)
                bit += 1
            self._number_of[bit] = number
            bit += 1
        self._starts: Final = _number_with(starts, bit)
        self._stars: Final = _number_with(stars, bit)
        self._ends: Final = _number_with(self._number_of, bit)
        self._any: Final = _number_with(anys, bit)
        """The bits that any character moves on; and, for the others, those that it moves."""
        self._by_character: Final = {
            character: _number_with(bits, bit) | self._any
            for character, bits in by_character.items()
        }
        self._known: Final[dict[str, int]] = {}
        self._known_max: Final = known_max
        self.cost_us: Final = MATCHED_US + bit // MATCHED_CHARACTERS_PER_US
        """About how long a name takes that is not remembered and as long as most are."""

    def first(self, name: str) -> int:
        """Return the number of the first pattern that fits the whole name; -1: none does."""
        number = self._known.get(name)
        if number is None:
            number = self._found(name)
            if len(name) <= TOPIC_NAME_BYTES_MAX:
                if len(self._known) >= self._known_max:
                    self._known.clear()  # the names in use are soon there again
                self._known[name] = number
        return number

    def _found(self, name: str) -> int:
        state, stars, default = self._starts, self._stars, self._any
        by_character = self._by_character
        for character in name:
            state = (state & by_character.get(character, default)) << 1 | state & stars
            if not state:
                return -1
        fitting = state & self._ends
        return self._number_of[(fitting & -fitting).bit_length() - 1] if fitting else -1


def _number_with(bits: Iterable[int], count: int) -> int:
    """Return the number that has these bits, of so many; O(count)."""
    octets = bytearray(count // 8 + 1)
    for bit in bits:
        octets[bit >> 3] |= 1 << (bit & 7)
    return int.from_bytes(octets, "little")
