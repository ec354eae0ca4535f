"""Make the data: sentences of a small grammar, as numbers of characters.

Writes data/train.bin, data/val.bin (16-bit numbers) and data/meta.json (which number is which
character). The same files come out on every VM and with every Python, so that a resumed run reads
what the run before it read.
"""

from __future__ import annotations

import json
from array import array
from pathlib import Path

DATA = Path(__file__).resolve().parent / "data"
SENTENCES = 40_000
HELD_OUT = 0.1

WHO = ["the sailor", "a gardener", "the old clock", "my neighbour", "the river", "a tired engine"]
DOES = ["watches", "remembers", "follows", "repairs", "forgets", "paints", "counts"]
WHAT = ["the harbour", "seven lanterns", "a paper boat", "the long road", "every star", "the rain"]
WHEN = ["at noon", "before the storm", "in winter", "once more", "while it snows", "all night"]


def text() -> str:
    """Chosen by a linear congruential generator: `random` may change from Python to Python."""
    state = 12345
    lines = []
    for _ in range(SENTENCES):
        words = []
        for choices in (WHO, DOES, WHAT, WHEN):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            words.append(choices[(state >> 33) % len(choices)])
        lines.append(" ".join(words).capitalize() + ".")
    return "\n".join(lines) + "\n"


def prepare() -> Path:
    """The folder of the data, made if it is not there; `meta.json` is written last."""
    if (DATA / "meta.json").exists():
        return DATA
    DATA.mkdir(exist_ok=True)
    whole = text()
    characters = sorted(set(whole))
    number = {character: i for i, character in enumerate(characters)}
    tokens = array("H", (number[character] for character in whole))
    cut = int(len(tokens) * (1 - HELD_OUT))
    for name, part in (("train", tokens[:cut]), ("val", tokens[cut:])):
        (DATA / f"{name}.bin").write_bytes(part.tobytes())
    (DATA / "meta.json").write_text(json.dumps({"characters": characters}))
    return DATA


if __name__ == "__main__":
    print(f"data: {prepare()}")
