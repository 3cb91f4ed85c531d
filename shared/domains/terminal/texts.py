"""Jobs with the lines of a text."""

from __future__ import annotations

from collections.abc import Callable

from shared.domains.terminal.puzzle import Make, Puzzle, Scene, joined

_Read = Callable[[list[str]], list[str]]


def _made(
    instruction: str, source: str, lines: list[str], *, out: str, after: list[str], do: str, wrong: str
) -> Puzzle:
    """A job that leaves its source as it is and writes a second file."""
    files = {source: joined(lines)}
    kind = "numbers" if len(after) == 1 and after[0].isdigit() else "lines"
    return Puzzle(
        instruction,
        files,
        {**files, out: joined(after)},
        f"{do} > {out}",
        f"{wrong} > {out}",
        compare={out: kind},
    )


def _changed(
    instruction: str, name: str, before: list[str], *, after: list[str], do: str, wrong: str
) -> Puzzle:
    """A job that changes one file."""
    return Puzzle(
        instruction, {name: joined(before)}, {name: joined(after)}, do, wrong, compare={name: "lines"}
    )


def _write_line(scene: Scene) -> Puzzle:
    name, (line,) = scene.file(), scene.text(1)
    first = line.split()[0]
    return Puzzle(
        f"Make a file {name} with the one line: {line}",
        {},
        {name: f"{line}\n"},
        f"echo {line} > {name}",
        f"echo {first} > {name}",
        compare={name: "lines"},
    )


def _append(scene: Scene) -> Puzzle:
    name, (*lines, line) = scene.file(), scene.text(scene.lines + 1)
    return _changed(
        f"Add this line at the end of {name}: {line}",
        name,
        lines,
        after=[*lines, line],
        do=f"echo {line} >> {name}",
        wrong=f"echo {line} > {name}",
    )


def _prepend(scene: Scene) -> Puzzle:
    name, (line, *lines) = scene.file(), scene.text(scene.lines + 1)
    return _changed(
        f"Add this line before the first line of {name}: {line}",
        name,
        lines,
        after=[line, *lines],
        do=f"sed -i '1i {line}' {name}",
        wrong=f"echo {line} >> {name}",
    )


def _replace(scene: Scene) -> Puzzle:
    name, lines = scene.file(), scene.text()
    old, new = lines[0].split()[0], scene.other_word(lines)
    lines[0] = f"{old} {old}"
    return _changed(
        f"Replace the word {old} by {new} everywhere in {name}.",
        name,
        lines,
        after=[line.replace(old, new) for line in lines],
        do=f"sed -i 's/{old}/{new}/g' {name}",
        wrong=f"sed -i 's/{old}/{new}/' {name}",
    )


def _drop_lines(scene: Scene) -> Puzzle:
    name, lines = scene.file(), scene.text()
    word = lines[0].split()[0]
    return _changed(
        f"Delete every line of {name} that contains the word {word}.",
        name,
        lines,
        after=[line for line in lines if word not in line],
        do=f"sed -i '/{word}/d' {name}",
        wrong=f"sed -i 's/{word}/-/g' {name}",
    )


def _first_lines(scene: Scene) -> Puzzle:
    name, out, lines = scene.file(), scene.file(".out"), scene.text()
    count = scene.draw.integer(1, len(lines) - 1)
    return _made(
        f"Write the first {count} lines of {name} into {out}.",
        name,
        lines,
        out=out,
        after=lines[:count],
        do=f"head -n {count} {name}",
        wrong=f"head -n {count + 1} {name}",
    )


def _last_lines(scene: Scene) -> Puzzle:
    name, out, lines = scene.file(), scene.file(".out"), scene.text()
    count = scene.draw.integer(1, len(lines) - 1)
    return _made(
        f"Write the last {count} lines of {name} into {out}.",
        name,
        lines,
        out=out,
        after=lines[-count:],
        do=f"tail -n {count} {name}",
        wrong=f"tail -n {count + 1} {name}",
    )


def _one_line(scene: Scene) -> Puzzle:
    name, out, lines = scene.file(), scene.file(".out"), scene.text()
    number = scene.draw.integer(1, len(lines) - 1)
    return _made(
        f"Write line {number} of {name} into {out}.",
        name,
        lines,
        out=out,
        after=[lines[number - 1]],
        do=f"sed -n {number}p {name}",
        wrong=f"sed -n {number + 1}p {name}",
    )


