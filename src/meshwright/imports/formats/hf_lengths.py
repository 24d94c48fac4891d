"""How long sequences and runs are, in the words of TrainingArguments and of programs around them."""

from __future__ import annotations

from meshwright.imports.options import Options
from meshwright.imports.reading import Reading

LENGTHS = (
    "max_seq_length", "max_length", "model_max_length", "cutoff_len", "max_seq_len", "seq_length", "block_size",
    "sequence_len", "max_token_length", "sequence_length", "data_max_length", "total_length", "max_sequence_length",
    "seq_len",
)  # fmt: skip
_ANSWERS = ("max_answer_length", "max_response_length", "max_target_length")
_PARTS = (("source_max_len", "target_max_len"), ("max_source_length", "max_target_length"))


def sequences(options: Options, reading: Reading) -> None:
    """Set a reading's length: one that is stated, or the sum of a prompt's and an answer's; and the run's, in steps."""
    reading.count_steps(options, "max_steps")
    stated = sorted(LENGTHS, key=options.assumed.__contains__)
    lengths = [options.whole(name) for name in stated]
    reading.seq_len = next((length for length in lengths if length), 0)
    both = next((names for names in _PARTS if all(name in options for name in names)), None)
    if options.has("total_max_len"):
        reading.seq_len = options.whole("total_max_len")
        both = None
        options.read |= {*_PARTS[0], *_PARTS[1]}
    elif packed := options.whole("pack_length"):
        reading.seq_len = packed
    elif both and (both == _PARTS[0] or not reading.seq_len):
        reading.seq_len = sum(options.whole(name) for name in both)
    elif options.word("rlhf_type") == "grpo" and options.has("max_completion_length"):
        summed(options, reading, reading.seq_len or 512)  # ms-swift cuts prompts by max_length
    elif not reading.seq_len and options.has(*_PARTS[0]):
        reading.seq_len = sum(options.whole(name) for name in _PARTS[0])
    elif not reading.seq_len and options.has("max_completion_length"):
        summed(options, reading, options.whole("max_prompt_length", default=512))
    elif not reading.seq_len and options.has("max_prompt_length") and options.has(*_ANSWERS):
        answer = options.whole(*_ANSWERS)
        reading.seq_len = options.whole("max_prompt_length") + answer
    elif not reading.seq_len and options.has("response_length"):
        prompt = options.whole("max_prompt_token_length")
        reading.seq_len = options.whole("response_length") + prompt


def summed(options: Options, reading: Reading, prompt: int, *answers: str) -> None:
    """Take the longest prompt and the longest answer, by TRL's name or by `answers`, together for every sequence of a run that generates."""
    answer = options.whole(*answers or ("max_completion_length",))
    reading.seq_len = prompt + answer
    reading.guess(
        "--seq",
        f"prompts have at most {prompt} tokens and answers {answer}; their sum is taken for all",
    )
