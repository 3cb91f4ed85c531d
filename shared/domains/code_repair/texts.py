"""Routines over texts, lists and tables."""

from __future__ import annotations

from shared.domains.code_repair.routine import Arguments, Routine
from shared.domains.draw import Draw

_WORDS = ("level", "stone", "noon", "river", "apple", "radar", "tree", "a", "kayak", "book")


def _word(draw: Draw) -> Arguments:
    return (draw.choice(_WORDS),)


def _sentence(draw: Draw) -> str:
    return " ".join(draw.choice(_WORDS) for _ in range(draw.integer(1, 5)))


def _said(draw: Draw) -> Arguments:
    return (_sentence(draw),)


def _list(draw: Draw, low: int = 1) -> list[int]:
    return [draw.integer(0, 6) for _ in range(draw.integer(low, 6))]


TEXTS: dict[str, Routine] = {
    "reverse": Routine(
        "The text from its end to its beginning.",
        ("reverse", "backwards", "turned"),
        "def {name}(text):\n    return text[::-1]\n",
        {"constant": ("[::-1]", "[::1]"), "off_by_one": ("text[::-1]", "text[1:][::-1]"), "order": ("text[::-1]", "text[-1] + text[:-1]")},
        _word,
    ),
    "palindrome": Routine(
        "Whether the text reads the same from its end.",
        ("palindrome", "is_mirrored", "same_backwards"),
        "def {name}(text):\n    return text == text[::-1]\n",
        {"comparison": ("text == text", "text != text"), "constant": ("[::-1]", "[::1]"), "off_by_one": ("text == text[::-1]", "text[1:] == text[::-1]")},
        _word,
    ),
    "vowels": Routine(
        "How many vowels the text has.",
        ("vowels", "count_vowels", "number_of_vowels"),
        "def {name}(text):\n    return sum(letter in 'aeiou' for letter in text)\n",
        {"constant": ("'aeiou'", "'aei'"), "comparison": ("(letter in", "(letter not in"), "off_by_one": ("for letter in text)", "for letter in text[1:])")},
        _said,
    ),
    "capitals": Routine(
        "The text with a capital letter at the beginning of every word.",
        ("capitals", "title_of", "headline"),
        "def {name}(text):\n    words = [word[0].upper() + word[1:] for word in text.split()]\n    return ' '.join(words)\n",
        {"off_by_one": ("word[1:]", "word[0:]"), "constant": ("' '.join", "''.join"), "call": ("upper()", "lower()")},
        _said,
    ),
    "longest": Routine(
        "The longest word; the first of several.",
        ("longest", "longest_word", "widest"),
        "def {name}(text):\n    best = ''\n    for word in text.split():\n        if len(word) > len(best):\n            best = word\n    return best\n",
        {"comparison": ("> len", ">= len"), "variable": ("            best = word", "            best = text"), "return": ("return best", "return len(best)")},
        _said,
    ),
    "tally": Routine(
        "How often each word is there.",
        ("tally", "count_words", "frequencies"),
        "def {name}(text):\n    counts = {{}}\n    for word in text.split():\n        counts[word] = counts.get(word, 0) + 1\n    return counts\n",
        {"start": ("get(word, 0)", "get(word, 1)"), "operator": (" + 1", " + 2"), "call": ("text.split()", "text")},
        _said,
    ),
    "once": Routine(
        "The numbers, each once, in the order of their first places.",
        ("once", "without_repeats", "distinct"),
        "def {name}(numbers):\n    seen = []\n    for number in numbers:\n        if number not in seen:\n            seen.append(number)\n    return seen\n",
        {"comparison": ("not in seen", "in seen"), "return": ("return seen", "return sorted(seen)"), "order": ("seen.append(number)", "seen.insert(0, number)")},
        lambda draw: (_list(draw, 3),),
    ),
    "pairs": Routine(
        "The sums of neighbours.",
        ("pairs", "neighbour_sums", "sum_pairs"),
        "def {name}(numbers):\n    return [numbers[at] + numbers[at + 1] for at in range(len(numbers) - 1)]\n",
        {"off_by_one": ("numbers) - 1", "numbers)"), "operator": ("numbers[at] + numbers", "numbers[at] - numbers"), "variable": ("numbers[at + 1]", "numbers[at]")},
        lambda draw: (_list(draw, 2),),
    ),
    "chunks": Routine(
        "The numbers in parts of the given size; the last may be shorter.",
        ("chunks", "in_parts", "split_up"),
        "def {name}(numbers, size):\n    return [numbers[at : at + size] for at in range(0, len(numbers), size)]\n",
        {"off_by_one": ("at + size", "at + size - 1"), "start": ("range(0,", "range(1,"), "variable": ("len(numbers), size)", "len(numbers), 2 * size)")},
        lambda draw: (_list(draw, 3), draw.integer(2, 3)),
    ),
    "merge": Routine(
        "Both tables in one; the second wins.",
        ("merge", "put_together", "combined"),
        "def {name}(first, second):\n    merged = dict(first)\n    merged.update(second)\n    return merged\n",
        {"order": ("dict(first)", "dict(second)"), "variable": ("update(second)", "update(first)"), "return": ("return merged", "return second")},
        lambda draw: ({"a": draw.integer(0, 9), "b": 1}, {"b": draw.integer(2, 9), "c": draw.integer(0, 9)}),
    ),
    "lookup": Routine(
        "The value under the key, or the default where it is not there.",
        ("lookup", "value_of", "find_or"),
        "def {name}(table, key, default):\n    if key in table:\n        return table[key]\n    return default\n",
        {"comparison": ("key in table", "key not in table"), "return": ("    return default", "    return key"), "variable": ("table[key]", "table.get(default)")},
        lambda draw: ({"a": draw.integer(0, 9), "b": draw.integer(0, 9)}, draw.choice(("a", "b", "c")), draw.integer(20, 29)),
    ),
    "caesar": Routine(
        "The small letters of the text moved on in the alphabet by so many places.",
        ("caesar", "moved_on", "shifted"),
        "def {name}(text, places):\n    moved = [chr((ord(letter) - 97 + places) % 26 + 97) for letter in text]\n    return ''.join(moved)\n",
        {"constant": ("% 26", "% 25"), "operator": ("97 + places", "97 - places"), "off_by_one": ("- 97 +", "- 96 +")},
        lambda draw: (draw.choice(_WORDS), draw.integer(1, 20)),
    ),
}  # fmt: skip
