"""How many tokens a text may be, without asking its model."""

BYTES_PER_TOKEN = 2


def estimated_tokens(text: str) -> int:
    """Upper estimate of tokens: bytes over 2, where English has about 4 a token and code 3.

    A provider counts with a tokenizer of its own, which nobody has offline. Rows of numbers were
    seen to have 2.6 bytes a token with a published one; finer ones have fewer.
    """
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)
