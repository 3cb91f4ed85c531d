"""Jobs with CSV and JSON files."""

from __future__ import annotations

import json

from shared.domains.terminal.puzzle import Make, Puzzle, Scene, joined

_HEADING = "name,place,count"


def _rows(scene: Scene) -> list[tuple[str, str, int]]:
    """At least two; counts differ."""
    names = [line.split()[0] for line in scene.text(max(2, scene.lines))]
    places = [scene.word(), scene.word()]
    counts = scene.draw.sample(range(10, 100), len(names))
    found = [(name, places[number % 2], counts[number]) for number, name in enumerate(names)]
    return scene.draw.shuffled(found)


def _csv(rows: list[tuple[str, str, int]]) -> str:
    return joined([_HEADING, *(f"{name},{place},{count}" for name, place, count in rows)])


def _from_csv(
    scene: Scene,
    said: str,
    rows: list[tuple[str, str, int]],
    *,
    after: list[str],
    do: str,
    wrong: str,
    kind: str,
) -> Puzzle:
    name, out = scene.file(".csv"), scene.file(".out")
    files = {name: _csv(rows)}
    return Puzzle(
        said.format(name=name, out=out),
        files,
        {**files, out: joined(after)},
        f"{do.format(name=name)} > {out}",
        f"{wrong.format(name=name)} > {out}",
        compare={out: kind},
    )


def _column(scene: Scene) -> Puzzle:
    rows, number = _rows(scene), scene.draw.integer(1, 3)
    heading = _HEADING.split(",")[number - 1]
    return _from_csv(
        scene,
        f"Write the column {heading} of {{name}} into {{out}}, without its heading.",
        rows,
        after=[str(row[number - 1]) for row in rows],
        do=f"tail -n +2 {{name}} | cut -d, -f{number}",
        wrong=f"cut -d, -f{number} {{name}}",
        kind="lines",
    )


def _total(scene: Scene) -> Puzzle:
    rows = _rows(scene)
    total = sum(row[2] for row in rows)
    return _from_csv(
        scene,
        "Write the sum of the column count of {name} into {out}.",
        rows,
        after=[str(total)],
        do="awk -F, 'NR > 1 {{s += $3}} END {{print s}}' {name}",
        wrong=f"echo {total + 1}",
        kind="numbers",
    )


def _of_place(scene: Scene) -> Puzzle:
    rows = _rows(scene)
    place = rows[0][1]
    return _from_csv(
        scene,
        f"Write the rows of {{name}} whose place is {place} into {{out}}, without the heading.",
        rows,
        after=[f"{row[0]},{row[1]},{row[2]}" for row in rows if row[1] == place],
        do=f"awk -F, '$2 == \"{place}\"' {{name}}",
        wrong=f"awk -F, '$2 != \"{place}\"' {{name}}",
        kind="lines",
    )


def _most(scene: Scene) -> Puzzle:
    rows = _rows(scene)
    most = max(rows, key=lambda row: row[2])
    least = min(rows, key=lambda row: row[2])
    return _from_csv(
        scene,
        "Write the name in the row of {name} with the largest count into {out}.",
        rows,
        after=[most[0]],
        do="tail -n +2 {name} | sort -t, -k3 -nr | head -n 1 | cut -d, -f1",
        wrong=f"echo {least[0]}",
        kind="tokens",
    )


def _document(scene: Scene) -> dict[str, int]:
    values = scene.draw.sample(range(10, 100), 3)
    return {scene.word(): value for value in values}


def _python(code: str) -> str:
    return f'python3 -c "import json; {code}"'


def _field(scene: Scene) -> Puzzle:
    name, out, values = scene.file(".json"), scene.file(".out"), _document(scene)
    key, other = list(values)[:2]
    files = {name: json.dumps(values) + "\n"}
    return Puzzle(
        f"Write the value of {key} in {name} into {out}.",
        files,
        {**files, out: f"{values[key]}\n"},
        _python(f"print(json.load(open('{name}'))['{key}'])") + f" > {out}",
        f"echo {values[other]} > {out}",
        compare={out: "numbers"},
    )


def _set_field(scene: Scene) -> Puzzle:
    name, values = scene.file(".json"), _document(scene)
    key = next(iter(values))
    new = values[key] + scene.draw.integer(1, 9)

    def setting(value: int) -> str:
        return _python(
            f"d = json.load(open('{name}')); d['{key}'] = {value}; json.dump(d, open('{name}', 'w'))"
        )

    return Puzzle(
        f"Set {key} to {new} in {name}.",
        {name: json.dumps(values) + "\n"},
        {name: json.dumps({**values, key: new})},
        setting(new),
        setting(new + 1),
        compare={name: "json"},
    )


def _total_field(scene: Scene) -> Puzzle:
    name, out, values = scene.file(".json"), scene.file(".out"), _document(scene)
    total = sum(values.values())
    files = {name: json.dumps(values) + "\n"}
    return Puzzle(
        f"Write the sum of all values in {name} into {out}.",
        files,
        {**files, out: f"{total}\n"},
        _python(f"print(sum(json.load(open('{name}')).values()))") + f" > {out}",
        f"echo {total + 1} > {out}",
        compare={out: "numbers"},
    )


TABLES: dict[str, Make] = {
    "csv_column": _column,
    "csv_total": _total,
    "csv_rows": _of_place,
    "csv_most": _most,
    "json_field": _field,
    "json_set": _set_field,
    "json_total": _total_field,
}
