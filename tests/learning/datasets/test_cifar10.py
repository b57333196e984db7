import json
import mmap
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dapfl.errors import DataError
from dapfl.learning.datasets.cifar10 import batches_from_sheets, join_batches, read_records

BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
SIZE = 3  # images in a batch


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (6, SIZE, 3, 32, 32)).astype(np.uint8)


LABELS = np.arange(6 * SIZE, dtype=np.uint8).reshape(6, SIZE) % 10


def write_sheets(folder: Path, images: np.ndarray) -> None:
    for name, batch in zip(BATCHES, images, strict=True):
        rows = batch.transpose(0, 2, 3, 1).reshape(SIZE, 1024, 3)
        Image.fromarray(rows).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps(LABELS[:5].ravel().tolist()))
    (folder / "test_lables.json").write_text(json.dumps(LABELS[5].tolist()))


def write_batches(folder: Path, images: np.ndarray) -> None:
    for name, batch, labels in zip(BATCHES, images, LABELS, strict=True):
        records = [bytes([label]) + image.tobytes() for image, label in zip(batch, labels, strict=True)]
        (folder / f"{name}.bin").write_bytes(b"".join(records))


def test_sheets_and_batches_give_the_same_files_bit_for_bit(tmp_path: Path, images: np.ndarray) -> None:
    for name in ("raw", "a", "b"):
        (tmp_path / name).mkdir()
    write_sheets(tmp_path / "raw", images)
    write_batches(tmp_path / "raw", images)
    batches_from_sheets(tmp_path / "raw", tmp_path / "a")
    join_batches(tmp_path / "raw", tmp_path / "b")
    for name in ("train.bin", "test.bin"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_files_are_read_without_copying(tmp_path: Path, images: np.ndarray) -> None:
    write_batches(tmp_path, images)
    join_batches(tmp_path, tmp_path)
    contents = []
    for name in ("train.bin", "test.bin"):
        with (tmp_path / name).open("rb") as opened:
            contents.append(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    data = read_records(contents)
    assert np.array_equal(data.train_images, images[:5].reshape(-1, 3, 32, 32))
    assert np.array_equal(data.test_images, images[5])
    assert np.array_equal(data.train_labels, LABELS[:5].ravel())
    assert data.train_images.base is not None
    assert not data.train_images.flags.owndata


def test_a_sheet_of_another_size_is_refused_before_it_is_decoded(tmp_path: Path, images: np.ndarray) -> None:
    write_sheets(tmp_path, images)
    Image.new("RGB", (1024, SIZE + 1)).save(tmp_path / "data_batch_4.png")
    with pytest.raises(DataError, match=r"data_batch_4\.png is not a PNG sheet of 3 images"):
        batches_from_sheets(tmp_path, tmp_path)
