"""Training batches as a pure function of (seed, step): no loader state, the same on every layout.

Text is read as bytes, token files as they are, both through a memory map, so their size does not
matter. Each epoch visits every window once, in an order drawn from (seed, epoch).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from meshwright.specs.errors import SpecError

BYTE_VOCABULARY = 256
DEMO = Path(__file__).parent / "texts" / "demo.txt"
"""A few public-domain texts, for demonstrations: `--data demo`."""

_TOKEN_FILES = (".npy", ".bin")
_CHUNK_CHARACTERS = 1 << 20


class Corpus:
    """A text, a token file, or a folder of either in name order, as one long run of tokens.

    `.npy` holds a flat array of unsigned integers, `.bin` raw little-endian 16-bit ones; anything
    else is text, one token per byte.

    Raises:
        SpecError: nothing readable there, text and tokens mixed, or too little for one window.
    """

    def __init__(self, path: str | Path, seq_len: int, seed: int = 0) -> None:
        self.path = DEMO if str(path) == "demo" else Path(path)
        self.seq_len, self.seed = seq_len, seed
        files = _files(self.path)
        kinds = {file.suffix in _TOKEN_FILES for file in files}
        if len(kinds) > 1:
            raise SpecError("data", str(path), "text and token files (.npy, .bin) are mixed")
        self.is_text = kinds != {True}
        self._parts = [_open(file) for file in files]
        self._ends = np.cumsum([len(part) for part in self._parts])
        # A window is S inputs and the S next tokens; the last token is only ever a target.
        self.windows = (int(self._ends[-1]) - 1) // seq_len if self._parts else 0
        if self.windows < 1:
            raise SpecError("data", str(path), f"at least {seq_len + 1} tokens are needed")
        self._order: tuple[int, Any] = (-1, None)

    @property
    def tokens(self) -> int:
        """Tokens in one epoch."""
        return self.windows * self.seq_len

    def batch(self, step: int, global_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets `[global batch, S]` of optimizer step `step` (from 0)."""
        first = step * global_batch
        rows = np.stack([self._window(first + row) for row in range(global_batch)])
        whole = torch.from_numpy(rows.astype(np.int64))
        return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()

    def _window(self, index: int) -> Any:
        epoch, at = divmod(index, self.windows)
        if self._order[0] != epoch:
            generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            self._order = (epoch, generator.permutation(self.windows))
        start = int(self._order[1][at]) * self.seq_len
        return self.span(start, start + self.seq_len + 1)

    def span(self, start: int, stop: int) -> Any:
        """Tokens `start` to `stop` of the whole, across files."""
        pieces = []
        for part, end in zip(self._parts, self._ends, strict=True):
            base = int(end) - len(part)
            if start < end and stop > base:
                pieces.append(part[max(start - base, 0) : stop - base])
        return np.concatenate(pieces)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return [path]


def _open(file: Path) -> Any:
    try:
        if file.suffix == ".npy":
            array = np.load(file, mmap_mode="r")
            if array.ndim != 1 or array.dtype.kind != "u":
                raise SpecError("data", str(file), "a flat array of unsigned integers is expected")
            return array
        kind = np.dtype("<u2") if file.suffix == ".bin" else np.dtype(np.uint8)
        if file.stat().st_size < kind.itemsize:
            return np.zeros(0, dtype=kind)
        return np.memmap(file, dtype=kind, mode="r")
    except OSError as error:
        raise SpecError("data", str(file), f"cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise SpecError("data", str(file), f"is no token file ({error})") from None


def tokenize(data: str | Path, tokenizer: str | Path, target: str | Path) -> tuple[int, int]:
    """Turn text into a token file with a Hugging Face `tokenizer.json`; returns (tokens, bytes).

    Text is read a megabyte at a time, cut at line ends; the end of a file becomes the tokenizer's
    end-of-text token where it has one.

    Raises:
        SpecError: the tokenizer or a text cannot be read, or the file cannot be written.
    """
    from tokenizers import Tokenizer

    try:
        encoder = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the library raises bare Exception
        raise SpecError("tokenizer", str(tokenizer), f"cannot be read ({error})") from None
    kind = np.uint16 if encoder.get_vocab_size() <= 1 << 16 else np.uint32
    ends = [encoder.token_to_id(name) for name in ("<|endoftext|>", "</s>", "<|end_of_text|>")]
    end = next((number for number in ends if number is not None), None)
    source = DEMO if str(data) == "demo" else Path(data)
    pieces, read = [], 0
    for file in _files(source):
        try:
            with file.open(encoding="utf-8", newline="") as stream:
                while lines := stream.readlines(_CHUNK_CHARACTERS):
                    text = "".join(lines)
                    read += len(text.encode())
                    ids = encoder.encode(text, add_special_tokens=False).ids
                    pieces.append(np.asarray(ids, dtype=kind))
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError("data", str(file), f"cannot be read as text ({error})") from None
        if end is not None:
            pieces.append(np.asarray([end], dtype=kind))
    whole = np.concatenate(pieces) if pieces else np.zeros(0, dtype=kind)
    try:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        np.save(target, whole)
    except OSError as error:
        raise SpecError("out", str(target), f"cannot be written ({error.strerror})") from None
    return len(whole), read
