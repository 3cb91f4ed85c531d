"""What can be told of a Hugging Face folder without loading it: cheap, and free of torch and transformers.

Invariant: a folder that passes holds a configuration, a tokenizer and weights that can be read to their last byte and
that agree in vocabulary, width and number of layers; one that fails is named with the file, what is wrong and the
mend. Reads JSON files and the headers of the weights, never the weights themselves.

Source: the safetensors format (8 bytes little-endian header length, JSON header, data), huggingface/safetensors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shared.errors import DependencyError

Shapes = Mapping[str, tuple[int, ...]]
_LARGEST_HEADER = 100_000_000
"""The format's own limit, in bytes."""
_SPARE = re.compile(r"rotary_emb\.inv_freq$|^mtp\.")
"""Computed from the configuration, or of a head that predicts further tokens: no model here reads them."""
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_LAYER = re.compile(r"^(?:model\.|transformer\.|gpt_neox\.)?(?:layers|h)\.(\d+)\.")
_EMBEDDING = re.compile(r"^(?:model\.|transformer\.)?(?:embed_tokens|wte)\.weight$")


def check_model_folder(path: str) -> None:
    """Configuration, tokenizer and weights. Raises `DependencyError` in one line naming the file and the mend."""
    config = check_weights(path)
    check_tokenizer(Path(path), config.get("vocab_size"))


def check_weights(path: str) -> dict[str, Any]:
    """Configuration and weights, without the tokenizer; returns the configuration. Raises `DependencyError`."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise DependencyError(
            f"model.path {path!r} holds no config.json; give a Hugging Face folder, or make one with "
            "`temper models prepare smollm2 FOLDER` or `temper models prepare tiny FOLDER`"
        )
    config = _document(folder / "config.json")
    if (folder / "generation_config.json").is_file():
        _document(folder / "generation_config.json")
    files = _weight_files(folder)
    _check_fit(folder, config, {name: shape for file in files for name, shape in tensor_shapes(file).items()})
    return config


def check_tokenizer(folder: Path, vocabulary: object = None) -> None:
    """Its files are there and are JSON; its ids are below `vocabulary` where that is a number."""
    if not (folder / "tokenizer_config.json").is_file():
        raise DependencyError(
            f"model.path {str(folder)!r}: no tokenizer there (tokenizer_config.json); prepare one with "
            "`temper models prepare smollm2 FOLDER`"
        )
    _document(folder / "tokenizer_config.json")
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        return  # an older format, which only its own library can judge
    document = _document(tokenizer)
    if not isinstance(document.get("model"), dict):
        raise DependencyError(f"{tokenizer} holds no tokenizer model: it is damaged; {_MEND}")
    largest = max(_token_ids(document), default=-1)
    if isinstance(vocabulary, int) and largest >= vocabulary:
        raise DependencyError(
            f"{tokenizer} has token id {largest}, config.json says vocab_size {vocabulary}: they belong to different "
            f"models; {_MEND}"
        )


def check_loaded(path: str, info: Mapping[str, Any]) -> None:
    """`info` of `from_pretrained(output_loading_info=True, ignore_mismatched_sizes=True)`.

    A tensor that the file lacks, or has in another shape, would be made at random without a word.
    Raises `DependencyError` naming the first tensor.
    """
    for kind, said in (
        ("missing_keys", "is missing"),
        ("mismatched_keys", "is {1}, the configuration wants {2}"),
        ("unexpected_keys", "is not in the model"),
    ):
        found = sorted(
            parts for item in info.get(kind) or () if not _SPARE.search((parts := _parts(item))[0])
        )
        if found:
            raise DependencyError(
                f"model.path {path!r}: config.json does not fit the weights: tensor {found[0][0]} "
                f"{said.format(*found[0])} ({len(found)} in all); {_MEND}"
            )


def _parts(item: Any) -> tuple[str, ...]:
    """A name, or (name, shape in the file, shape in the model)."""
    if isinstance(item, tuple):
        return (str(item[0]), *(str(list(shape)) for shape in item[1:]))
    return (str(item),)


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Name to shape, from the header. Raises `DependencyError` for what is no whole safetensors file."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or not 2 <= length <= min(_LARGEST_HEADER, size - 8):
                raise DependencyError(f"{file}: no safetensors file ({size:,} bytes): it is damaged; {_MEND}")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        shapes = {str(name): tuple(map(int, entry["shape"])) for name, entry in header.items()}
        end = 8 + length + max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
    except OSError as error:
        raise DependencyError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise DependencyError(f"{file}: its header is not readable: it is damaged; {_MEND}") from error
    if end != size:
        raise DependencyError(f"{file} has {size:,} bytes, its header says {end:,}: it is damaged; {_MEND}")
    return shapes


_MEND = "copy the model again"


def _weight_files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if not index.is_file():
        if any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin")):
            return sorted(folder.glob("*.safetensors"))  # a layout that only the model's own library knows
        raise DependencyError(f"model.path {str(folder)!r} holds no weights ({_SINGLE} or {_INDEX}); {_MEND}")
    named = _document(index).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise DependencyError(f"{index} names no weights (weight_map): it is damaged; {_MEND}")
    files = [folder / str(name) for name in sorted(set(map(str, named.values())))]
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise DependencyError(
            f"{index} names {absent[0]}, which is not there ({len(absent)} missing); {_MEND}"
        )
    return files


def _check_fit(folder: Path, config: Mapping[str, Any], shapes: Shapes) -> None:
    """The few facts that every decoder's configuration and weights share. The rest is the loader's to refuse."""
    if not shapes or "quantization_config" in config:
        return  # packed weights have shapes of their own
    problem = next(_misfits(config, shapes), "")
    if problem:
        raise DependencyError(
            f"model.path {str(folder)!r}: config.json does not fit the weights: {problem}; {_MEND}"
        )


def _misfits(config: Mapping[str, Any], shapes: Shapes) -> Iterator[str]:
    vocabulary, width, layers = (
        config.get(key) for key in ("vocab_size", "hidden_size", "num_hidden_layers")
    )
    for name, shape in shapes.items():
        if _EMBEDDING.search(name) and len(shape) == 2:
            for what, wanted, found in (
                ("vocab_size", vocabulary, shape[0]),
                ("hidden_size", width, shape[1]),
            ):
                if isinstance(wanted, int) and wanted != found:
                    yield f"{what} is {wanted}, and {name} is {list(shape)}"
    seen = {int(match[1]) for name in shapes if (match := _LAYER.search(name))}
    spare = config.get("num_nextn_predict_layers") or 0  # counted apart, and stored behind the others
    if isinstance(layers, int) and isinstance(spare, int) and seen:
        count = max(seen) + 1
        if count not in (layers, layers + spare):
            yield f"num_hidden_layers is {layers}, and the weights have {count} layers"


def _token_ids(document: Mapping[str, Any]) -> Iterator[int]:
    vocabulary = document["model"].get("vocab")
    if isinstance(vocabulary, dict):
        yield from (token for token in vocabulary.values() if isinstance(token, int))
    elif isinstance(vocabulary, list):
        yield len(vocabulary) - 1


def _document(path: Path) -> dict[str, Any]:
    """The JSON object of a file."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise DependencyError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DependencyError(f"{path} is not valid JSON: {error}: it is damaged; {_MEND}") from error
    if not isinstance(document, dict):
        raise DependencyError(f"{path} holds no JSON object: it is damaged; {_MEND}")
    return document
