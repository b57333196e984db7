import mmap
from pathlib import Path

import numpy as np
import pytest

from dapfl.learning.datasets import shakespeare
from dapfl.learning.datasets.shakespeare import CHARACTERS, encode, join_texts, read_roles, roles

PLAY = """THE TRAGEDY OF HAMLET, PRINCE OF DENMARK

by William Shakespeare

PERSONS REPRESENTED.

Hamlet, Son to the former, and Nephew to the present King.
Ghost of Hamlet's Father.
Two Clowns.

ACT I.

Scene I. Elsinore.

[Enter Ghost and Hamlet.]

Ham.
Speak; I am bound
to hear. [Kneels, and
weeps.] Alas!

Ghost.
Mark me.

  Adieu.

1 Clown.
What is he?

Ham.
Nothing.

[Exit.]
"""
POEM = "THE SONNETS\n\nI\n\nFrom fairest creatures\nwe desire increase.\n"


def test_roles_say_what_they_say_and_no_stage_direction() -> None:
    said = roles(f"\f{PLAY}\f{POEM}")
    assert said == {
        "Hamlet (Hamlet, Prince of Denmark)": "Speak; I am bound\nto hear.  Alas!\nNothing.",
        "Ghost (Hamlet, Prince of Denmark)": "Mark me.\nAdieu.",
        "1 Clown (Hamlet, Prince of Denmark)": "What is he?",
    }


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("MRS. FORD.", "Mrs. Ford"),
        ("KING HENRY", "King Henry"),
        ("ANTIPHOLUS OF EPHESUS.", "Antipholus of Ephesus"),
    ],
)
def test_names_of_several_words_are_recognised(heading: str, name: str) -> None:
    assert list(roles(f"A PLAY\n\nACT I\n\n{heading}\nWords.\n")) == [f"{name} (A Play)"]


@pytest.mark.parametrize(
    "line", ["Nay, answer me.", "SCENE II. A street.", "to be or not", "He went To Rome And Back Again."]
)
def test_what_is_no_name_is_no_speaker(line: str) -> None:
    said = roles(f"A PLAY\n\nACT I\n\nKENT.\nWords.\n\n{line}\nMore.\n")
    assert list(said) == ["Kent (A Play)"]


def mapped(text: str) -> mmap.mmap:
    content = mmap.mmap(-1, len(text))
    content.write(text.encode())
    return content


def test_passages_of_a_role_predict_the_next_character(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shakespeare, "ENOUGH", 1_000)
    words = " ".join(f"word {'abcdefghij'[number % 10]}" for number in range(300))
    text = f"\fA PLAY\n\nACT I\n\nKENT.\n{words}\n\nFOOL.\nShort.\n\nLEAR.\n{words[::-1]}\n"
    data = read_roles([mapped(text)])
    assert data.natural is not None
    assert data.natural.names == ("Kent (A Play)", "Lear (A Play)")
    assert np.array_equal(data.train_images[:, 1:], data.train_labels[:, :-1])
    whole = encode(words)
    mine = data.train_images[data.natural.train == 0]
    assert np.array_equal(mine.ravel(), whole[: mine.size])  # end to end, none left out
    kept = data.test_images[data.natural.test == 0]
    first = len(whole) - len(whole) // 5
    assert np.array_equal(kept.ravel(), whole[first : first + kept.size])
    assert data.classes == len(CHARACTERS)
    assert data.train_images.dtype == np.int32  # bytes would be scaled as pixels


def test_texts_are_joined_in_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b_gut.txt").write_text("Second\r\nplay\r\n", newline="")
    (tmp_path / "a_gut.txt").write_text("First")
    (tmp_path / "notes.txt").write_text("not a play")
    join_texts(tmp_path, tmp_path)
    assert (tmp_path / "plays.txt").read_bytes() == b"\fFirst\n\fSecond\nplay\n"
