"""Training batches as a pure function of (seed, step): no loader state, the same on every layout.

Text is read as bytes, token files as they are, both through a memory map, so their size does not
matter. Each epoch visits every window once, in an order that is a pseudo-random permutation keyed
by (seed, epoch) and computed number by number: nothing of the size of the data is ever held.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from meshwright.engine.model.loss import IGNORED
from meshwright.specs.errors import SpecError, shorten
from meshwright.specs.foreign import read_text

BYTE_VOCABULARY = 256
DEMO = Path(__file__).parent / "texts" / "demo.txt"
"""A few public-domain texts, for demonstrations: `--data demo`."""

_TOKEN_FILES = (".npy", ".bin")
_CHUNK_CHARACTERS = 1 << 20
_PIECE = 2048
_TOKENIZER_BYTES = 1 << 28
_END_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>")
_NPY_HEADER_BYTES = 128  # what NumPy writes for a flat array of any length


class Corpus:
    """A text, a token file, or a folder of either in name order, as one long run of tokens.

    `.npy` holds a flat array of unsigned integers, `.bin` raw little-endian 16-bit ones; anything
    else is text, one token per byte.

    With `documents` every window is told apart into its documents: a text file is one, and
    `end_token` ends one wherever it stands (a token file without it cannot be told apart).

    Raises:
        SpecError: nothing readable there, text and tokens mixed, or too little for one window.
    """

    def __init__(
        self,
        path: str | Path,
        seq_len: int,
        seed: int = 0,
        *,
        documents: bool = False,
        end_token: int | None = None,
    ) -> None:
        self.path = DEMO if str(path) == "demo" else Path(path)
        self.seq_len, self.seed = seq_len, seed
        self.documents, self.end_token = documents, end_token
        files = _files(self.path)
        kinds = {file.suffix in _TOKEN_FILES for file in files}
        if len(kinds) > 1:
            raise SpecError("data", str(path), "text and token files (.npy, .bin) are mixed")
        self.is_text = kinds != {True}
        if documents and not self.is_text and end_token is None:
            raise SpecError(
                "end_token", None, "document masking of token files needs the token that ends one"
            )
        self._parts = [_open(file) for file in files]
        self._ends = np.cumsum([len(part) for part in self._parts])
        # A window is S inputs and the S next tokens; the last token is only ever a target.
        self.windows = (int(self._ends[-1]) - 1) // seq_len if self._parts else 0
        if self.windows < 1:
            raise SpecError("data", str(path), f"at least {seq_len + 1} tokens are needed")

    @property
    def tokens(self) -> int:
        """Tokens in one epoch."""
        return self.windows * self.seq_len

    def batch(self, step: int, global_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets `[global batch, S]` of optimizer step `step` (from 0)."""
        return self.packed_batch(step, global_batch)[:2]

    def packed_batch(
        self, step: int, global_batch: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Inputs, targets and where each token's document starts in its row; `[global batch, S]`.

        The last is None without `documents`. A target in another document than its input is
        `IGNORED`: nothing could predict it.
        """
        first = step * global_batch
        at = [self._first_token(first + row) for row in range(global_batch)]
        rows = np.stack([self.span(start, start + self.seq_len + 1) for start in at])
        whole = torch.from_numpy(rows.astype(np.int64))
        tokens, targets = whole[:, :-1].contiguous(), whole[:, 1:].contiguous()
        if not self.documents:
            return tokens, targets, None
        begins = torch.stack(
            [self._begins(start, row) for start, row in zip(at, whole, strict=True)]
        )
        starts = (begins * torch.arange(self.seq_len + 1)).cummax(1).values[:, :-1]
        return tokens, targets.masked_fill(begins[:, 1:], IGNORED), starts.contiguous()

    def fingerprint(self) -> str:
        """A hash of each file's length and of 64 pieces spread over it, to notice other data."""
        found = hashlib.blake2b(digest_size=16)
        for part in self._parts:
            found.update(f"{len(part)} {part.dtype};".encode())
            for at in np.linspace(0, max(len(part) - _PIECE, 0), 64).astype(np.int64):
                found.update(np.ascontiguousarray(part[at : at + _PIECE]).tobytes())
        return found.hexdigest()

    def _first_token(self, index: int) -> int:
        """Where the `index`-th window of the whole training run begins."""
        epoch, at = divmod(index, self.windows)
        return shuffled(at, self.windows, self.seed, epoch) * self.seq_len

    def _begins(self, start: int, row: torch.Tensor) -> torch.Tensor:
        """Which tokens of a window `[S + 1]` are the first of a document, or of the window."""
        begins = torch.zeros(len(row), dtype=torch.bool)
        begins[0] = True
        if self.end_token is not None:
            begins[1:] |= row[:-1] == self.end_token
        if self.is_text:
            low, high = np.searchsorted(self._ends, [start, start + len(row)])
            begins[torch.from_numpy(self._ends[low:high] - start)] = True
        return begins

    def span(self, start: int, stop: int) -> Any:
        """Tokens `start` to `stop` of the whole, across files."""
        pieces = []
        for part, end in zip(self._parts, self._ends, strict=True):
            base = int(end) - len(part)
            if start < end and stop > base:
                pieces.append(part[max(start - base, 0) : stop - base])
        return np.concatenate(pieces)


_ROUNDS = 6


def shuffled(index: int, count: int, seed: int, epoch: int) -> int:
    """The place of `index` in a pseudo-random permutation of 0 … count - 1.

    A Feistel network over the next power of four, walked along its cycle until it lands inside
    (Black and Rogaway, CT-RSA 2002, §3): any element of any permutation in constant memory.
    """
    half = max(1, (count - 1).bit_length() + 1 >> 1)
    low = (1 << half) - 1
    while True:
        left, right = index >> half, index & low
        for turn in range(_ROUNDS):
            text = f"{seed}:{epoch}:{turn}:{right}".encode()
            mixed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
            left, right = right, left ^ (mixed & low)
        index = left << half | right
        if index < count:
            return index


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return [path]


def _open(file: Path) -> Any:
    if not file.is_file():
        what = "not a regular file" if file.exists() else "No such file or directory"
        raise SpecError("data", str(file), f"cannot be read ({what})")
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
    except (ValueError, EOFError) as error:
        raise SpecError("data", str(file), f"is no token file ({error})") from None


def end_of_text(tokenizer: str | Path) -> int | None:
    """The token with which a Hugging Face `tokenizer.json` ends a text; None if it has none.

    Raises:
        SpecError: the tokenizer cannot be read.
    """
    encoder = _tokenizer(tokenizer)
    ends = [encoder.token_to_id(name) for name in _END_TOKENS]
    return next((number for number in ends if number is not None), None)


def _tokenizer(path: str | Path) -> Any:
    from tokenizers import Tokenizer

    text = read_text(path, "tokenizer", _TOKENIZER_BYTES)
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        reason = shorten(str(error), str, 40)
        raise SpecError("tokenizer", str(path), f"cannot be read ({reason})") from None


def tokenize(data: str | Path, tokenizer: str | Path, target: str | Path) -> tuple[int, int]:
    """Turn text into a token file with a Hugging Face `tokenizer.json`; returns (tokens, bytes).

    Text is read a megabyte at a time, cut at line ends, and written as it comes; the end of a file
    becomes the tokenizer's end-of-text token where it has one.

    Raises:
        SpecError: the tokenizer or a text cannot be read, or the file cannot be written.
    """
    encoder, end = _tokenizer(tokenizer), end_of_text(tokenizer)
    kind = np.dtype("<u2" if encoder.get_vocab_size() <= 1 << 16 else "<u4")
    source, target = DEMO if str(data) == "demo" else Path(data), Path(target)
    partial = target.with_name(f".{target.name}.partial")
    count = read = 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as out:
            out.write(bytes(_NPY_HEADER_BYTES))
            for file in _files(source):
                for text in _texts(file):
                    read += len(text.encode())
                    ids = encoder.encode(text, add_special_tokens=False).ids
                    count += len(ids)
                    out.write(np.asarray(ids, dtype=kind).tobytes())
                if end is not None:
                    count += 1
                    out.write(np.asarray([end], dtype=kind).tobytes())
            out.seek(0)
            shape = {"descr": kind.str, "fortran_order": False, "shape": (count,)}
            np.lib.format.write_array_header_1_0(out, shape)
            assert out.tell() == _NPY_HEADER_BYTES
        partial.replace(target)
    except OSError as error:
        raise SpecError("out", str(target), f"cannot be written ({error.strerror})") from None
    finally:
        partial.unlink(missing_ok=True)
    return count, read


def _texts(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            while lines := stream.readlines(_CHUNK_CHARACTERS):
                yield "".join(lines)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError("data", str(file), f"cannot be read as text ({error})") from None
