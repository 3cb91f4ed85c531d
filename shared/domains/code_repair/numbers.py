"""Routines over numbers."""

from __future__ import annotations

from shared.domains.code_repair.routine import Arguments, Routine
from shared.domains.draw import Draw


def _list(draw: Draw) -> Arguments:
    return ([draw.integer(-9, 20) for _ in range(draw.integer(2, 6))],)


def _list_or_nothing(draw: Draw) -> Arguments:
    return ([draw.integer(-9, 20) for _ in range(draw.integer(0, 5))],)


def _two(draw: Draw) -> Arguments:
    return (draw.integer(1, 40), draw.integer(1, 12))


NUMBERS: dict[str, Routine] = {
    "total": Routine(
        "The sum of all numbers.",
        ("total", "sum_up", "add_all"),
        "def {name}(numbers):\n    result = 0\n    for number in numbers:\n        result += number\n    return result\n",
        {"start": ("result = 0", "result = 1"), "operator": ("+= number", "= number"), "return": ("return result", "return number")},
        _list,
    ),
    "average": Routine(
        "The mean of the numbers; 0 for none.",
        ("average", "mean_of", "middle"),
        "def {name}(numbers):\n    if not numbers:\n        return 0\n    return sum(numbers) / len(numbers)\n",
        {"edge": ("if not numbers:", "if numbers is None:"), "operator": (" / len", " // len"), "off_by_one": ("len(numbers)", "(len(numbers) - 1)")},
        _list_or_nothing,
    ),
    "largest": Routine(
        "The largest number.",
        ("largest", "highest", "find_max"),
        "def {name}(numbers):\n    best = numbers[0]\n    for number in numbers:\n        if number > best:\n            best = number\n    return best\n",
        {"comparison": ("number > best", "number < best"), "start": ("best = numbers[0]", "best = 0"), "variable": ("            best = number", "            best = numbers[0]")},
        _list,
    ),
    "count_over": Routine(
        "How many numbers are over the limit.",
        ("count_over", "how_many_above", "count_larger"),
        "def {name}(numbers, limit):\n    count = 0\n    for number in numbers:\n        if number > limit:\n            count += 1\n    return count\n",
        {"comparison": ("number > limit", "number >= limit"), "operator": ("count += 1", "count = 1"), "variable": ("if number > limit", "if limit > number")},
        lambda draw: ([draw.integer(0, 6) for _ in range(draw.integer(2, 7))], draw.integer(1, 4)),
    ),
    "even_only": Routine(
        "The even numbers, in their order.",
        ("even_only", "keep_even", "evens"),
        "def {name}(numbers):\n    return [number for number in numbers if number % 2 == 0]\n",
        {"comparison": ("== 0", "!= 0"), "constant": ("% 2", "% 3"), "return": ("[number for", "[-number for")},
        _list,
    ),
    "clamp": Routine(
        "The number, but at least low and at most high.",
        ("clamp", "limit_to", "keep_within"),
        "def {name}(number, low, high):\n    if number < low:\n        return low\n    if number > high:\n        return high\n    return number\n",
        {"comparison": ("number < low", "number > low"), "return": ("        return high", "        return low"), "variable": ("number > high", "low > high")},
        lambda draw: (draw.integer(-10, 30), draw.integer(0, 8), draw.integer(10, 20)),
    ),
    "power": Routine(
        "The base multiplied by itself, exponent times; 1 for exponent 0.",
        ("power", "raise_to", "times_itself"),
        "def {name}(base, exponent):\n    result = 1\n    for _ in range(exponent):\n        result *= base\n    return result\n",
        {"start": ("result = 1", "result = 0"), "off_by_one": ("range(exponent)", "range(exponent - 1)"), "operator": ("*= base", "+= base")},
        lambda draw: (draw.integer(2, 5), draw.integer(0, 5)),
    ),
    "is_prime": Routine(
        "Whether the number is a prime.",
        ("is_prime", "prime", "has_no_divisor"),
        "def {name}(number):\n    if number < 2:\n        return False\n    for divisor in range(2, number):\n        if number % divisor == 0:\n            return False\n    return True\n",
        {"edge": ("number < 2", "number < 1"), "off_by_one": ("range(2, number)", "range(2, number + 1)"), "start": ("range(2,", "range(3,")},
        lambda draw: (draw.integer(0, 24),),
    ),
    "divisor": Routine(
        "The greatest common divisor.",
        ("common_divisor", "gcd_of", "greatest_divisor"),
        "def {name}(one, other):\n    while other:\n        one, other = other, one % other\n    return one\n",
        {"loop": ("while other:", "if other:"), "return": ("return one", "return other"), "order": ("= other, one", "= one, one")},
        _two,
    ),
    "running": Routine(
        "The sums of the first one, two, three and so on numbers.",
        ("running", "partial_sums", "summed_so_far"),
        "def {name}(numbers):\n    sums = []\n    so_far = 0\n    for number in numbers:\n        so_far += number\n        sums.append(so_far)\n    return sums\n",
        {"variable": ("append(so_far)", "append(number)"), "operator": ("so_far += number", "so_far -= number"), "start": ("so_far = 0", "so_far = 1")},
        _list,
    ),
    "digits": Routine(
        "The sum of the digits of a number that is not negative.",
        ("digits", "digit_sum", "cross_sum"),
        "def {name}(number):\n    result = 0\n    while number > 0:\n        result += number % 10\n        number //= 10\n    return result\n",
        {"constant": ("% 10", "% 9"), "comparison": ("number > 0", "number > 9"), "operator": ("result += number", "result = number")},
        lambda draw: (draw.integer(0, 9999),),
    ),
}  # fmt: skip
