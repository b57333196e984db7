"""A language model: the next character at every place of a text.

    dapfl run --task examples/next_token.py:characters --clients 5 --rounds 5

The text is Python's own help pages, which every installation has; put yours in its place. A sample is a row
of 32 characters, and its labels are those that follow each of them. The model is a small transformer.
(`--task shakespeare` is a larger one, on plays, with their roles as clients.)
"""

import numpy as np
import torch
from torch import Tensor, nn

from dapfl import Dataset, Task

LENGTH = 32
TOKENS = 128  # ASCII


def load_text() -> Dataset:
    """Rows of characters, as whole numbers, and the rows that follow one character later."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))[:60_000]
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64)
    rows = codes[: len(codes) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)
    train, test = rows[: len(rows) * 9 // 10], rows[len(rows) * 9 // 10 :]
    return Dataset(train[:, :-1], train[:, 1:], test[:, :-1], test[:, 1:], classes=TOKENS)


class Transformer(nn.Module):
    """One block of attention that sees no later character."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.characters = nn.Embedding(TOKENS, width)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.logits = nn.Linear(width, TOKENS)

    def forward(self, text: Tensor) -> Tensor:
        """Logits of shape (batch, TOKENS, LENGTH): for each place, those of the character that follows."""
        later = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        seen = self.block(self.characters(text) + self.places, src_mask=later, is_causal=True)
        return self.logits(seen).transpose(1, 2)


characters = Task("characters", Transformer, load_text)
