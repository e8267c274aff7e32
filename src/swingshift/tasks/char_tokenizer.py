"""The character-level tokenizer of the built-in tasks: 64 tokens, nothing to download."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz+-*/=>< .,?!:;()[]'\"_#|^\n"
VOCABULARY = (PAD, EOS, UNKNOWN, *CHARACTERS)
"""Token ``i`` is ``VOCABULARY[i]``: 3 special tokens and 61 characters."""

assert len(set(VOCABULARY)) == 64


def char_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character. Adds no special tokens by itself; unknown characters become ``<unk>``.

    Every text made of ``CHARACTERS`` survives encoding and decoding unchanged.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    # "." would not match the newline.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
