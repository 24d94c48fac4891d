"""What the libraries that read data sets (Arrow, Hugging Face datasets) refuse, by what is wrong with the data."""

from __future__ import annotations

from meshwright.diagnose.known_entry import known

_GENERAL = (
    r"error of its own|framework refuses|check of the program refuses|data set cannot be built"
)

DATA = (
    known(
        r"offset overflow while concatenating arrays|array cannot contain more than 2147483646 bytes", "wrong-configuration",
        "A column of text or bytes grows beyond the 2 GiB that Arrow counts in one piece",
        "large_string or large_binary as that column's type, more shards (num_shards, fewer rows a batch: batch_size, writer_batch_size), or no concatenation of the whole (select and flatten_indices make "
        "such pieces)", "data", confidence=0.9, explains=_GENERAL,
    ),
    known(
        r"Column \d{1,5} named (?P<column>\S{1,60}) expected length (?P<want>\d{1,12}) but got length (?P<got>\d{1,12})", "wrong-configuration",
        "The function mapped over the data gives column {column} {got} rows where the others have {want}",
        "a batched function returns as many rows in every column: where it drops, splits or packs rows, give remove_columns the old ones (remove_columns=dataset.column_names), and look at the samples "
        "without that field (a missing image, an empty list)", "data", confidence=0.9, explains=_GENERAL,
    ),
    known(
        r"JSON parse error: |Failed to read file '[^']{1,200}' with error <class '[^']*(?:Arrow|JSON)", "wrong-configuration",
        "A file of the data is no JSON of the form that the reader takes, or not one form throughout",
        "the line or row that the message names: one object a line (.jsonl) or one list of objects, a field of one type in all of them (a string here and a list or an object there is refused), no half-written "
        "last line, no download page or pointer of git-lfs in place of the data; python -m json.tool FILE tells", "data", confidence=0.75, explains=_GENERAL,
    ),
    known(
        r"because column names don'?t match|All the data files must have the same columns|Couldn'?t cast array of type|features can'?t be aligned|Schema at index \d{1,9} was different", "wrong-configuration",
        "The files of the data have not the same columns or types",
        "load files of different columns apart and bring them to one form (select_columns, cast, rename_column) before they are joined; features= names the types where an empty or mixed column was guessed "
        "wrong; data_files= leaves files out that are no data; the cache of an earlier form removed", "data", confidence=0.9, explains=_GENERAL,
    ),
    known(
        r"DatasetGeneration(?:Cast)?Error", "wrong-configuration",
        "The data set cannot be built from its files",
        "the error above that line (“the direct cause”) tells why: a file of another form, a full disk, a missing package; one file alone (data_files=, num_proc=1) finds which", "data",
        confidence=0.6, shadow=True, explains=r"error of its own",
    ),
)  # fmt: skip
