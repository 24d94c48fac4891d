"""What a checkpoint on disk must be: every tensor's shape, type, shards, and their hashes.

`manifest.json` is written last, into a folder that is not yet in force, and holds a hash of itself.
A checkpoint that lacks a file, was cut short, or differs in one bit from what was written is told
from a good one before a number of it reaches the model.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import stat
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec

from meshwright.specs import foreign
from meshwright.specs.errors import SpecError
from meshwright.specs.writing import write_atomically

FORMAT = 1
NAME = "manifest.json"
METADATA = ".metadata"
"""torch's own index of a distributed checkpoint."""
_CHUNK_BYTES = 1 << 22


_MOST_BYTES = 2**30
_LIMITS = foreign.Limits(size_bytes=_MOST_BYTES, nodes=50_000_000)
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
_File = Annotated[str, msgspec.Meta(pattern=r"^(\.metadata|[\w-][\w.-]*)\Z", max_length=200)]
"""A name in the checkpoint's own folder."""


class _Shard(TypedDict):
    offset: list[_Size]
    shape: list[_Size]
    file: _File
    start_byte: _Size
    bytes: _Size
    blake2b: str


class _Tensor(TypedDict):
    shape: list[_Size]
    dtype: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{1,30}\Z")]
    shards: list[_Shard]


class _Content(TypedDict, total=False):
    """The fields of a manifest that are used; what else it records may be anything."""

    step: _Size
    model: dict[str, Any]
    layout: dict[str, Any]
    ranks: Annotated[int, msgspec.Meta(ge=1, le=10**7)]
    data: dict[str, Any]
    files: dict[_File, _Size]
    metadata_blake2b: str
    tensors: dict[str, _Tensor]


class DamagedError(Exception):
    """A checkpoint that is not what was written; the message says what is wrong with which file."""


def hash_of(file: Path, start: int = 0, size: int | None = None) -> str:
    """BLAKE2b (128 bits) of a range of a file, in hex.

    Raises:
        DamagedError: the file is missing or ends before the range does.
    """
    found = hashlib.blake2b(digest_size=16)
    left = -1 if size is None else size
    try:
        with file.open("rb") as stream:
            stream.seek(start)
            while left:
                piece = stream.read(_CHUNK_BYTES if left < 0 else min(_CHUNK_BYTES, left))
                if not piece:
                    break
                found.update(piece)
                left -= len(piece) if left > 0 else 0
    except OSError as error:
        raise DamagedError(f"{file.name} cannot be read ({error.strerror})") from None
    if left > 0:
        raise DamagedError(f"{file.name} is {left} bytes short")
    return found.hexdigest()


def write(folder: Path, content: dict[str, Any]) -> None:
    """Write a manifest, with a hash of itself, after all other files of the checkpoint.

    Raises:
        SpecError: it cannot be written.
    """
    whole = {"format": FORMAT, **content}
    whole["blake2b"] = _hash_of_content(whole)
    write_atomically(folder / NAME, json.dumps(whole, indent=1))


def read(folder: Path) -> dict[str, Any]:
    """A checkpoint's manifest, after the checks that need no reading of the tensors' files.

    Raises:
        DamagedError: no manifest, one that was changed, or a file missing or of another size.
    """
    try:
        raw = foreign.read_bytes(folder / NAME, "manifest", _MOST_BYTES)
        content = foreign.parse_json(raw, "manifest", NAME, _LIMITS)
    except SpecError as error:
        raise DamagedError(f"{NAME} {error.remedy}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DamagedError(f"{NAME} is not of format {FORMAT}")
    if content.pop("blake2b", None) != _hash_of_content(content):
        raise DamagedError(f"{NAME} was changed after it was written")
    try:
        msgspec.convert(content, _Content)
        if missing := {"step", "model", "files", "tensors"} - content.keys():
            raise msgspec.ValidationError(f"no {min(missing)}")
    except msgspec.ValidationError as error:
        # The hash tells of accidents; who forges a manifest forges its hash.
        raise DamagedError(f"{NAME} is no manifest ({error})") from None
    for name, size in content["files"].items():
        try:
            status = (folder / name).lstat()
        except (OSError, ValueError):
            raise DamagedError(f"{name} is missing") from None
        if not stat.S_ISREG(status.st_mode):
            raise DamagedError(f"{name} is not a regular file")
        if status.st_size != size:
            raise DamagedError(f"{name} has {status.st_size} bytes instead of {size}")
    return content


def verify(folder: Path, content: dict[str, Any], part: int = 0, parts: int = 1) -> None:
    """Hash the shards of a checkpoint, or every `parts`-th from `part` on, against its manifest.

    Raises:
        DamagedError: naming the first tensor and file that differ.
    """
    pieces = [
        (name, shard) for name, entry in content["tensors"].items() for shard in entry["shards"]
    ]
    for name, shard in pieces[part::parts]:
        file = folder / shard["file"]
        if hash_of(file, shard["start_byte"], shard["bytes"]) != shard["blake2b"]:
            raise DamagedError(f"{name} in {file.name} is not what was written")
    if part == 0 and hash_of(folder / METADATA) != content.get("metadata_blake2b"):
        raise DamagedError(f"{METADATA} is not what was written")


def candidates(place: str | Path) -> list[Path]:
    """Checkpoints to resume from, the preferred one first, then ever older ones.

    `place` is a checkpoint, or the folder of a run: then the one that LATEST names is preferred.

    Raises:
        SpecError: there is no folder of a checkpoint.
    """
    root = Path(place)
    preferred: Path | None = None
    if root.name.startswith("step-"):
        root, preferred = root.parent, root
    else:
        with contextlib.suppress(OSError, ValueError):
            named = root / foreign.read_text(root / "LATEST", "resume", 1000).strip()
            inside = named.parent == root and named.name.startswith("step-")
            preferred = named if inside and named.is_dir() else None
    known = sorted((p for p in root.glob("step-*") if p.is_dir()), reverse=True)
    if preferred is not None:
        # What is newer than LATEST belongs to a run that was given up.
        known = [preferred, *(p for p in known if p.name < preferred.name)]
    known = [path for path in known if path.is_dir()]
    if not known:
        raise SpecError("resume", str(place), "holds no checkpoint (a folder step-N)")
    return known


def newest_good(place: str | Path) -> tuple[Path, list[str]]:
    """The preferred checkpoint that passes the quick checks, and a sentence per one passed over.

    Raises:
        SpecError: there is none.
    """
    passed_over: list[str] = []
    for path in candidates(place):
        try:
            read(path)
        except DamagedError as error:
            passed_over.append(f"{path.name} is damaged ({error})")
            continue
        return path, passed_over
    raise no_good_one(place, passed_over)


def no_good_one(place: str | Path, passed_over: list[str]) -> SpecError:
    """The refusal when every checkpoint is damaged."""
    return SpecError("resume", str(place), f"no complete checkpoint: {'; '.join(passed_over)}")


def _hash_of_content(content: dict[str, Any]) -> str:
    raw = json.dumps(content, sort_keys=True).encode()
    return hashlib.blake2b(raw, digest_size=16).hexdigest()
