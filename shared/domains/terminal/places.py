"""Jobs with folders, links, permissions and names."""

from __future__ import annotations

from shared.domains.terminal.puzzle import Make, Puzzle, Scene, joined


def _make_folder(scene: Scene) -> Puzzle:
    outer, inner = scene.word(), scene.word()
    return Puzzle(
        f"Make an empty folder {outer}/{inner}.",
        {},
        {},
        f"mkdir -p {outer}/{inner}",
        f"mkdir -p {outer}",
        folders=(f"{outer}/{inner}",),
    )


def _delete_folder(scene: Scene) -> Puzzle:
    folder, kept = scene.word(), {scene.file(): "kept\n"}
    inside = {f"{folder}/{scene.file()}": "gone\n" for _ in range(2)}
    return Puzzle(
        f"Delete the folder {folder} and everything in it.",
        {**inside, **kept},
        kept,
        f"rm -r {folder}",
        f"rm {folder}/*",
    )


def _executable(scene: Scene) -> Puzzle:
    name = scene.file(".sh")
    files = {name: f"echo {scene.word()}\n"}
    return Puzzle(
        f"Let everybody execute {name}.", files, files, f"chmod a+x {name}", f"chmod u+x {name}", modes={name: "755"}
    )  # fmt: skip


def _private(scene: Scene) -> Puzzle:
    name = scene.file()
    files = {name: joined(scene.text(2))}
    return Puzzle(
        f"Let nobody but its owner read and write {name}.",
        files,
        files,
        f"chmod 600 {name}",
        f"chmod 640 {name}",
        modes={name: "600"},
    )


def _read_only(scene: Scene) -> Puzzle:
    name = scene.file()
    files = {name: joined(scene.text(2))}
    return Puzzle(
        f"Set the permissions of {name} to 444.",
        files,
        files,
        f"chmod 444 {name}",
        f"chmod 440 {name}",
        modes={name: "444"},
    )


def _link(scene: Scene) -> Puzzle:
    name, link = scene.file(), scene.file(".link")
    files = {name: joined(scene.text(2))}
    return Puzzle(
        f"Make a symbolic link {link} that points to {name}.",
        files,
        files,
        f"ln -s {name} {link}",
        f"ln {name} {link}",
        links={link: name},
    )


def _list_names(scene: Scene) -> Puzzle:
    folder, out = scene.word(), scene.file(".out")
    names = [scene.file() for _ in range(3)]
    files = {f"{folder}/{name}": "x\n" for name in names}
    return Puzzle(
        f"Write the names of the files in {folder} into {out}, sorted, one a line.",
        files,
        {**files, out: joined(sorted(names))},
        f"ls {folder} > {out}",
        f"ls -r {folder} > {out}",
        compare={out: "lines"},
    )


def _count_files(scene: Scene) -> Puzzle:
    folder, out, count = scene.word(), scene.file(".out"), scene.draw.integer(2, 4)
    files = {f"{folder}/{scene.file()}": "x\n" for _ in range(count)}
    return Puzzle(
        f"Write the number of files in {folder} into {out}.",
        files,
        {**files, out: f"{count}\n"},
        f"ls {folder} | wc -l > {out}",
        f"echo {count + 1} > {out}",
        compare={out: "numbers"},
    )


def _longest(scene: Scene) -> Puzzle:
    folder, out = scene.word(), scene.file(".out")
    names = [scene.file() for _ in range(3)]
    files = {f"{folder}/{name}": joined(scene.text(size)) for size, name in enumerate(names, start=1)}
    return Puzzle(
        f"Write the name of the file in {folder} with the most lines into {out}.",
        files,
        {**files, out: f"{names[-1]}\n"},
        f"cd {folder} && wc -l * | sort -n | tail -n 2 | head -n 1 | awk '{{print $2}}' > ../{out}",
        f"echo {names[0]} > {out}",
        compare={out: "tokens"},
    )


PLACES: dict[str, Make] = {
    "make_folder": _make_folder,
    "delete_folder": _delete_folder,
    "executable": _executable,
    "private": _private,
    "read_only": _read_only,
    "link": _link,
    "list_names": _list_names,
    "count_files": _count_files,
    "longest": _longest,
}
