"""Jobs that move, copy and delete files."""

from __future__ import annotations

from shared.domains.terminal.puzzle import Make, Puzzle, Scene, joined


def _rename(scene: Scene) -> Puzzle:
    old, new, text = scene.file(), scene.file(), joined(scene.text(2))
    return Puzzle(f"Rename {old} to {new}.", {old: text}, {new: text}, f"mv {old} {new}", f"cp {old} {new}")


def _move_into(scene: Scene) -> Puzzle:
    name, folder, text = scene.file(), scene.word(), joined(scene.text(2))
    kept = f"{folder}/{scene.file()}"
    return Puzzle(
        f"Move {name} into the folder {folder}.",
        {name: text, kept: "kept\n"},
        {f"{folder}/{name}": text, kept: "kept\n"},
        f"mv {name} {folder}/",
        f"cp {name} {folder}/",
    )


def _copy(scene: Scene) -> Puzzle:
    old, new, text = scene.file(), scene.file(), joined(scene.text(2))
    return Puzzle(
        f"Copy {old} to {new}.", {old: text}, {old: text, new: text}, f"cp {old} {new}", f"mv {old} {new}"
    )


def _copy_into(scene: Scene) -> Puzzle:
    name, folder, text = scene.file(), scene.word(), joined(scene.text(2))
    kept = f"{folder}/{scene.file()}"
    return Puzzle(
        f"Copy {name} into the folder {folder}.",
        {name: text, kept: "kept\n"},
        {name: text, f"{folder}/{name}": text, kept: "kept\n"},
        f"cp {name} {folder}/",
        f"mv {name} {folder}/",
    )


def _delete(scene: Scene) -> Puzzle:
    name, other = scene.file(), scene.file()
    text = joined(scene.text(2))
    return Puzzle(f"Delete {name}.", {name: text, other: text}, {other: text}, f"rm {name}", f": > {name}")


def _delete_suffix(scene: Scene) -> Puzzle:
    folder = scene.word()
    logs = [f"{folder}/{scene.file('.log')}" for _ in range(2)]
    kept = {f"{folder}/{scene.file()}": "kept\n"}
    return Puzzle(
        f"Delete every file in the folder {folder} whose name ends in .log.",
        {**dict.fromkeys(logs, "log\n"), **kept},
        kept,
        f"rm {folder}/*.log",
        f"rm {logs[0]}",
    )


def _swap(scene: Scene) -> Puzzle:
    one, other = scene.file(), scene.file()
    first, second = joined(scene.text(2)), joined(scene.text(3))
    return Puzzle(
        f"Swap the names of {one} and {other}.",
        {one: first, other: second},
        {one: second, other: first},
        f"mv {one} {one}.tmp && mv {other} {one} && mv {one}.tmp {other}",
        f"mv {one} {other}",
    )


def _change_suffix(scene: Scene) -> Puzzle:
    folder = scene.word()
    names = [f"{folder}/{scene.word()}" for _ in range(2)]
    return Puzzle(
        f"In the folder {folder}, change the ending of every file from .txt to .md.",
        {f"{name}.txt": f"{name}\n" for name in names},
        {f"{name}.md": f"{name}\n" for name in names},
        f'for f in {folder}/*.txt; do mv "$f" "${{f%.txt}}.md"; done',
        f"mv {names[0]}.txt {names[0]}.md",
    )


def _copy_folder(scene: Scene) -> Puzzle:
    old, new = scene.word(), scene.word()
    names = [scene.file() for _ in range(2)]
    before = {f"{old}/{name}": f"{name}\n" for name in names}
    return Puzzle(
        f"Copy the folder {old} with all its files to {new}.",
        before,
        {**before, **{f"{new}/{name}": f"{name}\n" for name in names}},
        f"cp -r {old} {new}",
        f"mv {old} {new}",
    )


def _move_matching(scene: Scene) -> Puzzle:
    old, new, word = scene.word(), scene.word(), scene.word()
    with_it = {scene.file(): f"one\n{word}\n" for _ in range(2)}
    without = {f"{old}/{scene.file()}": "one\ntwo\n"}
    kept = {f"{new}/kept.txt": "kept\n"}
    return Puzzle(
        f"Move every file in {old} that contains the word {word} into the folder {new}.",
        {**{f"{old}/{name}": text for name, text in with_it.items()}, **without, **kept},
        {**{f"{new}/{name}": text for name, text in with_it.items()}, **without, **kept},
        f"mv $(grep -l {word} {old}/*) {new}/",
        f"mv {old}/* {new}/",
    )


MOVING: dict[str, Make] = {
    "rename": _rename,
    "move_into": _move_into,
    "copy": _copy,
    "copy_into": _copy_into,
    "delete": _delete,
    "delete_suffix": _delete_suffix,
    "swap": _swap,
    "change_suffix": _change_suffix,
    "copy_folder": _copy_folder,
    "move_matching": _move_matching,
}