def _matching(scene: Scene) -> Puzzle:
    name, out, lines = scene.file(), scene.file(".out"), scene.text()
    word = lines[-1].split()[0]
    found = [line for line in lines if word in line]
    return _made(
        f"Write the lines of {name} that contain the word {word} into {out}.",
        name,
        lines,
        out=out,
        after=found,
        do=f"grep {word} {name}",
        wrong=f"grep -v {word} {name}",
    )


def _joined_files(scene: Scene) -> Puzzle:
    one, other, out = scene.file(), scene.file(), scene.file(".out")
    first, second = scene.text(2), scene.text(3)
    files = {one: joined(first), other: joined(second)}
    return Puzzle(
        f"Write {one} and after it {other} into {out}.",
        files,
        {**files, out: joined([*first, *second])},
        f"cat {one} {other} > {out}",
        f"cat {other} {one} > {out}",
        compare={out: "lines"},
    )


def _numbers(scene: Scene) -> Puzzle:
    name, out = scene.file(), scene.file(".out")
    found = [*(str(scene.draw.integer(0, 999)) for _ in range(scene.lines)), "9", "10"]
    lines = sorted(found, key=int, reverse=True)
    return _made(
        f"Sort the numbers in {name} from small to large into {out}.",
        name,
        lines,
        out=out,
        after=sorted(found, key=int),
        do=f"sort -n {name}",
        wrong=f"sort {name}",
    )


def _unique(scene: Scene) -> Puzzle:
    name, out, lines = scene.file(), scene.file(".out"), scene.text()
    lines = [*lines, lines[0]]
    return _made(
        f"Write the lines of {name} into {out}, sorted and each only once.",
        name,
        lines,
        out=out,
        after=sorted(set(lines)),
        do=f"sort -u {name}",
        wrong=f"sort {name}",
    )


def _counted(what: str, do: str, of: Callable[[list[str], str], int]) -> Make:
    def make(scene: Scene) -> Puzzle:
        name, out, lines = scene.file(), scene.file(".out"), scene.text()
        word = lines[0].split()[0]
        count = of(lines, word)
        instruction = f"Write the number of {what.format(word=word)} in {name} into {out}."
        command = do.format(word=word, name=name)
        return _made(
            instruction,
            name,
            lines,
            out=out,
            after=[str(count)],
            do=command,
            wrong=f"echo {count + 1}",
        )

    return make


def _turned(instruction: str, do: str, turn: _Read) -> Make:
    def make(scene: Scene) -> Puzzle:
        name, out, lines = scene.file(), scene.file(".out"), scene.text()
        said = instruction.format(name=name, out=out)
        return _made(
            said,
            name,
            lines,
            out=out,
            after=turn(lines),
            do=do.format(name=name),
            wrong=f"cat {name}",
        )

    return make


TEXTS: dict[str, Make] = {
    "write_line": _write_line,
    "append": _append,
    "prepend": _prepend,
    "replace": _replace,
    "drop_lines": _drop_lines,
    "first_lines": _first_lines,
    "last_lines": _last_lines,
    "one_line": _one_line,
    "matching": _matching,
    "join": _joined_files,
    "sort_numbers": _numbers,
    "unique": _unique,
    "count_lines": _counted("lines", "wc -l < {name}", lambda lines, _: len(lines)),
    "count_words": _counted("words", "wc -w < {name}", lambda lines, _: 2 * len(lines)),
    "count_matching": _counted(
        "lines with the word {word}",
        "grep -c {word} {name}",
        lambda lines, word: sum(word in line for line in lines),
    ),
    "sort": _turned("Write the lines of {name} into {out}, sorted.", "sort {name}", sorted),
    "reverse": _turned(
        "Write the lines of {name} into {out}, the last one first.", "tac {name}", lambda lines: lines[::-1]
    ),
    "upper": _turned(
        "Write {name} into {out} in capital letters.",
        "tr a-z A-Z < {name}",
        lambda lines: [line.upper() for line in lines],
    ),
}
